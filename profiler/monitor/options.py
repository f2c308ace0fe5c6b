"""The keys of `python -m profiler.monitor`: each is declared once, and the help text and the reader derive from it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath

from profiler.config.option import FORMAT, OutputFormat, read_format
from profiler.config.reading import FieldReader
from profiler.domain.errors import UsageError

_SHORTEST_S, _LONGEST_S = 0.01, 3600.0
_DURATION = re.compile(r"((?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|min)?")
_SECONDS = {None: 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0}


class Mode(StrEnum):
    """What a key belongs to."""

    GPUS = "the GPUs"
    COMMAND = "a command"


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """What a user has to know about a key."""

    values: str
    """What is allowed."""
    meaning: str
    default: object
    shown: str
    """The default as a user reads it."""
    mode: Mode


WATCH, CONFIG, RESULTS_DIR, PERIOD = "watch", "config", "results_dir", "sample_period_s"

KEYS: Mapping[str, Declaration] = {
    WATCH: Declaration(
        values="DURATION",
        meaning="show the GPUs again after each DURATION, such as 1s or 500ms",
        default=None,
        shown="once",
        mode=Mode.GPUS,
    ),
    FORMAT: Declaration(
        values=f"{OutputFormat.TABLE}|{OutputFormat.JSON}",
        meaning="json: one object; with watch one line per reading",
        default=OutputFormat.TABLE.value,
        shown=OutputFormat.TABLE,
        mode=Mode.GPUS,
    ),
    CONFIG: Declaration(
        values="FILE",
        meaning="a file that python -m profiler.estimate reads: its estimate is put next to what is measured; further "
        "keys of a trial, such as model=NAME, complete it",
        default=None,
        shown="no estimate",
        mode=Mode.COMMAND,
    ),
    RESULTS_DIR: Declaration(
        values="FOLDER",
        meaning="the results are in FOLDER/monitor/<name of the command>/",
        default="results",
        shown="results",
        mode=Mode.COMMAND,
    ),
    PERIOD: Declaration(
        values="SECONDS",
        meaning="period at which the GPUs and the host are sampled",
        default=0.1,
        shown="0.1 s",
        mode=Mode.COMMAND,
    ),
}
"""By name, in the order of the help text."""


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """The values of the keys."""

    watch_s: float | None
    """None shows the GPUs once."""
    output_format: OutputFormat
    results_dir: PurePath
    sample_period_s: float


def read_options(values: Mapping[str, object]) -> MonitorOptions:
    """Read the keys that a user gave; the others have their defaults.

    Raises:
        UsageError: Carries every fault found.
    """
    reader = FieldReader({name: key.default for name, key in KEYS.items()} | dict(values))
    options = MonitorOptions(
        watch_s=None if reader.value(WATCH) is None else _duration(reader, WATCH),
        output_format=read_format(reader),
        results_dir=PurePath(reader.text(RESULTS_DIR, "a folder")),
        sample_period_s=_duration(reader, PERIOD),
    )
    if reader.faults:
        raise UsageError(reader.faults)
    return options


def _duration(reader: FieldReader, key: str) -> float:
    """Return seconds from 0.01 to 3600, written as a number or with a unit."""
    value = reader.value(key)
    found = _DURATION.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        reader.fail(key, "must be from 10ms to 3600s, such as 1s or 500ms")
        return _LONGEST_S
    return seconds
