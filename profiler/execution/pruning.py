"""Trials that need not run, because a trial that needs at most as much memory ran out of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from profiler.domain.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.domain.trial import PlannedTrial, TrialSpec

NeedsAtMost = Callable[[TrialSpec, TrialSpec], bool]
"""Returns whether the first trial needs at most as much memory as the second."""


@dataclass(kw_only=True)
class Pruning:
    """Collects records, and derives the outcomes of trials that have not run."""

    needs_at_most: NeedsAtMost
    _ran_out: list[TrialRecord] = field(default_factory=list)

    def learn(self, records: Sequence[TrialRecord]) -> None:
        """Collect records; only those that ran out of memory matter."""
        self._ran_out += [record for record in records if record.outcome.status is Status.OOM]

    def implied(self, trial: PlannedTrial) -> Outcome | None:
        """Return the outcome of a trial that would run out of memory too; None if that does not follow."""
        for record in self._ran_out:
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
