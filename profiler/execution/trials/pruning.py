"""Trials that need not run, because a trial that needs at most as much memory ran out of it."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

from profiler.domain.runs.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.domain.trials.trial import PlannedTrial, TrialSpec

NeedsAtMost = Callable[[TrialSpec, TrialSpec], bool]
"""Returns whether the first trial needs at most as much memory as the second."""


@dataclass(kw_only=True)
class Pruning:
    """Collects records, and derives the outcomes of trials that have not run."""

    needs_at_most: NeedsAtMost
    group_of: Callable[[TrialSpec], Hashable] = lambda _: None
    """Returns a key that is equal for any two trials of which one can need at most the memory of the other."""
    _ran_out: dict[Hashable, list[TrialRecord]] = field(default_factory=dict)
    """By group, so that a trial is not compared with all others."""

    def learn(self, records: Sequence[TrialRecord]) -> None:
        """Collect records; only those that ran out of memory matter."""
        for record in records:
            if record.outcome.status is Status.OOM:
                self._ran_out.setdefault(self.group_of(record.spec), []).append(record)

    def implied(self, trial: PlannedTrial) -> Outcome | None:
        """Return the outcome of a trial that would run out of memory too; None if that does not follow."""
        for record in self._ran_out.get(self.group_of(trial.spec), ()):
            if record.trial_id != trial.trial_id and self.needs_at_most(record.spec, trial.spec):
                verdict = Verdict(
                    status=Status.IMPLIED,
                    implied_by=record.trial_id,
                    message=(
                        f"Not run: {record.spec.model}, {record.label} (trial {record.trial_id}) ran out of memory, "
                        "and this one needs at least as much. prune=false runs it."
                    ),
                )
                return Outcome(verdict=verdict, card=replace(record.outcome.card, context_bytes=None))
        return None
