"""The names of the files of trials, in the folder of a grid: those that come from outside are matched, not joined.

A store, a slot and a folder that was copied name files as they like. ``samples/../../x`` would be written
outside the folder.
"""

import re
from dataclasses import dataclass

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
