"""Slots of other machines for the loop of a sweep: claims are taken and records written here, and trials run there."""

import time
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from profiler.cluster.remote import RemoteResult, RemoteTask, record_name
from profiler.cluster.slots import EndedTask, KindOf, RemoteSlots, SlotKind
from profiler.domain.errors import EXIT_INTERNAL, ProfilerError
from profiler.domain.machines.engines import Machines
from profiler.domain.runs.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.domain.trials.trial import PlannedTrial, TrialSpec
from profiler.execution import LockedTrial, OpenTrials, WorkerProgram
from profiler.execution.job import TRIAL_WORKER
from profiler.execution.runner import RunningSweep
from profiler.execution.slots import Ended, Start
from profiler.storage.files.atomic import write_atomically
from profiler.storage.files.trial_files import RECORDS, trial_file

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


def run_placed(
    plan: Sequence[PlannedTrial],
    *,
    kind_of: KindOf,
    slots: RemoteSlots,
    trials: OpenTrials,
    program: WorkerProgram = TRIAL_WORKER,
) -> tuple[str, ...]:
    """Run every trial of `plan` on slots of other machines; afterwards each has a record.

    Args:
        plan: The trials, in the order to run them.
        kind_of: Returns the slots that a trial needs.
        slots: The slots; none has been started.
        trials: What happens to a trial before and after its run.
        program: The code of the workers.

    Returns:
        Sentences about lost and retired slots.

    Raises:
        TooManyFailuresError: Trial after trial had no answer.
        NoSlotError: There was no slot for too long, or a slot reported a cause that every slot would meet.
    """
    placed = PlacedSlots(slots=slots, kind=kind_of, trials=trials, program=program)
    RunningSweep(slots=placed, trials=trials).run(plan)
    return placed.notes


@dataclass(kw_only=True)
class PlacedSlots:
    """Slots of an engine, with what is sent to them and what follows from what they send back."""

    slots: RemoteSlots
    kind: KindOf
    trials: OpenTrials
    program: WorkerProgram = TRIAL_WORKER
    are_fixed: bool = field(default=False, init=False)
    _running: dict[Hashable, Sequence[LockedTrial]] = field(default_factory=dict, init=False)
    _losses: dict[str, int] = field(default_factory=dict, init=False)
    _last_slot_s: float = field(default_factory=time.monotonic, init=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about lost and retired slots."""
        times = sum(self._losses.values())
        once = "once a trial was" if times == 1 else f"{times} times a trial was"
        lost = f"A slot or its machine was lost: {once} left without a record, and started again elsewhere."
        return (*([lost] if times else []), *self.slots.notes)

    # ---- starting ----------------------------------------------------------------------------------------------------

    def kind_of(self, spec: TrialSpec) -> SlotKind:
        """Return the slots that a trial needs."""
        return self.kind(spec)

    def free(self, waiting: Mapping[SlotKind, int]) -> Mapping[SlotKind, Sequence[Hashable]]:
        """Return the slots that can take a trial now, by kind; start slots for what waits.

        Raises:
            NoSlotError: There was no slot for too long.
        """
        free: dict[SlotKind, list[Hashable]] = defaultdict(list)
        for slot, kind in self.slots.free(waiting).items():
            free[kind].append(slot)
        self._check_for_slots(bool(free), sum(waiting.values()))
        return free

    def _check_for_slots(self, is_one_free: bool, waiting: int) -> None:
        now_s = time.monotonic()
        if is_one_free or self._running:
            self._last_slot_s = now_s
        elif now_s - self._last_slot_s > ANNOUNCE_S:
            self.trials.announce("Waiting for a slot: the cluster has none that is free.")
        if now_s - self._last_slot_s > NO_SLOT_S:
            trials = "1 trial was" if waiting == 1 else f"{waiting} trials were"
            raise NoSlotError(f"{trials} not run: there was no slot for {NO_SLOT_S:g} s.")

    def may_start(self, _trial: PlannedTrial) -> bool:
        """Return true: a free slot has what the trials of its kind need."""
        return True

    def start(self, slot: Hashable, claims: Sequence[LockedTrial]) -> Start:
        """Send the trials to a slot."""
        self._running[slot] = claims
        trials = tuple(claim.trial for claim in claims)
        options, versions = self.trials.options, self.trials.versions
        self.slots.run(slot, RemoteTask(trials=trials, versions=versions, options=options, program=self.program))
        return Start.RUNS

    # ---- ending ------------------------------------------------------------------------------------------------------

    def wait(self) -> Iterator[Ended]:
        """Yield the runs that have ended, after a while at most."""
        for ended in self.slots.wait(most_s=WAIT_S):
            yield self._ended(ended, self._running.pop(ended.slot))

    def machines(self) -> Machines:
        """Return the machines of the engine, and how many of them run a task."""
        return self.slots.machines()

    def close(self) -> None:
        """End all slots with their processes."""
        self.slots.close()

    def _ended(self, ended: EndedTask, claims: Sequence[LockedTrial]) -> Ended:
        """Store what a slot sent back, and return it."""
        result = ended.result
        if result is None:
            return Ended(slot=ended.slot, records=self._given_up(claims, ended.reason), is_lost=True)
        self._write_files(claims, result)
        sent = {claim.trial.trial_id: self._sent(claim, result) for claim in claims}
        records = {trial_id: record for trial_id, record in sent.items() if record is not None}
        missing = [claim for claim in claims if claim.trial.trial_id not in records]
        error = NoSlotError(result.problem) if result.is_everywhere else None
        if result.problem and error is None:
            self.slots.retire(ended.slot, result.problem)
        return Ended(slot=ended.slot, records={**records, **self._given_up(missing, result.problem)}, error=error)

    def _sent(self, claim: LockedTrial, result: RemoteResult) -> TrialRecord | None:
        """Return the record that a slot sent back; None without one."""
        record = self.trials.store.find(claim.trial.trial_id) if record_name(claim.trial) in result.files else None
        return self._with_own_paths(record, result.folder) if record is not None else None

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

    def _write_files(self, claims: Sequence[LockedTrial], result: RemoteResult) -> None:
        """Write what a slot sent back where a worker of this machine would have written it; records last.

        Only files of the trials that were sent there.
        """
        trial_ids = {claim.trial.trial_id for claim in claims}
        folder = self.trials.store.path(claims[0].trial.trial_id).parents[1]
        files = {name: file for name in result.files if (file := trial_file(name)) and file.trial_id in trial_ids}
        for name in sorted(files, key=lambda name: (files[name].folder == RECORDS, name)):
            write_atomically(folder / PurePosixPath(name), result.files[name])

    def _given_up(self, without_record: Sequence[LockedTrial], reason: str) -> dict[str, TrialRecord]:
        """Count losses of trials, and return records of those with which every slot was lost; the others run again."""
        message = f"Its slot was lost, or sent no record, {MOST_LOSSES} times. {reason}".rstrip()
        found = {}
        for trial in (claim.trial for claim in without_record):
            self._losses[trial.trial_id] = self._losses.get(trial.trial_id, 0) + 1
            if self._losses[trial.trial_id] >= MOST_LOSSES:
                outcome = Outcome(verdict=Verdict(status=Status.KILLED, message=message))
                found[trial.trial_id] = self.trials.store_outcome(trial, outcome)
        return found
