"""What a sweep took of GPUs, and what it did without."""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.domain.outcome import Status, TrialRecord

_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class GpuTime:
    """GPU-seconds of the trials of a plan."""

    used_s: float
    saved_s: float
    """What implied trials would have taken, if each as long as the one that implies it took to run out of memory."""
    implied: int
    """How many were not run."""

    def sentence(self, *, price_per_hour: float | None) -> str:
        """For the end of a sweep; with a sum of money only if a price is known."""
        saved = f", about {self.saved_s:.0f} s saved by not running {self.implied} trials" if self.implied else ""
        cost = ""
        if price_per_hour is not None:
            cost = f"; {self.used_s / _HOUR_S * price_per_hour:.2f} at {price_per_hour:g} an hour"
        return f"GPU time of these trials: {self.used_s:.0f} s ({self.used_s / _HOUR_S:.2f} h){saved}{cost}."


def gpu_time(records: Sequence[TrialRecord]) -> GpuTime | None:
    """The sum over `records`; None if none of them held a GPU."""
    took = {record.trial_id: record.outcome.gpu_s for record in records}
    known = [seconds for seconds in took.values() if seconds is not None]
    if not known:
        return None
    implied = [record for record in records if record.outcome.status is Status.IMPLIED]
    return GpuTime(
        used_s=sum(known),
        saved_s=sum(took.get(record.outcome.implied_by or "") or 0.0 for record in implied),
        implied=len(implied),
    )
