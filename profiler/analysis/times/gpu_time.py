"""The GPU time that a sweep used, and that it saved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiler.domain.machines.sweep_state import Money
from profiler.domain.runs.outcome import Status, TrialRecord

if TYPE_CHECKING:
    # The sweep imports this module before it checks its command line, which must not wait for pandas.
    import pandas as pd

_HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class GpuTime:
    """GPU-seconds of the trials of a plan."""

    used_s: float
    saved_s: float
    """The time of implied trials, if each takes as long as the trial that implies it took to run out of memory."""
    implied: int
    """Number of trials that were not run."""

    def sentence(self, *, price: Money | None) -> str:
        """Return the sentence for the end of a sweep; it has the cost if there is a price of one GPU per hour."""
        saved = f", about {self.saved_s:.0f} s saved by not running {self.implied} trials" if self.implied else ""
        cost = ""
        if price is not None:
            whole = Money(amount=self.used_s / _HOUR_S * price.amount, currency=price.currency)
            cost = f"; {whole} at {price.amount:g} an hour"
        return f"GPU time of these trials: {self.used_s:.0f} s ({self.used_s / _HOUR_S:.2f} h){saved}{cost}."


def gpu_time(records: Sequence[TrialRecord]) -> GpuTime | None:
    """Return the GPU time of `records`; None if none of them used a GPU."""
    took = {record.trial_id: record.outcome.work.gpu_s for record in records}
    implied = [record.outcome.verdict.implied_by for record in records if record.outcome.status is Status.IMPLIED]
    return _spent(took, implied)


def gpu_time_of(runs: "pd.DataFrame") -> GpuTime | None:
    """Return the GPU time of a `runs` table; None if no trial used a GPU."""
    known = runs[["trial_id", "gpu_s", "status", "implied_by"]].astype(object)
    rows = known.where(known.notna(), None).itertuples(index=False, name=None)
    took, implied = {}, []
    for trial_id, gpu_s, status, implied_by in rows:
        took[str(trial_id)] = None if gpu_s is None else float(gpu_s)
        if status == Status.IMPLIED:
            implied.append(implied_by)
    return _spent(took, implied)


def _spent(took: Mapping[str, float | None], implied: Sequence[str | None]) -> GpuTime | None:
    """Return the GPU time, from the seconds of each trial and the trials that imply those that were not run."""
    known = [seconds for seconds in took.values() if seconds is not None]
    if not known:
        return None
    saved = sum(took.get(trial_id or "") or 0.0 for trial_id in implied)
    return GpuTime(used_s=sum(known), saved_s=saved, implied=len(implied))
