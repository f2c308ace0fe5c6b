"""The trials of a sweep that have no answer yet: claiming, settling and reporting them, wherever they run."""

from dataclasses import dataclass, field
from enum import Enum, auto

from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_TOO_MANY_FAILURES, ProfilerError
from profiler.domain.runs.outcome import Outcome, TrialRecord, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial
from profiler.execution.job import SweepObserver
from profiler.execution.trials.claim import LockedTrial, locked_trial
from profiler.execution.trials.decision import stored_answer
from profiler.execution.trials.pending import Pending
from profiler.execution.trials.pruning import Pruning
from profiler.storage.stores.trial_store import TrialStore

MAX_FAILURES_IN_A_ROW = 5


class TooManyFailuresError(ProfilerError):
    """Trial after trial fails: the cause is not in the trials."""

    exit_code = EXIT_TOO_MANY_FAILURES


class NotTaken(Enum):
    """Why a trial was not claimed."""

    SETTLED = auto()
    """It needs no run; it has been reported."""
    CLAIMED = auto()
    """Another sweep has claimed it, and runs it."""


@dataclass(kw_only=True)
class OpenTrials:
    """What every engine does with a trial before and after its run."""

    options: RunOptions
    store: TrialStore
    versions: Versions
    """Versions that go into the records."""
    observer: SweepObserver
    pruning: Pruning | None = None
    """Finds measured trials that need not run; None to run all."""
    _failures_in_a_row: int = field(default=0, init=False)
    _announced: set[str] = field(default_factory=set, init=False)
    """Reasons to wait that the observer has heard."""

    def announce(self, reason: str) -> None:
        """Tell the observer what trials wait for; once per reason."""
        if reason not in self._announced:
            self._announced.add(reason)
            self.observer.waiting(reason)

    # ---- before a run ------------------------------------------------------------------------------------------------

    def take(self, trial: PlannedTrial, *, wait: bool = False) -> LockedTrial | NotTaken:
        """Claim a trial that has to run; `wait` for a while if another sweep holds it."""
        # What is known to be answered needs no claim, which costs a request where machines share a store.
        if self.store.is_news(trial.trial_id) and self.settle(trial):
            return NotTaken.SETTLED
        return self._claim(trial, wait=wait)

    def take_siblings(self, trial: PlannedTrial, pending: Pending) -> list[LockedTrial]:
        """Take the trials that the same run answers out of the queue, except those of other sweeps.

        A sibling that is answered meanwhile, by another sweep in the folder, is settled.
        """
        found: list[LockedTrial] = []
        for other in pending.siblings(trial):
            claim = self._claim(other, wait=False)
            if claim is NotTaken.CLAIMED:
                continue
            pending.remove(other)
            if isinstance(claim, LockedTrial):
                found.append(claim)
        return found

    def settle(self, trial: PlannedTrial) -> bool:
        """Settle a trial without a run if a stored record or the outcome of another trial answers it."""
        record = stored_answer(trial.trial_id, store=self.store, options=self.options)
        if record is None:
            pruning = self.pruning if trial.spec.backend is Backend.CUDA else None
            outcome = pruning.implied(trial) if pruning is not None else None
            if outcome is None:
                return False
            record = self.store_outcome(trial, outcome)
        self.report(trial, record)
        return True

    def _claim(self, trial: PlannedTrial, *, wait: bool) -> LockedTrial | NotTaken:
        held = self.store.claim(trial.trial_id, wait=wait)
        if held is None:
            return NotTaken.CLAIMED
        if self.settle(trial):
            held.release()
            return NotTaken.SETTLED
        return locked_trial(trial, held, self.store.path(trial.trial_id))

    # ---- after a run -------------------------------------------------------------------------------------------------

    def store_outcome(self, trial: PlannedTrial, outcome: Outcome) -> TrialRecord:
        """Store an outcome that no worker wrote, and return its record."""
        record = TrialRecord.of(trial, versions=self.versions, outcome=outcome)
        self.store.write(record)
        return record

    def report(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Pass a record on to the observer and to pruning."""
        self.observer.finished(trial, record)
        if self.pruning is not None:
            self.pruning.learn([record])

    def count_failures(self, record: TrialRecord, *, left: int) -> None:
        """Count the trials in a row that have ended without an answer. `left` trials have not ended.

        Raises:
            TooManyFailuresError: These are too many.
        """
        self._failures_in_a_row = 0 if record.outcome.status.answered else self._failures_in_a_row + 1
        if self._failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise TooManyFailuresError(_too_many_failures(record, left))


def _too_many_failures(last: TrialRecord, left: int) -> str:
    lines = last.outcome.message.splitlines() or ["no message"]
    return (
        f"Stopped: {MAX_FAILURES_IN_A_ROW} trials in a row ended without an answer, and {left} were not run or "
        f"not finished. The last one, {last.label} of {last.spec.model}, ended as {last.outcome.status}: "
        f"{' '.join(dict.fromkeys((lines[0], lines[-1])))}"
    )
