"""Memory that torch's counters include although vLLM has returned it to the driver.

vLLM's sleep mode has pools of its own in torch's allocator. It unmaps their segments by itself, and torch goes on
counting them, and the tensors in them, as if they were there.
"""

import sys
from dataclasses import dataclass
from typing import Any

from profiler.domain.memory import Phase

_ALLOCATOR = "vllm.device_allocator.cumem"

_AWAKE_PHASES = (Phase.LOAD, Phase.ROLLOUT)
"""Phases in which the engine is awake at some instant: trl starts it in the first and generates in the second."""


@dataclass(frozen=True, kw_only=True)
class Unmapped:
    """Bytes to subtract from torch's counters."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0


def unmapped_during(phase: Phase) -> Unmapped:
    """Return what torch counts of the engine in `phase`, which begins, and is not on the card.

    In a phase in which the engine is awake for a while, only what never comes back is subtracted.
    """
    return _unmapped(with_asleep=phase not in _AWAKE_PHASES)


def unmapped_now() -> Unmapped:
    """Return what torch counts of the engine at present and is not on the card."""
    return _unmapped(with_asleep=True)


def _unmapped(*, with_asleep: bool) -> Unmapped:
    module = sys.modules.get(_ALLOCATOR)
    allocator = None if module is None else module.CuMemAllocator.instance
    if allocator is None:
        return Unmapped()
    mapped = {address for address, data in allocator.pointer_to_data.items() if not (with_asleep and data.is_asleep)}
    pools = [pool for pool, *_ in allocator.allocator_and_pools.values()]
    segments: list[dict[str, Any]] = [segment for pool in pools for segment in pool.snapshot()]
    gone = [segment for segment in segments if segment["address"] not in mapped]
    return Unmapped(
        allocated_bytes=sum(segment["allocated_size"] for segment in gone),
        reserved_bytes=sum(segment["total_size"] for segment in gone),
    )
