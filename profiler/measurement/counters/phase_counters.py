"""CUDA's own counters, read and reset where each phase ends, and the calls that this needs.

Memory that torch's counters include although vLLM has returned it to the driver.

vLLM's sleep mode has pools of its own in torch's allocator. It unmaps their segments by itself, and torch goes on
counting them, and the tensors in them, as if they were there.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any, Protocol

from profiler.domain.memory import Phase
from profiler.domain.runs.readings import PhasePeak, StepPeak
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


class Counters(Protocol):
    """The framework's memory counters."""

    def synchronize(self) -> None:
        """Wait for the GPU, so that a phase's time is that of its work and not of launching it."""

    def peak_allocated_bytes(self) -> int:
        """The highest allocated memory since the last reset."""

    def peak_reserved_bytes(self) -> int:
        """The highest reserved memory since the last reset."""

    def reset(self) -> None:
        """Begin anew at what is in use now."""


@dataclass
class _Stretch:
    """What is known of one phase of one step, which can come in several parts."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    context_bytes: int | None = None
    time_s: float = 0.0


class PhaseCounters:
    """An observer of phases that keeps the peaks of each phase in each optimizer step.

    Steps count from 1; loading is step 0. A step ends with its optimizer phase.
    """

    def __init__(
        self,
        counters: Counters,
        *,
        clock: Callable[[], float],
        at_phase_end: Callable[[int], int | None] = lambda _: None,
        unmapped: Callable[[], Unmapped] = Unmapped,
    ) -> None:
        """Start outside of all phases.

        Args:
            counters: The counters to read and reset.
            clock: Monotonic, in seconds.
            at_phase_end: Called at the end of a phase with its peak of reserved memory; returns the bytes of the CUDA
                context, or None.
            unmapped: Called as a phase begins; returns what the counters include that is not on the card.
        """
        self._counters = counters
        self._clock = clock
        self._at_phase_end = at_phase_end
        self._unmapped = unmapped
        self._gone = Unmapped()
        self._stretches: dict[tuple[int, Phase], _Stretch] = {}
        self._begun: dict[Phase, int] = {}
        self._phase: Phase | None = None
        self._step = 0
        self._since_s = 0.0
        self.first_phase_at_s = clock()
        """Time of the first phase on the clock; before it, the time of construction."""

    @property
    def phase(self) -> Phase | None:
        """The current phase; None before the first."""
        return self._phase

    @property
    def step(self) -> int:
        """The current optimizer step; 0 while loading."""
        return self._step

    def where(self) -> tuple[Phase | None, int]:
        """Return phase and step; called by the sampler's thread."""
        return self._phase, self._step

    def enter(self, phase: Phase) -> None:
        """Begin `phase`: the counters so far belong to the previous phase."""
        self.read()
        self._counters.reset()
        if phase is not Phase.LOAD and (self._step == 0 or self._phase is Phase.OPTIMIZER):
            self._step += 1
        self._begun[phase] = self._begun.get(phase, 0) + 1
        self._since_s = self._clock()
        if self._phase is None:
            self.first_phase_at_s = self._since_s
        self._phase = phase
        # Looked up as the phase begins: at the end of training the engine may be gone.
        self._gone = self._unmapped()

    def mapping_changed(self) -> None:
        """Begin anew within the phase, because the counters now include another size that is not on the card."""
        self.read()
        self._counters.reset()
        self._gone = self._unmapped()

    def read(self) -> None:
        """Add the counters to the current phase."""
        if self._phase is None:
            return
        self._counters.synchronize()
        stretch = self._stretches.setdefault((self._step, self._phase), _Stretch())
        reserved = self._counters.peak_reserved_bytes() - self._gone.reserved_bytes
        allocated = self._counters.peak_allocated_bytes() - self._gone.allocated_bytes
        stretch.allocated_bytes = max(stretch.allocated_bytes, allocated)
        stretch.reserved_bytes = max(stretch.reserved_bytes, reserved)
        now_s = self._clock()
        stretch.time_s += now_s - self._since_s
        self._since_s = now_s
        stretch.context_bytes = _larger(stretch.context_bytes, self._at_phase_end(reserved))

    def times_finished(self, phase: Phase) -> int:
        """Return how often the phase has begun and ended."""
        return self._begun.get(phase, 0) - (self._phase is phase)

    def step_peaks(self) -> tuple[StepPeak, ...]:
        """Return the peaks of every phase of every step so far, in the order of their beginning."""
        return tuple(
            StepPeak(
                step=step,
                phase=phase,
                peak_allocated_bytes=stretch.allocated_bytes,
                peak_reserved_bytes=stretch.reserved_bytes,
                context_bytes=stretch.context_bytes,
                time_s=stretch.time_s,
            )
            for (step, phase), stretch in self._stretches.items()
        )


