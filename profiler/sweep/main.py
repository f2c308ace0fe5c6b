"""`python -m profiler.sweep +grid=NAME [key=value ...]`: from a question to the table that answers it.

Hydra composes one configuration; the points of the grid are expanded, read and checked here, all before the first
trial starts; then each trial runs in a process of its own, and the results are drawn.

Exit codes: 0 every trial answered (out of memory is an answer), 2 something is wrong with the input, 3 some trials
failed, 34 too many failed in a row, 130 interrupted.
"""

import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from profiler.allocator import parse_alloc_conf
from profiler.config.architecture import read_architecture
from profiler.config.grid import Grid, expand, read_grid
from profiler.config.labels import labels
from profiler.config.model_lookup import builtin_architecture
from profiler.config.run_settings import RunSettings, read_run_settings
from profiler.config.specification import ArchitectureLookup, parse_points
from profiler.domain.architecture import Architecture
from profiler.domain.errors import (
    EXIT_OK,
    EXIT_SIGNAL_BASE,
    EXIT_SOME_TRIALS_FAILED,
    ProfilerError,
    UsageError,
)
from profiler.domain.outcome import Estimate, TrialRecord, Versions
from profiler.domain.trial import Backend, PlannedTrial, TrialSpec
from profiler.storage.memory_snapshot import snapshot_path
from profiler.sweep.backend import jobs_for, real_gpu_faults, resolve_auto
from profiler.sweep.command import Command, read_command
from profiler.sweep.composition import compose, show_instead
from profiler.sweep.folder import make_writable, writable_faults
from profiler.sweep.parts import SweepParts
from profiler.sweep.plan import estimates_by_trial, listing, plan_trials

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep that is fit to run."""

    grid: Grid
    settings: RunSettings
    folder: Path
    specs: tuple[TrialSpec, ...]
    versions: Versions
    backend_line: str
    """Which backend `auto` became and why; empty where none was asked for."""


def main(argv: Sequence[str] | None = None, *, parts: SweepParts | None = None) -> int:
    """Run the sweep that `argv` (without the program) asks for; gives the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        return _main(words, parts or SweepParts())
    except ProfilerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted. What has finished is kept; the same command goes on from there.\n")
        return EXIT_SIGNAL_BASE + signal.SIGINT


def _main(words: Sequence[str], parts: SweepParts) -> int:
    command = read_command(words)
    if command.show_flags and not command.faults:
        return show_instead(command)
    architecture_of = _architecture_lookup(parts.load_model_config)

    def estimate(spec: TrialSpec) -> Estimate:
        return parts.estimate(spec, architecture_of(spec.model))

    sweep = _prepare(command, parts, architecture_of)
    if sweep.backend_line:
        _say(sweep.backend_line)
    plan = plan_trials(sweep.grid.name, sweep.specs, sweep.versions)
    if sweep.settings.dry_run:
        _say(listing(plan, estimates_by_trial({trial.trial_id: trial.spec for trial in plan}, estimate)))
        return EXIT_OK
    make_writable(sweep.folder)
    try:
        _run(sweep, plan, parts)
    except (KeyboardInterrupt, ProfilerError):
        _assemble(sweep, parts, estimate=estimate, command_line=shlex.join(words))
        raise
    records = _assemble(sweep, parts, estimate=estimate, command_line=shlex.join(words))
    return _conclude(sweep, plan, parts, records)


