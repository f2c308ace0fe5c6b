"""What samples say: use by phase, growth over the steps, and memory of other programs.

Detect other programs that allocated GPU memory during a trial, by memory and not by process numbers.

In containers the driver lists the host's process numbers or none, so it is often unknown which process is the trial's.
The amount of memory that is not the trial's is known.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from profiler.domain.memory import MIB, gib_text
from profiler.domain.runs.readings import PhasePeak, Sample


def with_activity(peaks: Sequence[PhasePeak], samples: Sequence[Sample]) -> tuple[PhasePeak, ...]:
    """Return `peaks`, each with the means of the samples of its phase; None for a phase without samples.

    Samples are equally far apart in time. `sampled_max_device_bytes` is a lower bound: a peak that is shorter than the
    period can fall between two samples.
    """
    if not samples:
        return tuple(peaks)
    return tuple(_with_activity(peak, [one for one in samples if one.phase is peak.phase]) for peak in peaks)


def _with_activity(peak: PhasePeak, samples: Sequence[Sample]) -> PhasePeak:
    return replace(
        peak,
        samples=len(samples),
        sampled_max_device_bytes=sampled_max_device_bytes(samples),
        mean_utilisation_percent=mean_of(one.utilisation_percent for one in samples),
        mean_power_watts=mean_of(one.power_watts for one in samples),
        mean_sm_clock_mhz=mean_of(one.sm_clock_mhz for one in samples),
    )


def sampled_max_device_bytes(samples: Iterable[Sample]) -> int | None:
    """Return the highest sampled device memory; None if the driver did not report it."""
    return max((one.device_used_bytes for one in samples if one.device_used_bytes is not None), default=None)


def missed_by_sampling_bytes(*, peak_device_bytes: int | None, sampled_max_bytes: int | None) -> int | None:
    """Return how far the highest sample stays below the peak, because the peak was shorter than the period.

    Args:
        peak_device_bytes: Peak by the counters, with the memory of other programs if the samples include it.
        sampled_max_bytes: `sampled_max_device_bytes` of the same time.
    """
    if peak_device_bytes is None or sampled_max_bytes is None:
        return None
    return max(0, peak_device_bytes - sampled_max_bytes)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known; None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


EMPTY_BYTES = 512 * MIB
"""A GPU with at most this much memory in use counts as empty: drivers, displays and daemons use some."""

GROWN_BYTES = 256 * MIB
"""Growth of other programs' memory up to this size is ignored, if the driver separates it from the trial's."""

UNEXPLAINED_BYTES = 2048 * MIB
"""Memory beyond torch's up to this size is ignored, if the driver does not separate processes. The CUDA context, loaded
kernels and libraries' own memory stay well below (0.1 to 0.8 GiB in published out-of-memory messages), except for
cuDNN's plans in long generated rollouts."""


@dataclass(frozen=True, kw_only=True)
class PhaseEnd:
    """Readings of the GPU at the end of a phase."""

    context_bytes: int
    """Memory in use minus torch's and minus the others' before the trial: CUDA's context, kernels and libraries."""
    others_bytes: int | None
    """Memory in use minus the trial's own process; None if the driver does not say which process that is."""


def contention(samples: Sequence[Sample], phase_ends: Sequence[PhaseEnd], *, before_bytes: int | None) -> str:
    """Return a sentence if another program's memory grew during the trial; empty if not, or if this is unknown.

    The memory of the trial's own process decides if the driver reports it, because the context may grow by gigabytes
    (cuDNN builds a plan for each new key length). Without it, only memory beyond any plausible context counts.

    Args:
        samples: Readings while the trial ran.
        phase_ends: Readings at the ends of phases, in order.
        before_bytes: Memory of others before the trial; None counts as 0.
    """
    seen = [end.others_bytes for end in phase_ends if end.others_bytes is not None]
    grown = max(_lasting(_others_in(samples)), _lasting(seen)) - (before_bytes or 0)
    if grown > GROWN_BYTES:
        return _sentence(grown)
    unexplained = max((end.context_bytes for end in phase_ends if end.others_bytes is None), default=0)
    return _sentence(unexplained) if unexplained > UNEXPLAINED_BYTES else ""


def _others_in(samples: Iterable[Sample]) -> list[int]:
    return [
        one.device_used_bytes - one.process_used_bytes
        for one in samples
        if one.device_used_bytes is not None and one.process_used_bytes is not None
    ]


def _lasting(others_bytes: Sequence[int]) -> int:
    """Return the highest level that two readings in a row reached.

    A single reading does not count: device and process are read one after the other, and memory may be freed between.
    """
    return max((min(pair) for pair in itertools.pairwise(others_bytes)), default=0)


def _sentence(size_bytes: int) -> str:
    return (
        f"Another program took {gib_text(size_bytes, 2)} of the GPU's memory while the trial ran, so its figures are "
        "not the trial's own."
    )


SAME_BYTES = MIB
"""Peaks that differ by less count as equal: the allocator's smallest blocks and the rounding of lengths."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Growth of the peaks of the steps."""

    settled_step: int | None
    """The step (from 1) at which the peak stopped growing; None if the last step was the highest, or there was only
    one."""
    slope_bytes_per_step: float | None
    """Least-squares slope of the peaks from that step on; if they never settled, of all but the first, which has no
    optimizer states yet. None with fewer than two such steps."""


def growth(peaks_bytes: Sequence[int]) -> Growth:
    """Return the growth of the peaks of the optimizer steps, in order."""
    if not peaks_bytes:
        return Growth(settled_step=None, slope_bytes_per_step=None)
    highest = max(peaks_bytes)
    reached = next(step for step, peak in enumerate(peaks_bytes, start=1) if peak >= highest - SAME_BYTES)
    settled = None if reached == len(peaks_bytes) else reached
    rest = peaks_bytes[settled - 1 :] if settled is not None else peaks_bytes[1:]
    return Growth(settled_step=settled, slope_bytes_per_step=_slope(rest))


def _slope(values: Sequence[int]) -> float | None:
    count = len(values)
    if count < 2:
        return None
    middle = (count - 1) / 2
    mean = sum(values) / count
    across = sum((place - middle) ** 2 for place in range(count))
    return sum((place - middle) * (value - mean) for place, value in enumerate(values)) / across
