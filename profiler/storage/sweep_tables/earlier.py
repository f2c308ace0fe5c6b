"""Trials that have run before, with their times: what a dry run can learn from a folder or a store of results."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from profiler.domain.errors import UsageError
from profiler.domain.memory import MIB
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.storage.files.foreign_files import read_bytes
from profiler.storage.files.trial_files import RECORDS
from profiler.storage.records.record_folder import TRIALS
from profiler.storage.records.versioned import DamagedRecordError

_MOST_TRIALS = 20_000
"""Most trials of one table that are read."""

_MOST_FOLDERS = 50
"""Most other grids that are read."""

_MOST_RECORDS = 2_000
"""Most records that are read where there are no tables yet."""

_MOST_BYTES = 64 * MIB


@dataclass(frozen=True, kw_only=True)
class EarlierTrial:
    """A trial that has run."""

    trial_id: str
    spec: TrialSpec
    answered: bool
    seconds: float | None
    """Of its GPUs if it was measured, of its process otherwise; None if it did not run."""
    card: str
    """The card as the driver names it; empty if unknown."""


def earlier_trials(folder: Path) -> list[EarlierTrial]:
    """Return the trials of one grid's folder, from its table, or else from its records; empty if there are none.

    Raises:
        UsageError: The table cannot be used.
    """
    if (folder / "runs.parquet").is_file():
        return trials_of_table(folder / "runs.parquet")
    return list(islice(_from_records(folder), _MOST_RECORDS))


def trials_of_other_grids(results_dir: Path, grid: str) -> list[EarlierTrial]:
    """Return the trials of the other grids in a folder of results; tables that cannot be used are left out."""
    found: list[EarlierTrial] = []
    for path in islice(sorted(results_dir.glob("*/runs.parquet")), _MOST_FOLDERS):
        if path.parent.name != grid:
            try:
                found.extend(trials_of_table(path))
            except UsageError:
                continue
    return found


def trials_of_table(path: Path) -> list[EarlierTrial]:
    """Return the trials of the table `runs` at `path`.

    Raises:
        UsageError: The table cannot be used.
    """
    from profiler.storage.sweep_tables.carried import stored_trials  # imports pyarrow
    from profiler.storage.tables.schema import RUNS
    from profiler.storage.tables.table_files import open_table_file

    rows = open_table_file(path, RUNS).rows().slice(0, _MOST_TRIALS)
    took = {
        row["trial_id"]: row for row in rows.select(["trial_id", "status", "wall_s", "gpu_s", "gpu_name"]).to_pylist()
    }
    found = []
    for trial in stored_trials(rows):
        row = took[trial.trial_id]
        seconds = row["gpu_s"] if trial.spec.backend is Backend.CUDA else row["wall_s"]
        found.append(
            EarlierTrial(
                trial_id=trial.trial_id,
                spec=trial.spec,
                answered=trial.answered,
                seconds=None if row["status"] == Status.IMPLIED else seconds,
                card=row["gpu_name"] or "",
            )
        )
    return found


def _from_records(folder: Path) -> Iterator[EarlierTrial]:
    """Yield the trials whose records can be read; nothing is set aside."""
    for path in sorted((folder / RECORDS).glob("*.json")):
        try:
            record = TRIALS.parse_named(read_bytes(path, most_bytes=_MOST_BYTES), path)
        except (DamagedRecordError, UsageError, OSError):
            continue
        work, is_implied = record.outcome.work, record.outcome.status is Status.IMPLIED
        seconds = work.gpu_s if record.spec.backend is Backend.CUDA else work.wall_s
        yield EarlierTrial(
            trial_id=record.trial_id,
            spec=record.spec,
            answered=record.outcome.status.answered,
            seconds=None if is_implied else seconds,
            card=record.outcome.card.name or "",
        )
