"""`python -m profiler.sweep +grid=NAME [key=value ...]`: from a question to the table that answers it.

Hydra composes one configuration; the points of the grid are expanded, read and checked here, all before the first
trial starts; then each trial runs in a process of its own, and the results are drawn.

Exit codes: docs/exit_codes.md.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from profiler.allocator import parse_alloc_conf
from profiler.analysis.gpu_time import gpu_time
from profiler.command_line import as_command, print_error, print_line, readable
from profiler.config.architecture import read_architecture
from profiler.config.demand import needs_at_most
from profiler.config.grid import Grid, expand, read_grid
from profiler.config.identity import trial_id
from profiler.config.labels import relabelled
from profiler.config.model_lookup import builtin_architecture
from profiler.config.run_settings import RunSettings, read_run_settings
from profiler.config.specification import ArchitectureLookup, attention_line, parse_points
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, ProfilerError, UsageError
from profiler.domain.outcome import BreakdownStatus, Estimate, Status, TrialRecord, Versions
from profiler.domain.trial import Backend, PlannedTrial, TrialSpec
from profiler.execution.pruning import NeedsAtMost, Pruning
from profiler.storage.fingerprint import content_of, is_only_a_hub_model
from profiler.storage.folder_faults import folder_faults
from profiler.storage.last_resort import last_resort
from profiler.storage.memory_snapshot import snapshot_path
from profiler.storage.outcome_fields import not_measured
from profiler.sweep.backend import gpus_alike, hardware_of, jobs_for, real_gpu_faults, resolve_auto
from profiler.sweep.command import Command, read_command
from profiler.sweep.composition import compose, show_instead
from profiler.sweep.folder import make_writable, writable_faults
from profiler.sweep.output import WhileReadable
from profiler.sweep.parts import SweepParts
from profiler.sweep.plan import FilesOf, estimates_by_trial, listing, name_of, order_for_pruning, plan_trials

Result = TypeVar("Result")

Assemble = Callable[[], tuple[Sequence[TrialRecord], Sequence[str]]]
"""Writes the tables: the records, and a sentence for each that the tables cannot take."""


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
    files_of: FilesOf
    """Hashes of the files that a trial names."""
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
    config_of = _remembering(parts.load_model_config)
    architecture_of = _architecture_lookup(config_of)

    def estimate(spec: TrialSpec) -> Estimate:
        return parts.estimate(spec, architecture_of(spec.model))

    sweep = _prepare(command, parts, architecture_of, config_of)
    for line in sweep.lines:
        print_line(line)
    plan = plan_trials(sweep.grid.name, sweep.specs, sweep.versions, hardware=sweep.hardware, files_of=sweep.files_of)
    if sweep.settings.dry_run:
        print_line(listing(plan, estimates_by_trial({trial.trial_id: trial.spec for trial in plan}, estimate)))
        return EXIT_OK
    make_writable(sweep.folder)
    plan = _under_earlier_names(sweep, plan, parts)
    assemble = partial(_assemble, sweep, parts, estimate=estimate, command_line=shlex.join(words))
    has_run = False
    with last_resort("sweep", folder=sweep.folder):
        try:
            _run(sweep, plan, parts, needs_at_most=partial(needs_at_most, architecture_of=architecture_of))
            has_run = True
            records, left_out = assemble()
            return _conclude(sweep, plan, parts, records, complete=not left_out)
        except BaseException as error:
            if not has_run or isinstance(error, KeyboardInterrupt):
                _keep_what_has_finished(sweep, parts, assemble)
            raise


def _keep_what_has_finished(sweep: Sweep, parts: SweepParts, assemble: Assemble) -> None:
    """Write tables and page of a sweep that ends early. If that fails, say so, and let it end for its own reason."""
    try:
        with last_resort("sweep", folder=sweep.folder):
            records, _ = assemble()
            if records:
                parts.render_folder(sweep.folder, to_terminal=False, trial_ids=())
    except ProfilerError as error:
        print_error(str(error))


def _prepare(
    command: Command,
    parts: SweepParts,
    architecture_of: ArchitectureLookup,
    config_of: Callable[[str], Mapping[str, object]],
) -> Sweep:
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
        faults.extend(folder_faults(Path(results_dir) / name))

    @cache
    def files_of(model: str, dataset: str | None) -> Mapping[str, str]:
        """Hashes of files, each read once."""
        return content_of(model, dataset, model_config=config_of)

    for model, dataset in dict.fromkeys((spec.model, spec.dataset) for spec in specs):
        attempt(partial(files_of, model, dataset))
    if faults or settings is None or grid is None:
        raise UsageError(tuple(dict.fromkeys(faults)))
    gpus, gpu_line = gpus_alike(visible)
    measured = any(spec.backend is Backend.CUDA for spec in specs)
    attention = dict.fromkeys(attention_line(spec, architecture_of(spec.model)) for spec in specs)
    return Sweep(
        grid=grid,
        settings=settings,
        folder=Path(settings.results_dir) / name,
        specs=specs,
        versions=versions,
        gpu_uuids=tuple(gpu.uuid for gpu in gpus) if measured else (),
        hardware=hardware_of(visible),
        files_of=lambda spec: files_of(spec.model, spec.dataset),
        lines=tuple(line for line in (backend_line, gpu_line if measured else "", *attention) if line),
    )


def _architecture_lookup(config_of: Callable[[str], Mapping[str, object]]) -> ArchitectureLookup:
    """Architectures by model."""
    return _remembering(
        lambda model: builtin_architecture(model) or read_architecture(config_of(model), model=model),
    )


def _remembering(read: Callable[[str], Result]) -> Callable[[str], Result]:
    """`read`, of each model once, faults too: a sweep asks for the same few again and again."""

    @cache
    def found_or_fault(model: str) -> Result | UsageError:
        try:
            return read(model)
        except UsageError as error:
            return error

    def remembered(model: str) -> Result:
        found = found_or_fault(model)
        if isinstance(found, UsageError):
            raise found
        return found

    return remembered


def _run(sweep: Sweep, plan: Sequence[PlannedTrial], parts: SweepParts, *, needs_at_most: NeedsAtMost) -> None:
    """Run what is not stored yet."""
    store = parts.open_store(sweep.folder)
    settings = sweep.settings
    found = {trial.trial_id: store.find(trial.trial_id) for trial in plan} if settings.resume else {}
    pending = [trial for trial in plan if _is_pending(sweep, trial, found.get(trial.trial_id))]
    if len(pending) < len(plan):
        print_line(f"{len(plan) - len(pending)} of {len(plan)} trials are stored already in {sweep.folder}.")
    if not pending:
        return
    pruning = Pruning(needs_at_most=needs_at_most) if settings.prune else None
    if pruning is not None and settings.resume and sweep.gpu_uuids:
        # Those of earlier sweeps too: a refusal by the whole card implies one by the capped card.
        pruning.learn([record for record in store.read_all() if _is_of_this_card(sweep, record)])
    with WhileReadable(parts.watch(len(pending))) as observer:
        notes = parts.run_trials(
            order_for_pruning(pending, needs_at_most) if pruning is not None else pending,
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
    names = [_name_now(sweep, record.spec, sweep.versions)]
    if is_only_a_hub_model(record.spec.model, record.spec.dataset):
        names.append(trial_id(record.spec, sweep.versions, hardware=sweep.hardware))
    return record.trial_id in names


def _under_earlier_names(sweep: Sweep, plan: list[PlannedTrial], parts: SweepParts) -> list[PlannedTrial]:
    """The plan, with measured trials of hub models under the name by which they are stored.

    Names had no hash of the `config.json` at first, and what was measured then is not measured again.
    """
    measured = [trial for trial in plan if trial.spec.backend is Backend.CUDA]
    if not any(is_only_a_hub_model(trial.spec.model, trial.spec.dataset) for trial in measured):
        return plan
    store = parts.open_store(sweep.folder)

    def renamed(trial: PlannedTrial) -> PlannedTrial:
        if trial not in measured or not is_only_a_hub_model(trial.spec.model, trial.spec.dataset):
            return trial
        earlier = trial_id(trial.spec, sweep.versions, hardware=sweep.hardware)
        is_stored_so = store.find(trial.trial_id) is None and store.find(earlier) is not None
        return replace(trial, trial_id=earlier) if is_stored_so else trial

    return [renamed(trial) for trial in plan]


def _name_now(sweep: Sweep, spec: TrialSpec, versions: Versions) -> str | None:
    """The name of a stored trial if it ran now; None where a file that it names is not here any more."""
    try:
        return name_of(spec, versions, hardware=sweep.hardware, files_of=sweep.files_of)
    except UsageError:
        return None


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
    return measured and outcome.breakdown.status is BreakdownStatus.ABSENT


def _assemble(
    sweep: Sweep, parts: SweepParts, *, estimate: Callable[[TrialSpec], Estimate], command_line: str
) -> tuple[Sequence[TrialRecord], Sequence[str]]:
    """Tables of everything stored in the folder, of interrupted sweeps too.

    Returns:
        The records, and a sentence for each that the tables cannot take.
    """
    records = relabelled(parts.open_store(sweep.folder).read_all())
    written = parts.write_tables(
        sweep.folder,
        records,
        estimates_by_trial({record.trial_id: record.spec for record in records}, estimate),
        question=sweep.grid.question,
        command=f"python -m profiler.sweep {command_line}",
        current_id=partial(_name_now, sweep),
    )
    for line in written.lines(sweep.folder):
        print_line(line)
    for sentence in written.left_out:
        print_error(sentence)
    return records, written.left_out


def _conclude(
    sweep: Sweep, plan: Sequence[PlannedTrial], parts: SweepParts, records: Sequence[TrialRecord], *, complete: bool
) -> int:
    """The report of this plan, and the exit code; `complete`: whether the tables have every record."""
    planned = {trial.trial_id for trial in plan}
    with readable():
        parts.render_folder(sweep.folder, to_terminal=True, trial_ids=planned)
    of_plan = [record for record in records if record.trial_id in planned]
    for missing in dict.fromkeys(not_measured(record.outcome) for record in of_plan):
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
    return EXIT_OK if complete else EXIT_SOME_TRIALS_FAILED


def _answered(record: TrialRecord | None) -> bool:
    return record is not None and record.outcome.status.answered
