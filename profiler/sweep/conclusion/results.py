"""The end of a sweep or of its dry run: stored trials, tables, report, exit code, environments compared."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from profiler.analysis.times.durations import Durations, gpu_time
from profiler.analysis.times.sweep_time import LeastOf, sweep_time
from profiler.command_line import print_error, print_line, print_text, readable
from profiler.config.trials.identity import trial_id
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.gpu import KNOWN_GPUS, ROOFLINES
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_SOME_TRIALS_FAILED, ProfilerError, UsageError
from profiler.domain.runs.outcome import Breakdown, Estimate, Outcome, TrialRecord, Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec
from profiler.rendering.live.plan_table import plan_table, time_lines
from profiler.storage.files.atomic import append_to_job_page, last_resort, write_atomically
from profiler.storage.files.foreign_files import expanded
from profiler.storage.foreign.model_config import is_only_a_hub_model
from profiler.storage.records.outcome_fields import not_measured
from profiler.storage.stores.shared_store import read_published
from profiler.storage.sweep_tables.earlier import EarlierTrial, earlier_trials, trials_of_other_grids, trials_of_table
from profiler.sweep.parts import SweepParts
from profiler.sweep.prepared.plan import name_of, of_shard, plan_trials
from profiler.sweep.prepared.preparation import Sweep

if TYPE_CHECKING:
    import pandas as pd

    from profiler.storage.sweep_tables.tables import EstimatesOf


def planned(sweep: Sweep) -> list[PlannedTrial]:
    """Return the trials of a sweep, or of its shard, in order."""
    plan = plan_trials(
        sweep.grid.name, sweep.specs, sweep.versions, hardware_of=sweep.hardware_of, files_of=sweep.files_of
    )
    return plan if sweep.options.shard is None else of_shard(plan, sweep.options.shard)


def name_now(sweep: Sweep, spec: TrialSpec, versions: Versions) -> str | None:
    """Return the name that a stored trial would have if it ran now; None if a file that it names is missing."""
    try:
        return name_of(spec, versions, hardware_of=sweep.hardware_of, files_of=sweep.files_of)
    except UsageError:
        return None


def is_of_this_card(sweep: Sweep, record: TrialRecord) -> bool:
    """Return whether a record was measured on the sweep's card, with its driver and its versions.

    The name of the trial shows it.
    """
    if record.spec.backend is not Backend.CUDA:
        return False
    names = [name_now(sweep, record.spec, sweep.versions)]
    if is_only_a_hub_model(record.spec.model, record.spec.dataset):
        names.append(trial_id(record.spec, sweep.versions, hardware=sweep.hardware_of(record.spec)))
    return record.trial_id in names


def under_earlier_names(sweep: Sweep, plan: list[PlannedTrial], parts: SweepParts) -> list[PlannedTrial]:
    """Return the plan, with measured trials of hub models under the names by which they are stored.

    The first versions of this program had no hash of the `config.json` in the name. Such trials are not measured again.
    """
    measured = [trial for trial in plan if trial.spec.backend is Backend.CUDA]
    if not any(is_only_a_hub_model(trial.spec.model, trial.spec.dataset) for trial in measured):
        return plan
    store = parts.open_store(sweep)

    def renamed(trial: PlannedTrial) -> PlannedTrial:
        if trial.spec.backend is not Backend.CUDA or not is_only_a_hub_model(trial.spec.model, trial.spec.dataset):
            return trial
        earlier = trial_id(trial.spec, sweep.versions, hardware=sweep.hardware_of(trial.spec))
        is_stored_so = store.find(trial.trial_id) is None and store.find(earlier) is not None
        return replace(trial, trial_id=earlier) if is_stored_so else trial

    return [renamed(trial) for trial in plan]


def unanswered(plan: Sequence[PlannedTrial], records: Sequence[TrialRecord]) -> int:
    """Return how many trials of `plan` have no answer among `records`."""
    answered = {record.trial_id for record in records if record.outcome.status.answered}
    return len({trial.trial_id for trial in plan} - answered)


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
    from profiler.analytical.baselines import least_step_s  # NumPy is not needed to report wrong input

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


Assemble = Callable[[], tuple[Sequence[TrialRecord], Sequence[str]]]
"""Writes the tables; returns the records, and one sentence per record that the tables cannot hold."""


def assemble(
    sweep: Sweep,
    parts: SweepParts,
    *,
    estimates: "EstimatesOf",
    command_line: str,
) -> tuple[Sequence[TrialRecord], Sequence[str]]:
    """Write the tables of all that is stored in the folder, including interrupted sweeps.

    Args:
        sweep: The sweep.
        parts: Its outside world.
        estimates: Returns the estimates of trials by their ids.
        command_line: The words of the command.

    Returns:
        The records without their details, and one sentence per record that the tables cannot hold.
    """
    store = parts.open_store(sweep)
    store.gather()
    ended: list[TrialRecord] = []

    def each() -> Iterator[TrialRecord]:
        for record in store.read_each():
            ended.append(_without_details(record))
            yield record

    written = parts.write_tables(
        sweep.folder,
        each(),
        estimates,
        question=sweep.grid.question,
        command=f"python -m profiler.sweep {command_line}",
        current_id=partial(name_now, sweep),
    )
    for line in written.lines(sweep.folder):
        print_line(line)
    for sentence in written.left_out:
        print_error(sentence)
    return ended, written.left_out


def _without_details(record: TrialRecord) -> TrialRecord:
    """Return what the end of a sweep needs of a record, which may be one of 100,000."""
    outcome = record.outcome
    kept = Outcome(verdict=outcome.verdict, work=outcome.work, breakdown=Breakdown(problem=outcome.breakdown.problem))
    return replace(record, outcome=kept)


def conclude(
    sweep: Sweep,
    plan: Sequence[PlannedTrial],
    parts: SweepParts,
    records: Sequence[TrialRecord],
    *,
    complete: bool,
    to_terminal: bool = True,
) -> int:
    """Write the report of this plan and return the exit code. `complete`: whether the tables have every record."""
    planned = {trial.trial_id for trial in plan}
    with readable():
        parts.render_folder(sweep.folder, to_terminal=to_terminal, trial_ids=planned)
    _share(sweep, parts)
    of_plan = [record for record in records if record.trial_id in planned]
    for missing in dict.fromkeys(not_measured(record.outcome) for record in of_plan):
        if missing:
            print_line(f"Not measured: {missing}.")
    spent = gpu_time(of_plan)
    if spent is not None:
        print_line(spent.sentence(price=sweep.prices.of_one(trial.spec for trial in plan)))
    left = unanswered(plan, records)
    if left:
        print_error(f"{left} of {len(plan)} trials have no answer; the same command runs them again.")
        return EXIT_SOME_TRIALS_FAILED
    return EXIT_OK if complete else EXIT_SOME_TRIALS_FAILED


def keep_what_has_finished(sweep: Sweep, parts: SweepParts, write: Assemble) -> None:
    """Write the tables and the page of a sweep that ends early.

    If that fails, print why: the sweep still ends for its first cause.
    """
    try:
        with last_resort("sweep", folder=sweep.folder):
            records, _ = write()
            if records:
                parts.render_folder(sweep.folder, to_terminal=False, trial_ids=())
                _share(sweep, parts)
    except ProfilerError as error:
        print_error(str(error))


def _share(sweep: Sweep, parts: SweepParts) -> None:
    """Publish tables and pages where several machines share the results."""
    parts.open_store(sweep).share()
    if sweep.address is not None:
        print_line(f"Published at {sweep.address}.")


PAGE = "environments.md"
"""File in the folder of the grid."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One environment, and the trials that ran in it."""

    name: str
    versions: Versions
    trial_ids: tuple[str, ...]