def _larger(one: int | None, other: int | None) -> int | None:
    return max((size for size in (one, other) if size is not None), default=None)


def _total(times_s: Iterable[float | None]) -> float | None:
    known = [time_s for time_s in times_s if time_s is not None]
    return sum(known) if known else None


def by_phase(steps: tuple[StepPeak, ...]) -> tuple[PhasePeak, ...]:
    """Return each phase's highest peak and total time over all steps, in the order of their beginning.

    A phase whose times are all unknown has none.
    """
    return tuple(
        PhasePeak(
            phase=phase,
            peak_allocated_bytes=max(one.peak_allocated_bytes for one in same),
            peak_reserved_bytes=max(one.peak_reserved_bytes for one in same),
            time_s=_total(one.time_s for one in same),
        )
        for phase in dict.fromkeys(one.phase for one in steps)
        if (same := [one for one in steps if one.phase is phase])
    )


def peak_of_steps(steps: tuple[StepPeak, ...]) -> tuple[int, ...]:
    """Return the highest allocated memory of each optimizer step, in order, without loading."""
    highest: dict[int, int] = {}
    for one in steps:
        highest[one.step] = max(highest.get(one.step, 0), one.peak_allocated_bytes)
    return tuple(highest[step] for step in sorted(highest) if step > 0)


OutOfMemoryCallback = Callable[[int, int], None]
"""Called at an out-of-memory error with the requested bytes and the driver's free bytes."""


class CudaDevice(Counters, Protocol):
    """The one GPU that this process sees."""

    def set_allocator_settings(self, settings: str) -> None:
        """Set what `PYTORCH_ALLOC_CONF` sets; before the first allocation."""

    def name(self) -> str:
        """Return the vendor's name of the card."""

    def uuid(self) -> str:
        """Return the UUID in the driver's spelling: ``"GPU-..."``."""

    def compute_capability(self) -> tuple[int, int]:
        """Return (major, minor)."""

    def total_bytes(self) -> int:
        """Return the card's memory."""

    def free_bytes(self) -> int:
        """Return the driver's free memory, by `mem_get_info`."""

    def limit_allocator(self, size_bytes: int) -> None:
        """Limit the memory of the caching allocator."""

    def can_allocate(self, size_bytes: int) -> bool:
        """Allocate `size_bytes` and free them; return whether this succeeded."""

    def allocated_bytes(self) -> int:
        """Return the bytes in tensors now."""

    def reserved_bytes(self) -> int:
        """Return the bytes that the caching allocator holds now."""

    def peak_inactive_split_bytes(self) -> int:
        """Return the most free bytes between blocks in use since the last reset."""

    def counters_shared(self) -> AbstractContextManager[None]:
        """Return a context in which the program reads and resets the counters as if it were alone.

        Its resets take no peak from this object, and the resets of this object none from the program.
        """

    def alloc_retries(self) -> int:
        """Return how often the allocator has released its cache and retried."""

    def failed_allocations(self) -> int:
        """Return how many allocations have failed, also if the program went on."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether `error` means that the GPU's memory is exhausted."""

    def has_no_handle(self, error: BaseException) -> bool:
        """Whether `error` means that a library could not create its handle, as happens on a full card."""

    def when_out_of_memory(self, callback: OutOfMemoryCallback) -> None:
        """Call `callback` at each out-of-memory error, if this build of torch supports it."""

    def record_history(self, *, most_entries: int) -> None:
        """Record the last `most_entries` allocations and frees."""

    def snapshot(self) -> Mapping[str, Any]:
        """Return segments and history in the memory viewer's format."""
