"""The trials of a plan that slots run, as the store has them: which have started, are lost, or have ended."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.sweep_state import Holder
from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import SweepObserver
from profiler.execution.trials.decision import must_run
from profiler.storage.stores.trial_store import TrialStore


@dataclass(kw_only=True)
class Watched:
    """The trials of a plan, as the store has them."""

    plan: Sequence[PlannedTrial]
    store: TrialStore
    options: RunOptions
    observer: SweepObserver
    left: dict[str, PlannedTrial] = field(init=False)
    """Trials that have no answer and have not ended in this round."""
    _before: dict[str, TrialRecord | None] = field(init=False)
    """Records of earlier sweeps."""
    _failed: dict[str, TrialRecord] = field(default_factory=dict)
    """New records without an answer, of trials that can run again."""
    _running: dict[str, Holder] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    """Trials that ran and had neither a claim nor a record at the last look."""

    def __post_init__(self) -> None:
        """Read the records that exist."""
        self.left = {trial.trial_id: trial for trial in self.plan}
        self._before = {name: record for name, record in self.store.find_many(list(self.left)) if record is not None}

    def look(self) -> bool:
        """Report what has started and ended since the last look; return whether a trial has ended."""
        # In this order, because a slot first publishes a record, then marks its trial, and then gives the claim back.
        holders, marked = self.store.claimed(), self.store.ended()
        has_ended = self._look_at_records(marked)
        self._look_at_claims(holders)
        return has_ended

    @property
    def hosts(self) -> frozenset[str]:
        """The machines that run a trial."""
        return frozenset(holder.host for holder in self._running.values() if holder.host)

    def _look_at_records(self, marked: Collection[str]) -> bool:
        has_ended = False
        # Without resume, records of trials that have not ended in this round say nothing.
        wanted = [trial_id for trial_id in self.left if self.options.resume or trial_id in marked]
        for trial_id, record in self.store.find_many(wanted):
            if record is None:
                continue
            if self._is_final(record, marked):
                self.observer.finished(self.left.pop(trial_id), record)
                self._failed.pop(trial_id, None)
                self._running.pop(trial_id, None)
                has_ended = True
            elif record != self._before.get(trial_id):
                has_ended = has_ended or record != self._failed.get(trial_id)
                self._failed[trial_id] = record
        return has_ended

    def _look_at_claims(self, holders: Mapping[str, Holder]) -> None:
        for trial_id in holders.keys() & self.left.keys():
            before, now = self._running.get(trial_id), holders[trial_id]
            if before is not None and before.generation < now.generation:
                self.observer.lost(self.left[trial_id])
            if before is None or before.generation < now.generation:
                self.observer.started(self.left[trial_id])
            self._running[trial_id] = now
        # A mounted folder can show later than its claim that a trial has ended.
        gone = self._running.keys() - holders.keys()
        for trial_id in gone & self._gone:
            self.observer.lost(self.left[trial_id])
            del self._running[trial_id]
        self._gone = gone - self._gone

    def report_failures(self) -> None:
        """Report the trials that ended without an answer."""
        for trial_id, record in self._failed.items():
            self.observer.finished(self.left[trial_id], record)

    def _is_final(self, record: TrialRecord, marked: Collection[str]) -> bool:
        has_ended = record.trial_id in marked
        has_snapshot = self.options.snapshot and not has_ended and self.store.has_snapshot(record.trial_id)
        return not must_run(record, self.options, has_snapshot=has_snapshot, has_ended=has_ended)
