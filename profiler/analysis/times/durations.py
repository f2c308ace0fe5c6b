"""How long trials take, from trials that have run, and the GPU time of a sweep."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from profiler.domain.machines.engines import Money
from profiler.domain.runs.outcome import Status, TrialRecord
from profiler.domain.trials.trial import TrialSpec

if TYPE_CHECKING:
    import pandas as pd


class Likeness(StrEnum):
    """How much a trial has in common with those that its time is taken from."""

    SAME = "the same trials"
    KIND = "trials that differ in sizes only"
    MODEL = "trials of the same model"
    BACKEND = "other trials"


def kind_of(spec: TrialSpec) -> Hashable:
    """Return what trials have in common that take about as long: all but sizes of the batch, seeds and rates."""
    return (
        *_of_backend(spec),
        spec.recipe,
        spec.model,
        spec.tuning,
        spec.optim,
        spec.gradient_checkpointing,
        spec.use_vllm,
        spec.distributed_type,
        spec.steps,
    )


def _of_backend(spec: TrialSpec) -> tuple[Hashable, ...]:
    # The card of a simulated trial does not decide how long the simulation takes.
    return (spec.backend, spec.num_processes, None if spec.backend.names_its_card else spec.gpu)


_LEVELS: Mapping[Likeness, Callable[[TrialSpec], Hashable]] = {
    Likeness.SAME: lambda spec: spec,
    Likeness.KIND: kind_of,
    Likeness.MODEL: lambda spec: (*_of_backend(spec), spec.recipe, spec.model),
    Likeness.BACKEND: _of_backend,
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The time that a trial is expected to take."""

    seconds: float
    shortest_s: float
    longest_s: float
    likeness: Likeness


@dataclass
class _Group:
    count: int = 0
    total_s: float = 0.0
    shortest_s: float = float("inf")
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.shortest_s = min(self.shortest_s, seconds)
        self.longest_s = max(self.longest_s, seconds)


@dataclass
class Durations:
    """Seconds of trials that have run, grouped by likeness."""

    trials: int = 0
    _groups: dict[tuple[Likeness, Hashable], _Group] = field(default_factory=dict)

    def learn(self, spec: TrialSpec, seconds: float) -> None:
        """Add a trial that took `seconds`."""
        self.trials += 1
        for likeness, key_of in _LEVELS.items():
            self._groups.setdefault((likeness, key_of(spec)), _Group()).add(seconds)

    def of(self, spec: TrialSpec) -> Expected | None:
        """Return the mean time of the trials that are most like `spec`; None if none has anything in common with it."""
        for likeness, key_of in _LEVELS.items():
            group = self._groups.get((likeness, key_of(spec)))
            if group is not None:
                return Expected(
                    seconds=group.total_s / group.count,
                    shortest_s=group.shortest_s,
                    longest_s=group.longest_s,
                    likeness=likeness,
                )
        return None


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
