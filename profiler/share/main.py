"""`python -m profiler.share FOLDER ...`: measured peaks as rows of the benchmark, shown before they are written.

Exit codes: docs/exit_codes.md.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from profiler.analytical.estimate import estimate_with_replay
from profiler.command_line import as_command, print_error, print_line, print_text
from profiler.commands import COMMANDS, TABLE
from profiler.config.options.reading import show
from profiler.config.trl_releases.facts import release_of
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu_names import name_card
from profiler.domain.errors import EXIT_OK, Fault, UsageError, shortened
from profiler.domain.memory import gib_text
from profiler.domain.runs.other_runs import MonitoredRun, Watcher
from profiler.domain.runs.outcome import Outcome, Status, TrialRecord
from profiler.domain.runs.shared import Metric, Row, RowEnd
from profiler.domain.trials.trial import Backend
from profiler.estimate.job.inputs import ArchitectureLookup, architecture_lookup, job_files, read_inputs
from profiler.estimate.job.trial import parsed_trial, refuse_open, why_not_simulated, with_reward_models
from profiler.estimate.main import Simulate, simulated_outcome
from profiler.share.command import FILE, Command, read_command, usage
from profiler.share.rows import (
    LONGEST_BATCH,
    architecture_of,
    impossible_peaks,
    job_of,
    known_card,
    row_line,
    row_of,
    row_of_trial,
    rows_text,
    spec_of,
)
from profiler.storage.files.atomic import write_atomically
from profiler.storage.files.foreign_files import Kind, expanded, kind_of, reason
from profiler.storage.foreign.model_config import load_model_config
from profiler.storage.sweep_tables.earlier import StoredRuns, stored_runs

SHARE = "share"

Sizes = Mapping[Metric, int | None]


@as_command(SHARE)
def main(argv: Sequence[str] | None = None, *, simulate: Simulate = simulated_outcome) -> int:
    """Show the rows for `argv` (without the program), write them, and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    command = read_command(words)
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    faults = [*command.faults, *_faults_of_file(command)]
    if faults:
        raise UsageError(faults)
    stored = _stored(command.folders)
    rows, left_out = _rows(command, stored)
    if not rows:
        raise UsageError(left_out or [_nothing_measured(command)])
    for fault in left_out:
        print_error(f"Left out: {fault.sentence()}")
    if faults := [fault for row in rows for fault in impossible_peaks(row)]:
        raise UsageError(faults)
    simulated = _Simulated(stored.trials, simulate if command.options.confirm else None)
    for row in rows:
        print_line(row_line(row))
        print_text(_compared(row, simulated.outcome(row)))
    _write(command, rows)
    return EXIT_OK


def _faults_of_file(command: Command) -> list[Fault]:
    """Return why the rows cannot be written to the file that is named."""
    if command.options.file is None:
        return []
    path, problem = Path(command.options.file), ""
    try:
        if kind_of(path) is not Kind.MISSING:
            problem = "exists already; name a new file"
        elif kind_of(path.parent) is not Kind.FOLDER:
            problem = "is in a folder that does not exist"
    except OSError as error:
        problem = f"cannot be written ({reason(error)})"
    return [Fault(key=FILE, found=str(path), problem=problem)] if problem else []


def _write(command: Command, rows: Sequence[Row]) -> None:
    number = f"{len(rows)} {'row' if len(rows) == 1 else 'rows'}"
    if command.options.file is None:
        print_line(f"{number}. Nothing is written; add {FILE}=shared.jsonl.")
        return
    write_atomically(Path(command.options.file), rows_text(rows).encode())
    print_line(f"{number}: {command.options.file}. Nothing is sent; CONTRIBUTING.md says where it goes.")


# ---- what is stored --------------------------------------------------------------------------------------------------


def _stored(folders: Sequence[str]) -> StoredRuns:
    """Return what is stored in all folders.

    Raises:
        UsageError: One cannot be read.
    """
    found, faults = [], []
    for word in folders:
        try:
            path = expanded(word)
            if kind_of(path) is Kind.MISSING:
                problem, hint = "no such folder", "Run a sweep with backend=cuda first."
                faults.append(Fault(key="folder", found=word, problem=problem, hint=hint))
                continue
            found.append(stored_runs(path, before_table=_check_tables))
        except OSError as error:
            faults.append(Fault(key="folder", found=word, problem=f"cannot be read ({reason(error)})"))
        except UsageError as error:
            faults += error.faults
    if faults:
        raise UsageError(faults)
    return StoredRuns.together(found)


