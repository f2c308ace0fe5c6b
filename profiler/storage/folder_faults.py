"""Check, before anything starts, whether this version of the program can add to a results folder."""

from pathlib import Path

from profiler.domain.errors import Fault, UsageError
from profiler.storage.records import RecordStore


def folder_faults(folder: Path) -> list[Fault]:
    """Return what prevents it: records or tables of a newer version, or unreadable ones. Changes nothing."""
    if not folder.is_dir():
        return []
    faults = RecordStore(folder).faults()
    if any(folder.glob("*.parquet")):
        from profiler.storage.table_files import open_tables  # imports pyarrow, not needed without tables

        try:
            open_tables(folder, required=False)
        except UsageError as error:
            faults.extend(error.faults)
    return faults
