"""Engines without processes: scripted ends of workers and slots, and a list of all that a sweep does with them."""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import builders
from scripted import ScriptedNvml
from witness import VERSIONS, on_cuda, planned

from profiler.cluster.placing import run_placed
from profiler.cluster.remote import RemoteResult
from profiler.cluster.slots import EndedTask, SlotKind
from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.engines import Machines
from profiler.domain.runs.outcome import Status, TrialRecord
from profiler.domain.trials.trial import Backend
from profiler.execution import GpuPool, OpenTrials, WorkerProgram, run_trials
from profiler.execution.processes import worker_process
from profiler.execution.processes.warm import WarmProcess
from profiler.execution.processes.worker_process import ForkedProcess
from profiler.storage.stores.record_store import RecordStore

OK, OOM, FAILED = "ok", "oom", "failed"
"""A record of this status."""
SILENT, KILLED, LOST, UNFIT = "silent", "killed", "lost", "unfit"
"""No record: an end without a word, by SIGKILL, with the warmed process or the slot, or for a cause of all workers."""
FULL = "unusable"
"""The slot says that no trial can run on it."""

EXIT_CODES = {OK: 0, OOM: 0, FAILED: 0, SILENT: 3, KILLED: -9, LOST: 255, UNFIT: 113}
NOBODY = 2**30
"""Above all process ids."""


class Script:
    """What happens to each trial, and everything that a sweep did, one line per event."""

    def __init__(self, folder: Path, ends: Mapping[str, Sequence[str]], **more: object) -> None:
        self.folder, self.ends = folder, ends
        self.after = more.get("after", {})
        """Trials whose run ends only after another one has its record."""
        self.held = dict(more.get("held", {}))
        """How many claims on a trial fail, because another sweep has it."""
        self.raise_at: str = more.get("raise_at", "")
        """The event at which Ctrl-C is pressed."""
        self.forgotten = more.get("forgotten", ())
        """Siblings for which a worker leaves no record."""
        self.events: list[str] = []
        self.finished_trials: set[str] = set()
        self._runs: dict[str, int] = defaultdict(int)

    def note(self, event: str) -> None:
        """Add an event."""
        self.events.append(event)
        if self.raise_at and re.sub(r"([0-9a-f])\1{15}", r"\1", event) == self.raise_at:
            self.raise_at = ""
            raise KeyboardInterrupt

    def note_once(self, event: str) -> None:
        """Add an event, unless it was one of the last two."""
        if event not in self.events[-2:]:
            self.note(event)

    def end_of(self, trial_id: str) -> str:
        """Return how the next run of a trial ends."""
        name = trial_id[0]
        self._runs[name] += 1
        ends = self.ends.get(name, (OK,))
        return ends[min(self._runs[name], len(ends)) - 1]

    def record(self, trial, how):
        """Return a trial's record."""
        outcome = builders.failed() if how == FAILED else builders.outcome_of(Status(how))
        return TrialRecord.of(trial, versions=VERSIONS, outcome=outcome)

    # ---- the observer

    def started(self, trial):
        self.note(f"started {trial.trial_id}")

    def lost(self, trial):
        self.note(f"lost {trial.trial_id}")

    def machines(self, found):
        self.note_once(f"{found.nodes_busy} nodes are busy")

    def waiting(self, reason):
        self.note(f"waiting: {reason}")

    def finished(self, trial, record):
        self.finished_trials.add(trial.trial_id[0])
        self.note(f"finished {trial.trial_id} {record.outcome.status}: {record.outcome.message}".rstrip(": "))


class Store(RecordStore):
    """A folder that notes claims and records of the parent."""

    def __init__(self, script):
        super().__init__(script.folder / "grid")
        self._script = script

    def claim(self, trial_id, *, wait):
        if self._script.held.get(trial_id[0], 0) > 0:
            self._script.held[trial_id[0]] -= 1
            self._script.note(f"claim {trial_id}: another sweep has it{', after a while' * wait}")
            return None
        self._script.note(f"claim {trial_id}")
        return _Held(self._script, trial_id)

    def write(self, record):
        self._script.note(f"write {record.trial_id} {record.outcome.status}")
        super().write(record)


