"""Shared by the tests of execution: plans, an observer that remembers, and checks of processes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from profiler.domain.machines.engines import Machines
from profiler.domain.runs.outcome import TrialRecord, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.execution import WorkerProgram

VERSIONS = Versions(torch=None, trl=None, transformers=None, peft=None, bitsandbytes=None, profiler="0")

BY_LABEL = WorkerProgram(target="worker_targets:by_label")
"""Workers that do what the trial's label says."""

LIMIT_S = 300.0
"""Limit against hangs, for events that must happen; not a limit of speed."""


def wait_until(happened: Callable[[], bool]) -> None:
    """Wait for an event, at most `LIMIT_S`."""
    until_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < until_s, "It did not happen."
        time.sleep(0.02)


def planned(trial_id: str, label: str = "ok") -> PlannedTrial:
    return PlannedTrial(
        trial_id=trial_id, grid="tests", label=label, spec=TrialSpec(backend=Backend.CPU, gpu=None, model="tiny")
    )


def on_cuda(trial_id: str, label: str = "ok", **changes: object) -> PlannedTrial:
    spec = TrialSpec(backend=Backend.CUDA, gpu=None, model="tiny")
    return PlannedTrial(trial_id=trial_id, grid="tests", label=label, spec=replace(spec, **changes))


@dataclass
class Witness:
    """An observer that remembers."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    records: dict[str, TrialRecord] = field(default_factory=dict)
    waits: list[str] = field(default_factory=list)
    """Sentences about what the sweep waited for."""
    losses: list[str] = field(default_factory=list)
    """Trials whose worker or GPU was lost."""
    seen: Machines = field(default_factory=Machines)
    """What the engine said last of its machines."""
    given_up: tuple[str, ...] = ()
    """Sentences about GPUs and restarts at the end of the sweep."""

    def started(self, trial: PlannedTrial) -> None:
        self.calls.append(("started", trial.trial_id))

    def lost(self, trial: PlannedTrial) -> None:
        self.losses.append(trial.trial_id)

    def machines(self, found: Machines) -> None:
        self.seen = found

    def waiting(self, reason: str) -> None:
        self.waits.append(reason)

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        self.calls.append(("finished", trial.trial_id))
        self.records[trial.trial_id] = record


class Patient(Witness):
    """Blocks the sweep after the start of a trial until that trial has noted its processes.

    The trial's time runs meanwhile, so that a short `timeout_s` ends then, and not before.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def started(self, trial: PlannedTrial) -> None:
        super().started(trial)
        wait_until(lambda: bool(noted_pids(self._folder)))


def noted_pids(folder: Path) -> list[int]:
    """Return the processes that a worker has noted in `pids.txt`."""
    path = folder / "pids.txt"
    return [int(pid) for pid in path.read_text().split()] if path.exists() else []


def is_gone(pid: int, within_s: float = LIMIT_S) -> bool:
    """Return whether the process ends in time. A zombie counts as gone: it holds nothing."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return False
