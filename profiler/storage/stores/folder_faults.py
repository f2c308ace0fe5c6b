"""Check, before anything starts, whether this version of the program can write and add to a results folder."""

import os
from pathlib import Path

from profiler.domain.errors import Fault, UsageError
from profiler.storage.files.foreign_files import Kind, kind_of, reason
from profiler.storage.files.trial_files import RECORDS
from profiler.storage.stores.record_store import RecordStore

RESULTS_DIR = "results_dir"
HINT = f"Choose another folder with {RESULTS_DIR}=PATH, for example on a local disk."


def folder_faults(folder: Path) -> list[Fault]:
    """Return what prevents it: records or tables of a newer version, or unreadable ones. Changes nothing."""
    if not folder.is_dir():
        return []
    faults = RecordStore(folder).faults()
    if any(folder.glob("*.parquet")):
        from profiler.storage.tables.table_files import open_tables  # imports pyarrow, not needed without tables

        try:
            open_tables(folder, required=False)
        except UsageError as error:
            faults.extend(error.faults)
    return faults


def writable_faults(folder: Path) -> list[Fault]:
    """Return the faults of `folder` that can be found without creating it."""
    for each in (folder, folder / RECORDS):
        ancestor = each
        try:
            while (kind := kind_of(ancestor)) is Kind.MISSING and ancestor != ancestor.parent:
                ancestor = ancestor.parent
        except OSError as error:
            return [not_writable(folder, reason(error))]
        if kind is not Kind.FOLDER:
            return [not_writable(folder, f"{ancestor} is not a folder")]
        if not os.access(ancestor, os.W_OK | os.X_OK):
            return [not_writable(folder, f"{ancestor} is not writable")]
    return []


def not_writable(folder: Path, why: str) -> Fault:
    """Return the fault of a folder in which results cannot be written."""
    return Fault(
        key=RESULTS_DIR, found=str(folder.parent), problem=f"results cannot be written there ({why})", hint=HINT
    )