def _prepare(command: Command, parts: SweepParts, architecture_of: ArchitectureLookup) -> Sweep:
    """Everything checked that can be checked before the first trial.

    Raises:
        UsageError: Carries every fault that was found.
    """
    faults = list(command.faults)

    def attempt(step: Callable[[], Result]) -> Result | None:
        try:
            return step()
        except UsageError as error:
            faults.extend(error.faults)
            return None

    values = attempt(lambda: compose(command))
    if values is None:
        raise UsageError(faults)
    name = command.grids[0]
    settings = attempt(lambda: read_run_settings(values))
    grid = attempt(lambda: read_grid(name, values))
    visible, versions = parts.visible_gpus(), parts.installed_versions()
    points = attempt(lambda: expand(grid, command.axes)) if grid else None
    points, backend_line = resolve_auto(points or [], visible, torch_version=versions.torch)
    specs = attempt(lambda: parse_points(points, architecture_of=architecture_of)) or ()
    faults.extend(real_gpu_faults(points, visible, torch_version=versions.torch))
    for settings_text in dict.fromkeys(spec.alloc_conf for spec in specs if spec.backend is Backend.SIMULATED):
        # What the model of the allocator knows; a real one complains by itself.
        attempt(partial(parse_alloc_conf, settings_text))
    results_dir = values.get("results_dir")
    if isinstance(results_dir, str) and values.get("dry_run") is not True:
        faults.extend(writable_faults(Path(results_dir) / name))
    if faults or settings is None or grid is None:
        raise UsageError(tuple(dict.fromkeys(faults)))
    return Sweep(
        grid=grid,
        settings=settings,
        folder=Path(settings.results_dir) / name,
        specs=specs,
        versions=versions,
        backend_line=backend_line,
    )


def _architecture_lookup(load_model_config: Callable[[str], Mapping[str, object]]) -> ArchitectureLookup:
    """Architectures by model, each read once: a sweep asks for the same few again and again."""

    @cache
    def read(model: str) -> Architecture | UsageError:
        try:
            return builtin_architecture(model) or read_architecture(load_model_config(model), model=model)
        except UsageError as error:
            return error

    def architecture_of(model: str) -> Architecture:
        found = read(model)
        if isinstance(found, UsageError):
            raise found
        return found

    return architecture_of


def _run(sweep: Sweep, plan: Sequence[PlannedTrial], parts: SweepParts) -> None:
    """Run what is not stored yet."""
    store = parts.open_store(sweep.folder)
    settings = sweep.settings
    found = {trial.trial_id: store.find(trial.trial_id) for trial in plan} if settings.resume else {}
    pending = [
        trial
        for trial in plan
        if not _answered(found.get(trial.trial_id))
        or (settings.snapshot and not snapshot_path(sweep.folder, trial.trial_id).exists())
    ]
    if len(pending) < len(plan):
        _say(f"{len(plan) - len(pending)} of {len(plan)} trials are stored already in {sweep.folder}.")
    if not pending:
        return
    with parts.watch(len(pending)) as observer:
        parts.run_trials(
            pending,
            store=store,
            versions=sweep.versions,
            jobs=min(jobs_for(sweep.specs, settings.jobs), len(pending)),
            timeout_s=settings.timeout_s,
            observer=observer,
            # A stored answer does not help who wants the snapshot that goes with it.
            resume=settings.resume and not settings.snapshot,
            snapshot=settings.snapshot,
        )


def _assemble(
    sweep: Sweep, parts: SweepParts, *, estimate: Callable[[TrialSpec], Estimate], command_line: str
) -> Sequence[TrialRecord]:
    """Tables of everything stored in the folder, of interrupted sweeps too; gives the records."""
    records = _relabelled(parts.open_store(sweep.folder).read_all())
    parts.write_tables(
        sweep.folder,
        records,
        estimates_by_trial({record.trial_id: record.spec for record in records}, estimate),
        question=sweep.grid.question,
        command=f"python -m profiler.sweep {command_line}",
    )
    return records


def _conclude(sweep: Sweep, plan: Sequence[PlannedTrial], parts: SweepParts, records: Sequence[TrialRecord]) -> int:
    """The report of this plan, and the exit code."""
    planned = {trial.trial_id for trial in plan}
    parts.render_folder(sweep.folder, to_terminal=True, trial_ids=planned)
    answered = {record.trial_id for record in records if _answered(record)}
    unanswered = len(planned - answered)
    if unanswered:
        sys.stderr.write(f"{unanswered} of {len(plan)} trials have no answer; the same command runs them again.\n")
        return EXIT_SOME_TRIALS_FAILED
    return EXIT_OK


def _answered(record: TrialRecord | None) -> bool:
    return record is not None and record.outcome.status.answered


def _relabelled(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Records labelled among each other: those of earlier sweeps differ in keys that no single sweep varied."""
    written = labels([record.spec for record in records])
    return [replace(record, label=label) for record, label in zip(records, written, strict=True)]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
