"""The end of a dry run: the trials of a plan, and how long they will take."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from profiler.analysis.times.durations import Durations
from profiler.analysis.times.sweep_time import LeastOf, sweep_time
from profiler.command_line import print_line, print_text
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import KNOWN_GPUS, ROOFLINES
from profiler.domain.errors import UsageError
from profiler.domain.runs.outcome import Estimate
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.rendering.live.plan_table import plan_table, time_lines
from profiler.storage.files.foreign_files import expanded
from profiler.storage.stores.shared_store import read_published
from profiler.storage.sweep_tables.earlier import EarlierTrial, earlier_trials, trials_of_other_grids, trials_of_table
from profiler.sweep.prepared.preparation import Sweep


def show_plan(
    sweep: Sweep,
    plan: Sequence[PlannedTrial],
    estimates: Mapping[str, Estimate],
    architecture_of: Callable[[str], Architecture],
    *,
    knows_ids: bool,
) -> None:
    """Print the trials of `plan` with their estimates, and how long those take that have no answer yet."""
    print_text(plan_table(plan, estimates, knows_ids=knows_ids))
    before, other_grids = _earlier(sweep)
    answered = {trial.trial_id for trial in before if trial.answered} if sweep.options.resume else set()
    left = [_on_card(trial.spec, sweep) for trial in plan if not knows_ids or trial.trial_id not in answered]
    if len(left) < len(plan):
        print_line(f"{len(plan) - len(left)} of {len(plan)} trials are stored already in {sweep.place}.")
    durations = Durations()
    for trial in (*other_grids, *before):
        if trial.seconds is not None:
            durations.learn(_where_it_ran(trial), trial.seconds)
    parts = sweep_time(
        left,
        durations,
        least_of=_least_of(architecture_of),
        most_s=sweep.options.timeout_s,
        price_of=sweep.prices.of,
    )
    at_once = _at_once(sweep, plan)
    for line in time_lines(parts, at_once=at_once, timeout_s=sweep.options.timeout_s):
        print_line(line)


def _earlier(sweep: Sweep) -> tuple[list[EarlierTrial], list[EarlierTrial]]:
    """Return the trials that have run in this grid, and in the other grids of a folder; a line says if that fails."""
    try:
        if sweep.address is not None:
            return _published(sweep), []
        results_dir = expanded(str(sweep.options.results_dir))
        return earlier_trials(sweep.folder), trials_of_other_grids(results_dir, sweep.grid.name)
    except (UsageError, OSError) as error:
        print_line(f"The earlier trials in {sweep.place} are not used: {error}")
        return [], []


def _published(sweep: Sweep) -> list[EarlierTrial]:
    assert sweep.address is not None
    found = read_published(sweep.address, "runs.parquet")
    if isinstance(found, str):
        print_line(f"The earlier trials in {sweep.place} are not used: {found}.")
    if not isinstance(found, bytes):
        return []
    with TemporaryDirectory() as folder:
        path = Path(folder) / "runs.parquet"
        path.write_bytes(found)
        return trials_of_table(path)


def _on_card(spec: TrialSpec, sweep: Sweep) -> TrialSpec:
    """Return a measured trial with the card that it will run on, for comparisons with earlier ones."""
    return replace(spec, gpu=sweep.prices.card or spec.gpu) if spec.backend is Backend.CUDA else spec


def _where_it_ran(trial: EarlierTrial) -> TrialSpec:
    if trial.spec.backend is not Backend.CUDA:
        return trial.spec
    card = next((gpu.name for gpu in KNOWN_GPUS.values() if gpu.title == trial.card), None)
    return replace(trial.spec, gpu=card)


def _least_of(architecture_of: Callable[[str], Architecture]) -> LeastOf:
    from profiler.analytical.least_time import least_step_s  # NumPy is not needed to report wrong input

    def least_of(spec: TrialSpec) -> float | None:
        card, architecture = ROOFLINES.get(spec.gpu or ""), architecture_of(spec.model)
        if spec.backend is not Backend.CUDA or card is None or not architecture.has_closed_form:
            return None
        return spec.steps * spec.num_processes * least_step_s(spec, architecture, card)

    return least_of


def _at_once(sweep: Sweep, plan: Sequence[PlannedTrial]) -> int | None:
    """Return how many trials run at the same time here; None if measured ones are planned and no GPU is here."""
    from profiler.execution.runner import jobs_for

    if any(trial.spec.backend is Backend.CUDA for trial in plan):
        # GPU-hours are those of all GPUs.
        return len(sweep.gpu_uuids) or None
    return min(jobs_for(plan, sweep.options.jobs), max(1, len(plan)))
