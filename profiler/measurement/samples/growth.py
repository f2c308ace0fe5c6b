"""Growth of memory over the optimizer steps of a trial."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.domain.units import MIB

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
