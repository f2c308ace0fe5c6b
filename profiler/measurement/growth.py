"""Whether memory had stopped growing when the trial ended: peaks of optimizer steps, as plain numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.domain.units import MIB

SAME_BYTES = MIB
"""Two peaks that differ by less are the same: the allocator's smallest blocks and the rounding of lengths."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What the peaks of the steps, in order, say."""

    settled_step: int | None
    """The step (from 1) at which the peak stopped growing; None if the last step was the highest yet, or there was but
    one."""
    slope_bytes_per_step: float | None
    """Least-squares slope of the peaks from that step on; of all but the first where they never settled (the first has
    no optimizer states yet). None where fewer than two steps are left."""


def growth(peaks_bytes: Sequence[int]) -> Growth:
    """From the peak of each optimizer step, in order."""
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
