"""`python -m profiler.sweep +grid=NAME [key=value ...]`: from a question to the table that answers it.

Hydra composes one configuration; the points of the grid are expanded, read and checked here, all before the first
trial starts; then each trial runs in a process of its own, and the results are drawn.

Exit codes: docs/exit_codes.md.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from profiler.allocator import parse_alloc_conf
from profiler.analysis.gpu_time import gpu_time
from profiler.command_line import as_command, print_error, print_line, readable
from profiler.config.architecture import read_architecture
from profiler.config.demand import needs_no_more
from profiler.config.grid import Grid, expand, read_grid
from profiler.config.identity import trial_id
from profiler.config.labels import relabelled
from profiler.config.model_lookup import builtin_architecture
from profiler.config.run_settings import RunSettings, read_run_settings
from profiler.config.specification import ArchitectureLookup, parse_points
from profiler.domain.architecture import Architecture
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, ProfilerError, UsageError
from profiler.domain.outcome import NO_BREAKDOWN, Estimate, Status, TrialRecord, Versions
from profiler.domain.trial import Backend, PlannedTrial, TrialSpec
from profiler.execution.pruning import NeedsNoMore, Pruning
from profiler.storage.last_resort import last_resort
from profiler.storage.memory_snapshot import snapshot_path
from profiler.sweep.backend import gpus_alike, hardware_of, jobs_for, real_gpu_faults, resolve_auto
from profiler.sweep.command import Command, read_command
from profiler.sweep.composition import compose, show_instead
from profiler.sweep.folder import make_writable, writable_faults
from profiler.sweep.output import WhileReadable
from profiler.sweep.parts import SweepParts
from profiler.sweep.plan import estimates_by_trial, in_order_of_learning, listing, plan_trials

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep that is fit to run."""

    grid: Grid
    settings: RunSettings
    folder: Path
    specs: tuple[TrialSpec, ...]
    versions: Versions
    gpu_uuids: tuple[str, ...]
    """GPUs to measure on."""
    hardware: str
    """Card and driver of measured trials; empty without a GPU."""
    lines: tuple[str, ...]
    """What to tell first: which backend `auto` became and why, which GPUs are left out."""


@as_command("sweep", when_interrupted="What has finished is kept; the same command continues from there.")
def main(argv: Sequence[str] | None = None, *, parts: SweepParts | None = None) -> int:
    """Run the sweep that `argv` (without the program) asks for; gives the exit code."""
    return _main(sys.argv[1:] if argv is None else list(argv), parts or SweepParts())


def _main(words: Sequence[str], parts: SweepParts) -> int:
    command = read_command(words)
    if command.show_flags and not command.faults:
        return show_instead(command)
    architecture_of = _architecture_lookup(parts.load_model_config)

    def estimate(spec: TrialSpec) -> Estimate:
        return parts.estimate(spec, architecture_of(spec.model))

    sweep = _prepare(command, parts, architecture_of)
    for line in sweep.lines:
        print_line(line)
    plan = plan_trials(sweep.grid.name, sweep.specs, sweep.versions, hardware=sweep.hardware)
    if sweep.settings.dry_run:
        print_line(listing(plan, estimates_by_trial({trial.trial_id: trial.spec for trial in plan}, estimate)))
        return EXIT_OK
    make_writable(sweep.folder)
    assemble = partial(_assemble, sweep, parts, estimate=estimate, command_line=shlex.join(words))
    has_run = False
    with last_resort("sweep", folder=sweep.folder):
        try:
            _run(sweep, plan, parts, needs_no_more=partial(needs_no_more, architecture_of=architecture_of))
            has_run = True
            return _conclude(sweep, plan, parts, assemble())
        except BaseException as error:
            if not has_run or isinstance(error, KeyboardInterrupt):
                _keep_what_has_finished(sweep, parts, assemble)
            raise