class _Held:
    def __init__(self, script, trial_id):
        self._script, self._trial_id = script, trial_id

    def release(self):
        self._script.events.append(f"release {self._trial_id}")


class Pool(GpuPool):
    """GPUs that note who has them."""

    script: Script

    def take(self):
        found = super().take()
        self.script.events.append(f"take {found.uuid if found else 'no GPU'}")
        return found

    def give_back(self, slot):
        self.script.events.append(f"give back {slot.uuid}")
        super().give_back(slot)

    def retire(self, slot, reason):
        self.script.events.append(f"retire {slot.uuid}: {reason}")
        super().retire(slot, reason)


class _Worker(ForkedProcess):
    """A worker that has written what it leaves, and ends when it may."""

    def __init__(self, script, job, how, pid):
        self._script, self._how, self._pid = script, how, pid
        self._after = script.after.get(job.trial.trial_id[0])
        self._trial_id = job.trial.trial_id
        self.signals: list[int] = []
        reading, writing = os.pipe()
        os.close(writing)
        self._sentinel = reading

    pid = property(lambda self: self._pid)
    sentinel = property(lambda self: self._sentinel)
    has_ended = property(lambda self: self.has_exited)
    exit_code_due_s = property(lambda self: float("inf"))
    is_exit_code_lost = property(lambda self: self._how == LOST and self.has_ended)

    @property
    def has_exited(self):
        return bool(self.signals) or self._after is None or self._after in self._script.finished_trials

    @property
    def exit_code(self):
        return -self.signals[0] if self.signals else EXIT_CODES[self._how]

    def close(self):
        os.close(self._sentinel)
        self._script.events.append(f"end of the worker of {self._trial_id}")


def on_this_machine(script, plan, monkeypatch, *, jobs=1, gpus=(), nvml=None, pruning=None, failed_forks=0):
    """Run a plan with `run_trials` and scripted workers, and return all that happened."""
    workers: dict[int, _Worker] = {}
    failures = [None] * failed_forks

    def fork(_self, job):
        if failures:
            script.note("the warmed process has ended")
            return failures.pop()
        how = script.end_of(job.trial.trial_id)
        also = f" for {[each.trial_id for each in job.siblings]}" if job.siblings else ""
        script.note(f"fork {job.trial.trial_id}{also} on {job.place.gpu_uuids}")
        for trial in (job.trial, *job.siblings):
            if how in (OK, OOM, FAILED) and trial.trial_id[0] not in script.forgotten:
                RecordStore(Path(job.store_folder)).write(script.record(trial, how))
        Path(job.stderr_path).parent.mkdir(parents=True, exist_ok=True)
        Path(job.stderr_path).write_text("No worker can do it.\n" if how == UNFIT else "")
        worker = _Worker(script, job, how, NOBODY + len(workers))
        workers[worker.pid] = worker
        return worker

    def kill_group(pid, number):
        if not workers[pid].has_exited:
            script.events.append(f"signal {int(number)} to the worker of {workers[pid]._trial_id}")
            workers[pid].signals.append(int(number))

    for name, value in {"start": lambda _: None, "prepare": lambda _: None, "fork": fork, "problems": ()}.items():
        monkeypatch.setattr(WarmProcess, name, value)
    monkeypatch.setattr(worker_process.os, "killpg", kill_group)
    pool = Pool(gpus, nvml=nvml or ScriptedNvml(), lock_folder=script.folder / "locks") if gpus else None
    if pool is not None:
        pool.script = script
    return _events(
        script,
        lambda: run_trials(
            plan,
            options=RunOptions(jobs=jobs),
            store=Store(script),
            versions=VERSIONS,
            observer=script,
            gpus=pool,
            pruning=pruning,
            program=WorkerProgram(target="none:none"),
        ),
    )