def _check_tables(path: Path) -> None:
    COMMANDS[SHARE].uses[TABLE].check("folder", str(path))


def _rows(command: Command, stored: StoredRuns) -> tuple[list[Row], list[Fault]]:
    """Return the rows of what was measured, each once, and a fault per trial or training that is left out.

    Raises:
        UsageError: The job of a training is wrong.
    """
    rows: list[Row] = []
    left_out = [*stored.problems, *_not_measured(stored.trials)]
    for record in stored.trials:
        if record.spec.backend is Backend.CUDA:
            try:
                rows.append(row_of_trial(record))
            except UsageError as error:
                left_out += error.faults
    ended, others = _newest_training(command, stored.monitored)
    if ended:
        rows.append(_row_of_training(command, ended))
    by_name = {row.row_id: row for row in rows}
    return [by_name[name] for name in sorted(by_name)], [*left_out, *others]


def _not_measured(trials: Sequence[TrialRecord]) -> Iterator[Fault]:
    """Yield a fault per backend that measures nothing, with the names of its trials."""
    for backend in dict.fromkeys(record.spec.backend for record in trials):
        if backend is not Backend.CUDA:
            names = [record.trial_id for record in trials if record.spec.backend is backend]
            problem = f"measures nothing ({len(names)} of the trials: {shortened(', '.join(names), 100)})"
            yield Fault(key="backend", found=backend, problem=problem)


def _nothing_measured(command: Command) -> Fault:
    problem = "has nothing measured that a row can have"
    hint = "Run a sweep with backend=cuda, or a training with VramCallback, on a real card."
    return Fault(key="folder", found=", ".join(command.folders), problem=problem, hint=hint)


# ---- trainings -------------------------------------------------------------------------------------------------------


def _newest_training(command: Command, runs: Sequence[MonitoredRun]) -> tuple[list[MonitoredRun], list[Fault]]:
    """Return the ranks of the newest training if the command describes its job, and a fault per other run.

    Raises:
        UsageError: A job is described, and there is no training.
    """
    trainings = [run for run in runs if run.watcher is Watcher.CALLBACK]
    if command.names_a_job and not trainings:
        problem = "describes the job of a training by VramCallback, and none is stored; trials state their own"
        raise UsageError([Fault(key="job", found=", ".join(command.folders), problem=problem)])
    newest = max(map(_start, trainings), default="")
    hint = "Add config=FILE or model=NAME."
    problems: Mapping[str, tuple[str, str]] = {
        **{run.run_id: ("is of python -m profiler.monitor, whose samples may miss a peak", "") for run in runs},
        **{_start(run): ("is earlier than the training whose job is described", "") for run in trainings},
        newest: ("was kept by VramCallback, which does not know the job", hint),
    }
    taken = [run for run in trainings if _start(run) == newest and command.names_a_job]
    others = dict.fromkeys(_start(run) for run in runs if run not in taken)
    return taken, [
        Fault(key="run", found=name, problem=problem, hint=hint)
        for name in others
        for problem, hint in [problems[name]]
    ]


def _start(run: MonitoredRun) -> str:
    """Return what the ranks of one training share of their names."""
    return run.run_id.partition("-rank")[0] if run.rank is not None else run.run_id


