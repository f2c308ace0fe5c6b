"""The trials of a sweep without an answer: which must run, which are pruned, and who claims them."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path

from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_TOO_MANY_FAILURES, ProfilerError
from profiler.domain.runs.outcome import BreakdownStatus, Outcome, Status, TrialRecord, Verdict, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec, run_key
from profiler.execution.job import SweepObserver
from profiler.storage.stores.record_store import Held
from profiler.storage.stores.trial_store import TrialStore

Stamp = tuple[int, int] | None
"""Inode and time of the last change in ns; None if there is no file."""


def stamp_of(path: Path) -> Stamp:
    """Return the stamp of the file at `path`."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return (found.st_ino, found.st_mtime_ns)


@dataclass(frozen=True, kw_only=True)
class LockedTrial:
    """A trial that only this sweep may run, until the lock is released."""

    trial: PlannedTrial
    lock: Held
    record_path: Path
    stamp_before: Stamp
    """Stamp of the record before the run."""

    @property
    def stderr_path(self) -> Path:
        """File that takes the worker's stdout and stderr."""
        return self.record_path.with_suffix(".stderr")

    @property
    def heartbeat_path(self) -> Path:
        """File that the training touches at each phase."""
        return self.record_path.with_suffix(".beat")

    @property
    def has_new_record(self) -> bool:
        """Whether the record has been written, or replaced, since the run began."""
        return stamp_of(self.record_path) != self.stamp_before


def locked_trial(trial: PlannedTrial, lock: Held, record_path: Path) -> LockedTrial:
    """Return the claim on a trial that is about to run."""
    return LockedTrial(trial=trial, lock=lock, record_path=record_path, stamp_before=stamp_of(record_path))


def must_run(record: TrialRecord | None, options: RunOptions, *, has_snapshot: bool, has_ended: bool = False) -> bool:
    """Return whether a trial must run, or be implied by another one, in spite of its stored record.

    Args:
        record: The stored record of the trial; None without one.
        options: The options of this run.
        has_snapshot: Whether the memory snapshot of the trial is stored.
        has_ended: Whether the trial has ended in this round of the sweep.
    """
    if record is not None and has_ended:
        return False
    if record is None or not options.resume or not record.outcome.status.answered:
        return True
    if record.outcome.status is Status.IMPLIED:
        return not options.prune
    if options.breakdown and _lacks_breakdown(record):
        return True
    return options.snapshot and _can_have_snapshot(record) and not has_snapshot


def stored_answer(trial_id: str, *, store: TrialStore, options: RunOptions) -> TrialRecord | None:
    """Return the stored record that settles a trial under `options`; None if the trial must run."""
    record = store.find(trial_id)
    if record is not None and _must_run(trial_id, record, store, options) and not store.has_ended(trial_id):
        return None
    return record


def stored_answers(trial_ids: Sequence[str], *, store: TrialStore, options: RunOptions) -> set[str]:
    """Return which trials stored records settle under `options`."""
    ended = store.ended()
    found = store.find_many(trial_ids) if options.resume or ended else ()
    return {
        trial_id
        for trial_id, record in found
        if record is not None and (trial_id in ended or not _must_run(trial_id, record, store, options))
    }


def _must_run(trial_id: str, record: TrialRecord | None, store: TrialStore, options: RunOptions) -> bool:
    has_snapshot = options.snapshot and store.has_snapshot(trial_id)
    return must_run(record, options, has_snapshot=has_snapshot)


def _lacks_breakdown(record: TrialRecord) -> bool:
    """Return whether a measured or emulated trial has not been asked for its breakdown yet."""
    if not record.spec.backend.reads_counters or record.outcome.status is not Status.OK:
        return False
    # A breakdown that failed would fail again.
    return record.outcome.breakdown.status is BreakdownStatus.ABSENT


def _can_have_snapshot(record: TrialRecord) -> bool:
    return record.spec.backend is not Backend.CPU and record.outcome.status in (Status.OK, Status.OOM)


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


class Pending:
    """A queue of trials from which those of one simulated run can be taken without a look at all others."""

    def __init__(self, trials: Iterable[PlannedTrial]) -> None:
        """Wait with `trials`, whose ids differ, in order."""
        self._trials: OrderedDict[str, PlannedTrial] = OrderedDict()
        self._keys: dict[str, Hashable] = {}
        self._of_run: dict[Hashable, dict[str, None]] = {}
        for trial in trials:
            self.append(trial)

    def __len__(self) -> int:
        return len(self._trials)

    def __iter__(self) -> Iterator[PlannedTrial]:
        return iter(self._trials.values())

    def popleft(self) -> PlannedTrial:
        """Take the first trial."""
        trial_id, trial = self._trials.popitem(last=False)
        self._forget(trial_id)
        return trial

    def append(self, trial: PlannedTrial) -> None:
        """Put a trial at the end."""
        self._trials[trial.trial_id] = trial
        if trial.trial_id not in self._keys:
            self._keys[trial.trial_id] = run_key(trial.spec)
        key = self._keys[trial.trial_id]
        if key is not None:
            self._of_run.setdefault(key, {})[trial.trial_id] = None

    def appendleft(self, trial: PlannedTrial) -> None:
        """Put a trial at the front."""
        self.append(trial)
        self._trials.move_to_end(trial.trial_id, last=False)

    def remove(self, trial: PlannedTrial) -> None:
        """Take one trial, wherever it waits."""
        del self._trials[trial.trial_id]
        self._forget(trial.trial_id)

    def siblings(self, trial: PlannedTrial) -> list[PlannedTrial]:
        """Return the waiting trials that the same simulated run answers."""
        key = self._keys[trial.trial_id] if trial.trial_id in self._keys else run_key(trial.spec)
        return [self._trials[trial_id] for trial_id in self._of_run.get(key, ())]

    def _forget(self, trial_id: str) -> None:
        of_run = self._of_run.get(self._keys[trial_id])
        if of_run is not None:
            of_run.pop(trial_id, None)


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