def compare_environments(folder: Path, environments: Sequence[Environment], *, max_increase: float | None) -> int:
    """Print and write what changed between the first environment and each other, and return the exit code.

    Args:
        folder: The folder of the grid, whose tables have the trials of all environments.
        environments: At least two.
        max_increase: By how much a peak may grow, as a ratio; None to allow any.
    """
    # They import pandas, which no refused command needs.
    from profiler.analysis.compared.comparison import NOISE_RATIO, compare_sweeps
    from profiler.rendering.sweep.differences import growth_summary, versions_table
    from profiler.storage.sweep_tables.tables import read_tables

    runs = read_tables(folder).runs
    first, *others = environments
    before = _trials_of(runs, first)
    limit = NOISE_RATIO if max_increase is None else max_increase
    texts = [versions_table({each.name: each.versions for each in environments})]
    is_no = False
    for other in others:
        found = compare_sweeps(before, _trials_of(runs, other))
        grown = [each for each in found.both if each.grew(limit)]
        is_no = is_no or bool(grown) or all(each.change_ratio is None for each in found.both)
        texts.append(growth_summary(found, grown, most_ratio=limit, names=(first.name, other.name)))
    text = "\n".join(texts)
    write_atomically(folder / PAGE, text.encode())
    append_to_job_page(text)
    with readable():
        print_text(text)
        print_line(f"Written to {folder / PAGE}.")
    return EXIT_ANSWER_IS_NO if is_no and max_increase is not None else EXIT_OK


def _trials_of(runs: "pd.DataFrame", environment: Environment) -> "pd.DataFrame":
    return runs[runs["trial_id"].isin(environment.trial_ids)]
