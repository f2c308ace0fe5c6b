"""Samples summed up by phase: how busy the GPU was, and what polling saw of the peaks."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from profiler.domain.outcome import PhasePeak, Sample


def with_activity(peaks: Sequence[PhasePeak], samples: Sequence[Sample]) -> tuple[PhasePeak, ...]:
    """`peaks`, each with the means of the samples taken in its phase; None where there was none, or none at all.

    Means are over samples, which are equally far apart. `sampled_max_device_bytes` is a lower bound: what is shorter
    than the period can fall between two samples.
    """
    if not samples:
        return tuple(peaks)
    return tuple(_with_activity(peak, [one for one in samples if one.phase is peak.phase]) for peak in peaks)


def _with_activity(peak: PhasePeak, samples: Sequence[Sample]) -> PhasePeak:
    return replace(
        peak,
        samples=len(samples),
        sampled_max_device_bytes=sampled_max_device_bytes(samples),
        mean_utilisation_percent=_mean(one.utilisation_percent for one in samples),
        mean_power_watts=_mean(one.power_watts for one in samples),
        mean_sm_clock_mhz=_mean(one.sm_clock_mhz for one in samples),
    )


def sampled_max_device_bytes(samples: Iterable[Sample]) -> int | None:
    """The highest device memory that was seen; None where the driver did not say."""
    return max((one.device_used_bytes for one in samples if one.device_used_bytes is not None), default=None)


def missed_by_sampling_bytes(*, peak_device_bytes: int | None, sampled_max_bytes: int | None) -> int | None:
    """How much of the peak no sample saw: what was shorter than the sampler's period. 0 where it saw all of it.

    Args:
        peak_device_bytes: By the counters, other programs' memory included where samples include it.
        sampled_max_bytes: `sampled_max_device_bytes` of the same stretch.
    """
    if peak_device_bytes is None or sampled_max_bytes is None:
        return None
    return max(0, peak_device_bytes - sampled_max_bytes)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
