"""Running both sides of the sampled trials by the sweep's own workers: emulated by card, then simulated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from profiler.analysis.times.sweep_time import SweepTally
from profiler.config.options.run_options import RunOptions
from profiler.config.trials.identity import labels, trial_id
from profiler.domain.runs.outcome import Status, TrialRecord, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.execution.pythons import InterpreterOf, emulated_workers, own_python
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.record_store import RecordStore

GRID = "emulated"

_NO_ANSWER = (Status.FAILED, Status.TIMEOUT)
"""Ends without an answer that are compared like others. To run such a trial again, delete its record."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of both backends, with the environment of its workers."""

    backend: Backend
    versions: Versions
    interpreter_of: InterpreterOf

    def trial(self, spec: TrialSpec) -> PlannedTrial:
        """Return a sampled trial as one of this side."""
        own = replace(spec, backend=self.backend)
        (label,) = labels([own])
        return PlannedTrial(trial_id=trial_id(own, self.versions), grid=GRID, label=label, spec=own)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A sampled trial and its records; None where it has not run."""

    number: int
    """Place in the sample, from 0."""
    emulated: TrialRecord | None
    simulated: TrialRecord | None

    @property
    def is_complete(self) -> bool:
        """Whether the trial has ended on both sides."""
        return _has_ended(self.emulated) and _has_ended(self.simulated)


def sides(options: RunOptions) -> tuple[Side, Side]:
    """Return the emulated and the simulated side.

    Raises:
        UsageError: No Python with torch's CUDA build is at hand, or it cannot be used.
    """
    workers = emulated_workers(options)
    return (
        Side(backend=Backend.EMULATED, versions=workers.versions, interpreter_of=workers.interpreter_of),
        Side(backend=Backend.SIMULATED, versions=installed_versions(), interpreter_of=own_python),
    )


class RunSide(Protocol):
    """Runs the trials of one side: `run_side`."""

    def __call__(self, trials: Sequence[PlannedTrial], side: Side, *, store: RecordStore, options: RunOptions) -> None:
        """Leave a record of each trial in `store`."""


def run_pending(
    specs: Sequence[TrialSpec],
    both: Sequence[Side],
    *,
    store: RecordStore,
    options: RunOptions,
    at_most: int | None,
    run: RunSide,
) -> int:
    """Run trials that have no record yet, at most `at_most` on each side; return how many are left."""
    left = 0
    for side in both:
        pending = [trial for trial in map(side.trial, specs) if not _has_ended(store.find(trial.trial_id))]
        # By card, because each card has a process of its own that imports torch.
        pending.sort(key=lambda trial: str(trial.spec.gpu))
        now = pending[:at_most]
        if now:
            run(now, side, store=store, options=options)
        left += len(pending) - len(now)
    return left


def pairs(specs: Sequence[TrialSpec], both: Sequence[Side], store: RecordStore) -> list[Pair]:
    """Return the records of the sampled trials, in order."""
    emulated, simulated = both
    return [
        Pair(
            number=number,
            emulated=store.find(emulated.trial(spec).trial_id),
            simulated=store.find(simulated.trial(spec).trial_id),
        )
        for number, spec in enumerate(specs)
    ]


def _has_ended(record: TrialRecord | None) -> bool:
    """Whether a trial need not run again: it is answered, it failed, or it took too long."""
    return record is not None and (record.outcome.status.answered or record.outcome.status in _NO_ANSWER)


def run_side(trials: Sequence[PlannedTrial], side: Side, *, store: RecordStore, options: RunOptions) -> None:
    """Run each trial in a process of its own, in the environment of its side."""
    from profiler.execution import run_trials
    from profiler.execution.job import TRIAL_WORKER
    from profiler.rendering.layouts.terminal import TerminalConsole
    from profiler.rendering.live.progress import SweepProgress

    with SweepProgress(SweepTally(trials), console=TerminalConsole()) as observer:
        run_trials(
            trials,
            options=options,
            store=store,
            versions=side.versions,
            observer=observer,
            program=replace(TRIAL_WORKER, interpreter_of=side.interpreter_of),
        )
