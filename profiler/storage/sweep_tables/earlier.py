"""What has run before: trials with their times, from which a dry run learns, and all that is stored at a path."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Self

from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.other_runs import MonitoredRun
from profiler.domain.runs.outcome import (
    CardFacts,
    MeasuredDetails,
    Outcome,
    Peaks,
    Status,
    TrialRecord,
    Verdict,
    Work,
)
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.storage.files.foreign_files import read_bytes
from profiler.storage.files.trial_files import RECORDS
from profiler.storage.records.record_folder import MONITORED, TRIALS
from profiler.storage.records.versioned import DamagedRecordError

_MOST_TRIALS = 20_000
"""Most trials of one table that are read."""

_MOST_FOLDERS = 50
"""Most other grids that are read."""

_MOST_RECORDS = 2_000
"""Most records that are read where there are no tables yet."""

_TABLE = "runs.parquet"

_HEAD = 256
"""Bytes at the beginning of a record in which its kind is said."""


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
    if (folder / _TABLE).is_file():
        return trials_of_table(folder / _TABLE)
    return list(islice(_from_records(folder), _MOST_RECORDS))


def trials_of_other_grids(results_dir: Path, grid: str) -> list[EarlierTrial]:
    """Return the trials of the other grids in a folder of results; tables that cannot be used are left out."""
    found: list[EarlierTrial] = []
    for path in islice(sorted(results_dir.glob(f"*/{_TABLE}")), _MOST_FOLDERS):
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
            record = TRIALS.parse_named(read_bytes(path, most_bytes=TRIALS.most_bytes), path)
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


@dataclass(frozen=True, kw_only=True)
class StoredRuns:
    """What is stored at a path: trials of sweeps, and monitored runs."""

    trials: tuple[TrialRecord, ...] = ()
    """Those of a table have only how they ended, the card, their peaks and what was counted."""
    monitored: tuple[MonitoredRun, ...] = ()
    problems: tuple[Fault, ...] = ()
    """One per file that is neither."""

    @classmethod
    def together(cls, parts: Iterable[Self]) -> Self:
        """Return what is stored in all parts."""
        found = list(parts)
        return cls(
            trials=tuple(each for part in found for each in part.trials),
            monitored=tuple(each for part in found for each in part.monitored),
            problems=tuple(each for part in found for each in part.problems),
        )


def stored_runs(path: Path, *, before_table: Callable[[Path], None]) -> StoredRuns:
    """Return what is stored in a file, in a folder of results, or in the folders in it; changes nothing.

    A folder with records is read by them, and one without by its table `runs`.

    Args:
        path: The file or the folder.
        before_table: Called before a table is read, which needs pyarrow.

    Raises:
        UsageError: A table cannot be used, or a record is of a newer version.
        OSError: The path, or a file in it, cannot be read.
    """
    if path.is_dir():
        files = sorted((path / RECORDS).glob("*.json")) or [each for each in [path / _TABLE] if each.is_file()]
        if files:
            return StoredRuns.together(_stored(each, before_table) for each in files)
        inner = [each for each in sorted(path.iterdir()) if (each / RECORDS).is_dir() or (each / _TABLE).is_file()]
        return StoredRuns.together(stored_runs(each, before_table=before_table) for each in inner)
    return _stored(path, before_table)


def _stored(path: Path, before_table: Callable[[Path], None]) -> StoredRuns:
    if path.suffix == ".parquet":
        before_table(path)
        return StoredRuns(trials=tuple(_records_of_table(path)))
    content = read_bytes(path, most_bytes=TRIALS.most_bytes)
    try:
        if f'"{MONITORED.version_key}"'.encode() in content[:_HEAD]:
            return StoredRuns(monitored=(MONITORED.parse_named(content, path),))
        return StoredRuns(trials=(TRIALS.parse_named(content, path),))
    except DamagedRecordError as error:
        problem = f"is no record of a trial or of a training ({error})"
        return StoredRuns(problems=(Fault(key="record", found=str(path), problem=problem),))


def _records_of_table(path: Path) -> Iterator[TrialRecord]:
    from profiler.storage.sweep_tables.carried import stored_trials  # imports pyarrow
    from profiler.storage.tables.schema import RUNS
    from profiler.storage.tables.table_files import open_table_file

    rows = open_table_file(path, RUNS).rows()
    by_id = {row["trial_id"]: row for row in rows.to_pylist()}
    for trial in stored_trials(rows):
        row = by_id[trial.trial_id]
        yield TrialRecord(
            trial_id=trial.trial_id,
            grid=row["grid"],
            label=row["label"],
            spec=trial.spec,
            versions=trial.versions,
            outcome=Outcome(
                verdict=Verdict(status=Status(row["status"])),
                work=Work(parameters=row["parameters"], steps_run=row["steps_run"], wall_s=row["wall_s"]),
                card=CardFacts(name=row["gpu_name"], memory_bytes=row["gpu_memory_bytes"]),
                peaks=Peaks(
                    allocated_bytes=row["peak_allocated_bytes"],
                    reserved_bytes=row["peak_reserved_bytes"],
                    device_bytes=row["peak_device_bytes"],
                ),
                measured=MeasuredDetails(gpu_uuid=row["gpu_uuid"], driver_version=row["driver_version"]),
            ),
        )
