"""Summary of the samples by phase: utilisation of the GPU, and the sampled peaks."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

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
