"""Trials that need not run, because one that needs no more memory ran out of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from profiler.domain.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.domain.trial import PlannedTrial, TrialSpec

NeedsAtMost = Callable[[TrialSpec, TrialSpec], bool]
"""Whether the first trial can need no more memory than the second."""


@dataclass(kw_only=True)
class Pruning:
    """Learns from records and says what follows for trials that have not run."""

    needs_at_most: NeedsAtMost
    _ran_out: list[TrialRecord] = field(default_factory=list)

    def learn(self, records: Sequence[TrialRecord]) -> None:
        """Take in what is answered; only out of memory teaches anything."""
        self._ran_out += [record for record in records if record.outcome.status is Status.OOM]

    def implied(self, trial: PlannedTrial) -> Outcome | None:
        """The outcome of a trial that would run out of memory too; None if that does not follow."""
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