class _Slots:
    """Slots of a cluster whose tasks end as the script says."""

    def __init__(self, script, kinds):
        self.script, self.notes = script, []
        self.idle = dict(kinds)
        self.busy = {}

    def free(self, waiting):
        self.script.note_once(f"free {sorted(waiting.values())}")
        return dict(self.idle)

    def run(self, slot, task):
        self.busy[slot] = (self.idle.pop(slot), task)
        self.script.note(f"run {[trial.trial_id for trial in task.trials]} on {slot}")

    def wait(self, *, most_s):
        return [self._end(slot) for slot, (_, task) in list(self.busy.items()) if self._may_end(task)]

    def _may_end(self, task):
        after = self.script.after.get(task.trials[0].trial_id[0])
        return after is None or after in self.script.finished_trials

    def _end(self, slot):
        kind, task = self.busy.pop(slot)
        self.idle[slot] = kind
        how = self.script.end_of(task.trials[0].trial_id)
        if how == LOST:
            return EndedTask(slot=slot, result=None, reason="The node has died.")
        problem = f"The slot is {how}." if how in (UNFIT, FULL) else ""
        if how not in (OK, OOM, FAILED):
            return EndedTask(slot=slot, result=RemoteResult(problem=problem, is_everywhere=how == UNFIT))
        folder = self.script.folder / "remote"
        for trial in task.trials:
            if trial.trial_id[0] not in self.script.forgotten:
                RecordStore(folder).write(self.script.record(trial, how))
        paths = list(folder.rglob("*.json"))
        files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
        for path in paths:
            path.unlink()
        return EndedTask(slot=slot, result=RemoteResult(files=files, folder=str(folder)))

    def retire(self, slot, reason):
        del self.idle[slot]
        self.notes.append(reason)
        self.script.note(f"retire {slot}: {reason}")

    def machines(self):
        return Machines(nodes=2, nodes_busy=len(self.busy))

    def close(self):
        self.script.events.append("close the slots")


def on_a_cluster(script, plan, *, kinds=None, kind_of=lambda _: SlotKind(), pruning=None):
    """Run a plan on scripted slots, and return all that happened."""
    slots = _Slots(script, kinds or {"s1": SlotKind(), "s2": SlotKind()})
    return _events(
        script,
        lambda: run_placed(
            plan,
            kind_of=kind_of,
            slots=slots,
            trials=OpenTrials(
                options=RunOptions(), store=Store(script), versions=VERSIONS, observer=script, pruning=pruning
            ),
        ),
    )


def _events(script, run):
    try:
        notes = run()
    except BaseException as error:
        script.events.append(f"{type(error).__name__}: {error}")
    else:
        script.events += [f"note: {note}" for note in notes]
    left = sorted(path.name for path in script.folder.rglob("*") if path.suffix in (".part", ".lock", ".beat"))
    events = "\n".join([*script.events, f"left {left}"]).replace(str(script.folder), "FOLDER")
    return re.sub(r"([0-9a-f])\1{15}", r"\1", events).splitlines()


# ---- trials ----------------------------------------------------------------------------------------------------------


def trials(names):
    return [_named(name, planned(name)) for name in names]


def measured(names, **changes):
    return [_named(name, on_cuda(name, **changes)) for name in names]


def siblings(names):
    """Return trials that one simulated run answers."""
    cards = ("h100-80gb", "h200-141gb", "h100-nvl-94gb", "h20-96gb")
    of_card = {name: planned(name) for name in names}
    return [
        _named(name, replace(trial, spec=replace(trial.spec, backend=Backend.SIMULATED, gpu=card)))
        for (name, trial), card in zip(of_card.items(), cards, strict=False)
    ]


def _named(name, trial):
    return replace(trial, trial_id=name * 16, label=name)