def _keep_what_has_finished(sweep: Sweep, parts: SweepParts, assemble: Callable[[], Sequence[TrialRecord]]) -> None:
    """Write tables and page of a sweep that ends early. If that fails, say so, and let it end for its own reason."""
    try:
        with last_resort("sweep", folder=sweep.folder):
            if assemble():
                parts.render_folder(sweep.folder, to_terminal=False, trial_ids=())
    except ProfilerError as error:
        print_error(str(error))


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
    gpus, gpu_line = gpus_alike(visible)
    measured = any(spec.backend is Backend.CUDA for spec in specs)
    return Sweep(
        grid=grid,
        settings=settings,
        folder=Path(settings.results_dir) / name,
        specs=specs,
        versions=versions,
        gpu_uuids=tuple(gpu.uuid for gpu in gpus) if measured else (),
        hardware=hardware_of(visible),
        lines=tuple(line for line in (backend_line, gpu_line if measured else "") if line),
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


def _run(sweep: Sweep, plan: Sequence[PlannedTrial], parts: SweepParts, *, needs_no_more: NeedsNoMore) -> None:
    """Run what is not stored yet."""
    store = parts.open_store(sweep.folder)
    settings = sweep.settings
    found = {trial.trial_id: store.find(trial.trial_id) for trial in plan} if settings.resume else {}
    pending = [trial for trial in plan if _is_pending(sweep, trial, found.get(trial.trial_id))]
    if len(pending) < len(plan):
        print_line(f"{len(plan) - len(pending)} of {len(plan)} trials are stored already in {sweep.folder}.")
    if not pending:
        return
    pruning = Pruning(needs_no_more=needs_no_more) if settings.prune else None
    if pruning is not None and settings.resume and sweep.gpu_uuids:
        # Those of earlier sweeps too: a refusal by the whole card implies one by the capped card.
        pruning.learn([record for record in store.read_all() if _is_of_this_card(sweep, record)])
    with WhileReadable(parts.watch(len(pending))) as observer:
        notes = parts.run_trials(
            in_order_of_learning(pending, needs_no_more) if pruning is not None else pending,
            store=store,
            versions=sweep.versions,
            jobs=min(jobs_for(sweep.specs, settings.jobs, gpus=len(sweep.gpu_uuids)), len(pending)),
            timeout_s=settings.timeout_s,
            observer=observer,
            # A stored answer does not help who wants the snapshot or the breakdown that goes with it.
            resume=settings.resume and not (settings.snapshot or settings.breakdown),
            snapshot=settings.snapshot,
            breakdown=settings.breakdown,
            stall_s=settings.stall_s,
            warm_up_s=settings.warm_up_s,
            sample_period_s=settings.sample_period_s,
            gpu_uuids=sweep.gpu_uuids,
            pruning=pruning,
        )
    for sentence in notes:
        print_error(sentence)


def _is_of_this_card(sweep: Sweep, record: TrialRecord) -> bool:
    """Whether a record was measured on the sweep's card, with its driver and its versions: its name says so."""
    if record.spec.backend is not Backend.CUDA:
        return False
    return record.trial_id == trial_id(record.spec, sweep.versions, hardware=sweep.hardware)


def _is_pending(sweep: Sweep, trial: PlannedTrial, record: TrialRecord | None) -> bool:
    """Whether a trial is to be run, or settled, in this sweep."""
    if record is None or not _answered(record):
        return True
    if record.outcome.status is Status.IMPLIED:
        return not sweep.settings.prune
    if sweep.settings.breakdown and _lacks_breakdown(record):
        return True
    has_snapshot = trial.spec.backend is not Backend.CPU and record.outcome.status in (Status.OK, Status.OOM)
    return sweep.settings.snapshot and has_snapshot and not snapshot_path(sweep.folder, trial.trial_id).exists()


def _lacks_breakdown(record: TrialRecord) -> bool:
    """Whether a measured trial was not asked for its breakdown yet. What it could not say it cannot say again."""
    outcome = record.outcome
    measured = record.spec.backend is Backend.CUDA and outcome.status is Status.OK
    return measured and not outcome.breakdown and NO_BREAKDOWN not in outcome.not_measured


def _assemble(
    sweep: Sweep, parts: SweepParts, *, estimate: Callable[[TrialSpec], Estimate], command_line: str
) -> Sequence[TrialRecord]:
    """Tables of everything stored in the folder, of interrupted sweeps too; gives the records."""
    records = relabelled(parts.open_store(sweep.folder).read_all())
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
    with readable():
        parts.render_folder(sweep.folder, to_terminal=True, trial_ids=planned)
    of_plan = [record for record in records if record.trial_id in planned]
    for missing in dict.fromkeys(record.outcome.not_measured for record in of_plan):
        if missing:
            print_line(f"Not measured: {missing}.")
    spent = gpu_time(of_plan)
    if spent is not None:
        print_line(spent.sentence(price_per_hour=sweep.settings.price_per_hour))
    answered = {record.trial_id for record in records if _answered(record)}
    unanswered = len(planned - answered)
    if unanswered:
        print_error(f"{unanswered} of {len(plan)} trials have no answer; the same command runs them again.")
        return EXIT_SOME_TRIALS_FAILED
    return EXIT_OK


def _answered(record: TrialRecord | None) -> bool:
    return record is not None and record.outcome.status.answered
