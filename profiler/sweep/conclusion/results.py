"""The end of a sweep: tables, report and exit code."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from profiler.analysis.times.gpu_time import gpu_time
from profiler.command_line import print_error, print_line, readable
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, ProfilerError
from profiler.domain.runs.outcome import Breakdown, Outcome, TrialRecord
from profiler.domain.trials.trial import PlannedTrial
from profiler.storage.files.last_resort import last_resort
from profiler.storage.records.outcome_fields import not_measured
from profiler.sweep.conclusion.stored import name_now, unanswered
from profiler.sweep.parts import SweepParts
from profiler.sweep.prepared.preparation import Sweep

if TYPE_CHECKING:
    from profiler.storage.sweep_tables.tables import EstimatesOf

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
