"""The files of trials in the folder of a grid: their names, and memory snapshots.

Names from outside are matched, not joined.

A store, a slot and a folder that was copied name files as they like. ``samples/../../x`` would be written
outside the folder.
"""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.storage.files.atomic import write_atomically

RECORDS = "records"
"""Folder of the records, in the folder of a grid."""

RANKS = "ranks"
"""Folder of what the ranks of trials on several GPUs leave, in the folder of a grid."""

_TRIAL_ID = re.compile("[0-9a-f]{16}")

_NAME = re.compile(
    rf"(?:{RANKS}/(?P<rank>0|[1-9][0-9]{{0,3}})/)?"
    rf"(?P<folder>{RECORDS}|samples|snapshots)/(?P<trial_id>{_TRIAL_ID.pattern})(?P<suffix>\.[a-z]+)"
)

_SUFFIXES = {RECORDS: (".json", ".stderr"), "samples": (".parquet",), "snapshots": (".pickle",)}
"""What each folder has of a trial, or of a rank."""


@dataclass(frozen=True, kw_only=True)
class TrialFile:
    """What the name of a file of a trial says."""

    folder: str
    """`RECORDS`, ``"samples"`` or ``"snapshots"``."""
    trial_id: str
    suffix: str
    rank: int | None
    """None for a file of the trial itself."""


def trial_file(name: str) -> TrialFile | None:
    """Return what a name says, relative to the folder of a grid and with slashes; None if no trial has such a file."""
    found = _NAME.fullmatch(name)
    if found is None or found["suffix"] not in _SUFFIXES[found["folder"]]:
        return None
    rank = None if found["rank"] is None else int(found["rank"])
    return TrialFile(folder=found["folder"], trial_id=found["trial_id"], suffix=found["suffix"], rank=rank)


def is_trial_id(text: str) -> bool:
    """Return whether a text has the form of a trial id."""
    return _TRIAL_ID.fullmatch(text) is not None


def write_memory_snapshot(path: Path, snapshot: Mapping[str, Any]) -> None:
    """Write a snapshot to `path`, whole or not at all: pickled plain values, as torch's `_dump_snapshot` writes them.

    Raises:
        StorageError: The file could not be written.
    """
    write_atomically(path, pickle.dumps(dict(snapshot), protocol=4))


def snapshot_path(folder: Path, trial_id: str) -> Path:
    """Return the path of a trial's snapshot in a grid's folder, whether it exists or not."""
    return folder / "snapshots" / f"{trial_id}.pickle"
