"""Memory that torch's counters include although vLLM has returned it to the driver.

vLLM's sleep mode has pools of its own in torch's allocator. It unmaps their segments by itself, and torch goes on
counting them, and the tensors in them, as if they were there.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any

from profiler.seams.patching import patched

_ALLOCATOR = "vllm.device_allocator.cumem"

_MAPPING = ("wake_up", "sleep")
"""Methods of vLLM's allocator that map and unmap segments."""


@dataclass(frozen=True, kw_only=True)
class Unmapped:
    """Bytes to subtract from torch's counters."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0


class VllmMapping:
    """What torch counts of vLLM and is not on the card, and a notice whenever that changes.

    Watching begins with the first question after vLLM has made its allocator. Until then nothing has slept for longer
    than the rest of the phase that loads.
    """

    def __init__(self, changed: Callable[[], None]) -> None:
        """Call `changed` each time after the engine has woken up or gone to sleep."""
        self._changed = changed
        self._watching = ExitStack()
        self._is_watching = False

    def unmapped(self) -> Unmapped:
        """Return what torch counts of the engine at present and is not on the card."""
        module = sys.modules.get(_ALLOCATOR)
        if module is not None and not self._is_watching:
            self._is_watching = True
            owner = module.CuMemAllocator
            self._watching.enter_context(patched([(owner, name, self._noticed(owner, name)) for name in _MAPPING]))
        return unmapped_now()

    def close(self) -> None:
        """Stop watching."""
        self._watching.close()
        self._is_watching = False

    def _noticed(self, owner: type[Any], name: str) -> Callable[..., Any]:
        original = getattr(owner, name)

        @wraps(original)
        def noticed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  # vLLM's own arguments
            result = original(*arguments, **named)
            self._changed()
            return result

        return noticed


def unmapped_now() -> Unmapped:
    """Return what torch counts of the engine at present and is not on the card."""
    module = sys.modules.get(_ALLOCATOR)
    allocator = None if module is None else module.CuMemAllocator.instance
    if allocator is None:
        return Unmapped()
    mapped = {address for address, data in allocator.pointer_to_data.items() if not data.is_asleep}
    pools = [pool for pool, *_ in allocator.allocator_and_pools.values()]
    segments: list[dict[str, Any]] = [segment for pool in pools for segment in pool.snapshot()]
    gone = [segment for segment in segments if segment["address"] not in mapped]
    return Unmapped(
        allocated_bytes=sum(segment["allocated_size"] for segment in gone),
        reserved_bytes=sum(segment["total_size"] for segment in gone),
    )
