"""Whether a folder of results is one that this version of the program can add to, found out before anything starts."""

from pathlib import Path

from profiler.domain.errors import Fault, UsageError
from profiler.storage.records import RecordStore


def folder_faults(folder: Path) -> list[Fault]:
    """What stands in the way: records or tables of a newer version, or that cannot be read. Changes nothing."""
    if not folder.is_dir():
        return []
    faults = RecordStore(folder).faults()
    if any(folder.glob("*.parquet")):
        from profiler.storage.carried import stored_rows  # pyarrow, which a folder without tables does without

        try:
            stored_rows(folder)
        except UsageError as error:
            faults.extend(error.faults)
    return faults
