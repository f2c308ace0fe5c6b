"""A sweep on the slots of an engine: claims are taken and records written here, and trials run there."""

import time
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from profiler.cluster.remote import RemoteResult, RemoteTask, record_name
from profiler.cluster.slots import Ended, KindOf, SlotKind, Slots
from profiler.domain.errors import EXIT_INTERNAL, ProfilerError
from profiler.domain.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.domain.trial import PlannedTrial
from profiler.execution import Claim, NotTaken, OpenTrials, WorkerProgram
from profiler.execution.job import TRIAL_WORKER
from profiler.execution.pending import Pending
from profiler.storage.atomic import write_atomically
from profiler.storage.trial_files import RECORDS, trial_file

WAIT_S = 0.5
"""How long to wait for the end of a task before looking for new slots."""

MOST_LOSSES = 3
"""How often a trial is started whose slot is lost with it."""

ANNOUNCE_S = 20.0
"""How long a sweep waits for a slot before it says so."""

NO_SLOT_S = 600.0
"""How long a sweep waits while there is no slot at all."""


class NoSlotError(ProfilerError):
    """The engine offers no slot, or none on which a trial can run."""

    exit_code = EXIT_INTERNAL


@dataclass(kw_only=True)
class PlacedSweep:
    """The trials of a plan on the slots of an engine."""

    plan: Sequence[PlannedTrial]
    kind_of: KindOf
    slots: Slots
    trials: OpenTrials
    program: WorkerProgram = TRIAL_WORKER
    _pending: dict[SlotKind, Pending] = field(default_factory=dict, init=False)
    _running: dict[Hashable, list[Claim]] = field(default_factory=dict, init=False)
    _losses: dict[str, int] = field(default_factory=dict, init=False)

    def run(self) -> tuple[str, ...]:
        """Run all trials; afterwards each has a record. Return sentences about lost and retired slots.

        Raises:
            TooManyFailuresError: Trial after trial had no answer.
            NoSlotError: There was no slot for too long, or a slot reported a cause that every slot would meet.
        """
        for trial in self.plan:
            self._pending.setdefault(self.kind_of(trial.spec), Pending(())).append(trial)
        last_slot_s = time.monotonic()
        try:
            while (waiting := self._waiting()) or self._running:
                free = self.slots.free(waiting)
                if free or self._running:
                    last_slot_s = time.monotonic()
                elif time.monotonic() - last_slot_s > ANNOUNCE_S:
                    self.trials.announce("Waiting for a slot: the cluster has none that is free.")
                if time.monotonic() - last_slot_s > NO_SLOT_S:
                    raise NoSlotError(f"{_trials(waiting)} not run: there was no slot for {NO_SLOT_S:g} s.")
                self._fill(free)
                self.trials.observer.machines(self.slots.machines())
                for ended in self.slots.wait(most_s=WAIT_S):
                    self._conclude(ended)
        finally:
            self.slots.close()
            for claim in (each for group in self._running.values() for each in group):
                with suppress(ProfilerError):
                    claim.lock.release()
        return (*self._repeated(), *self.slots.notes)

    def _waiting(self) -> dict[SlotKind, int]:
        return {kind: len(pending) for kind, pending in self._pending.items() if pending}

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _fill(self, free: Mapping[Hashable, SlotKind]) -> None:
        """Start trials on free slots."""
        for slot, kind in free.items():
            pending = self._pending.get(kind)
            group = self._next(pending) if pending else []
            if group:
                self._start(slot, group)
        if free and not self._running and self._waiting():
            self.trials.announce("Waiting for trials that another sweep runs in this folder.")

    def _next(self, pending: Pending) -> list[Claim]:
        """Claim the next trial, with those that its run answers; none if all are answered or claimed by others.

        A trial of another sweep goes to the back.
        """
        for _ in range(len(pending)):
            if not pending:
                break
            trial = pending.popleft()
            claim = self.trials.take(trial)
            if isinstance(claim, Claim):
                return [claim, *self.trials.take_siblings(trial, pending)]
            if claim is NotTaken.CLAIMED:
                pending.append(trial)
        return []

    def _start(self, slot: Hashable, group: list[Claim]) -> None:
        self._running[slot] = group
        trials = tuple(claim.trial for claim in group)
        self.slots.run(
            slot,
            RemoteTask(trials=trials, versions=self.trials.versions, options=self.trials.options, program=self.program),
        )
        self.trials.observer.started(trials[0])

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _conclude(self, ended: Ended) -> None:
        """Store what a slot sent back, or put its trials back."""
        group = self._running.pop(ended.slot)
        if ended.result is None:
            self.trials.observer.lost(group[0].trial)
            for claim in reversed(group):
                self._run_again(claim, ended.reason)
            return
        self._write_files(group, ended.result)
        for claim in reversed(group):
            self._conclude_trial(claim, ended.result)
        if not ended.result.problem:
            return
        if ended.result.is_everywhere:
            raise NoSlotError(ended.result.problem)
        self.slots.retire(ended.slot, ended.result.problem)

    def _conclude_trial(self, claim: Claim, result: RemoteResult) -> None:
        """Report the record that a slot sent back; without one the trial runs again."""
        record = self.trials.store.find(claim.trial.trial_id) if record_name(claim.trial) in result.files else None
        if record is None:
            self._run_again(claim, result.problem)
            return
        record = self._with_own_paths(record, result.folder)
        claim.lock.release()
        self.trials.report(claim.trial, record)
        self._count_failures(record)

    def _with_own_paths(self, record: TrialRecord, folder: str) -> TrialRecord:
        """Return a record whose message names files here; it is stored again if it named those of a slot."""
        verdict = record.outcome.verdict
        own = str(self.trials.store.path(record.trial_id).parents[1])
        message = verdict.message.replace(folder, own) if folder else verdict.message
        if message == verdict.message:
            return record
        found = replace(record, outcome=replace(record.outcome, verdict=replace(verdict, message=message)))
        self.trials.store.write(found)
        return found

    def _write_files(self, group: Sequence[Claim], result: RemoteResult) -> None:
        """Write what a slot sent back where a worker of this machine would have written it; records last.

        Only files of the trials that were sent there.
        """
        trial_ids = {claim.trial.trial_id for claim in group}
        folder = self.trials.store.path(group[0].trial.trial_id).parents[1]
        files = {name: file for name in result.files if (file := trial_file(name)) and file.trial_id in trial_ids}
        for name in sorted(files, key=lambda name: (files[name].folder == RECORDS, name)):
            write_atomically(folder / PurePosixPath(name), result.files[name])

    def _run_again(self, claim: Claim, reason: str) -> None:
        """Put the trial of a lost slot back, or record that every slot was lost with it."""
        trial = claim.trial
        self._losses[trial.trial_id] = self._losses.get(trial.trial_id, 0) + 1
        if self._losses[trial.trial_id] < MOST_LOSSES:
            claim.lock.release()
            self._pending[self.kind_of(trial.spec)].appendleft(trial)
            return
        message = f"Its slot was lost, or sent no record, {MOST_LOSSES} times. {reason}".rstrip()
        record = self.trials.store_outcome(trial, Outcome(verdict=Verdict(status=Status.KILLED, message=message)))
        claim.lock.release()
        self.trials.report(trial, record)
        self._count_failures(record)

    def _count_failures(self, record: TrialRecord) -> None:
        left = sum(self._waiting().values()) + sum(map(len, self._running.values()))
        self.trials.count_failures(record, left=left)

    def _repeated(self) -> list[str]:
        if not (times := sum(self._losses.values())):
            return []
        once = "once a trial was" if times == 1 else f"{times} times a trial was"
        return [f"A slot or its machine was lost: {once} left without a record, and started again elsewhere."]


def _trials(waiting: Mapping[SlotKind, int]) -> str:
    count = sum(waiting.values())
    return "1 trial was" if count == 1 else f"{count} trials were"