def _row_of_training(command: Command, ranks: Sequence[MonitoredRun]) -> Row:
    """Return the row of a training: that of the rank with the highest peak.

    Raises:
        UsageError: The job is wrong, or the record has no answer.
    """
    run = max(ranks, key=lambda each: each.outcome.peaks.allocated_bytes or 0)
    key = f"run {run.run_id}"
    card = known_card(key, run.outcome)
    stated = command.rest.keys.get("gpu", card.name)
    if name_card(show(stated)).name != card.name:
        problem = f"is not the card that ran, {card.title}; leave it out"
        raise UsageError([Fault(key="gpu", found=show(stated), problem=problem)])
    steps = {"steps": run.outcome.work.steps_run} if run.outcome.work.steps_run else {}
    processes = {"num_processes": len(ranks)} if len(ranks) > 1 else {}
    keys = {**steps, **processes, **command.rest.keys, "gpu": card.name}
    trl = release_of(run.versions.trl or "") if command.rest.configs else None
    options = replace(command.rest.options, trl=command.rest.options.trl or trl)
    rest = replace(command.rest, keys=keys, options=options)
    files = job_files(rest)
    if files.verl is not None:
        problem = "is a configuration of verl, whose memory VramCallback does not record"
        raise UsageError([Fault(key="config", found=", ".join(rest.configs), problem=problem)])
    architectures = architecture_lookup(load_model_config)
    inputs, architectures = with_reward_models(read_inputs(rest, files.part), architectures)
    if inputs.ignored:
        print_error(inputs.ignored)
    if inputs.open_sizes:
        problem = f"does not state a size that a row needs. {inputs.open_sizes.rstrip('.')}"
        raise UsageError([Fault(key="config", found=", ".join(rest.configs), problem=problem)])
    trial = parsed_trial(inputs, _builtin_only(architectures))
    refuse_open(trial)
    for note in trial.notes:
        print_error(note)
    outcome = run.outcome
    if run.gpus and outcome.measured is not None:
        outcome = replace(outcome, measured=replace(outcome.measured, gpu_uuid=run.gpus[0].uuid))
    return row_of(key, trial.spec, run.versions, outcome, missing=(LONGEST_BATCH,))


def _builtin_only(architectures: ArchitectureLookup) -> ArchitectureLookup:
    def found(model: str) -> Architecture:
        architecture_of(model)
        return architectures(model)

    return found


# ---- how far predictions are -----------------------------------------------------------------------------------------


class _Simulated:
    """Simulated trials of the same jobs: stored ones, and others if they may run."""

    def __init__(self, trials: Iterable[TrialRecord], simulate: Callable[..., Outcome] | None) -> None:
        self._simulate = simulate
        self._stored = {
            _job_key(job_of(record.spec)): record.outcome
            for record in trials
            if record.spec.backend is Backend.SIMULATED and record.outcome.status in (Status.OK, Status.OOM)
        }

    def outcome(self, row: Row) -> Outcome | str:
        """Return the simulation of a row, or why there is none."""
        if (stored := self._stored.get(_job_key(row.job))) is not None:
            return stored
        if self._simulate is None:
            return "not simulated; add confirm=true"
        spec = spec_of(row, architecture_of)
        if refused := why_not_simulated([spec], architecture_of):
            return refused
        found = self._simulate(spec)
        return found if found.status in (Status.OK, Status.OOM) else f"not simulated: {found.message}"


def _job_key(job: Mapping[str, object]) -> str:
    return json.dumps(job, sort_keys=True)


def _compared(row: Row, simulated: Outcome | str) -> str:
    """Return how far the estimate and the simulation of a row are, one line per metric that both have."""
    spec = spec_of(row, architecture_of)
    try:
        found = estimate_with_replay(spec, architecture_of(spec.model))
    except UsageError as error:
        estimated, why = {}, f"no estimate: {error.faults[0].sentence()}"
    else:
        estimated, why = {Metric.ALLOCATED: found.peak_allocated_bytes, Metric.RESERVED: found.peak_reserved_bytes}, ""
    lines = [_line(row, metric, estimated, simulated) for metric in (Metric.ALLOCATED, Metric.RESERVED)]
    notes = [why, simulated if isinstance(simulated, str) else ""]
    return "".join(f"  {line}\n" for line in (*lines, *notes) if line)


def _line(row: Row, metric: Metric, estimated: Sizes, simulated: Outcome | str) -> str:
    """Return the line of a metric; empty if the row has no peak of it."""
    size = row.peak(metric)
    sizes = {"estimate": estimated.get(metric)}
    if isinstance(simulated, Outcome):
        peaks = simulated.peaks
        sizes["simulation"] = peaks.allocated_bytes if metric is Metric.ALLOCATED else peaks.reserved_bytes
    if row.end is RowEnd.OOM and metric is Metric.ALLOCATED:
        found = sizes["estimate"]
        needs = "unknown" if found is None else gib_text(found, 2)
        return f"out of memory on {gib_text(row.card.memory_bytes, 2)}; by the estimate it needs {needs} in tensors"
    if size is None:
        return ""
    is_full = isinstance(simulated, Outcome) and simulated.status is Status.OOM
    parts = [
        f"{name} out of memory" if name == "simulation" and is_full else f"{name} {100 * (other / size - 1):+.1f} %"
        for name, other in sizes.items()
        if other is not None
    ]
    return f"{metric.value} {gib_text(size, 2)}: {', '.join(parts) or 'nothing to compare'}"
