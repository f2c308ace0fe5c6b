"""The options of `python -m profiler.monitor`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from profiler.config.option import FORMAT, Kind, Option, OutputFormat, choice, option, options_of, path
from profiler.config.reading import FieldReader

_SHORTEST_S, _LONGEST_S = 0.01, 3600.0
_DURATION = re.compile(r"((?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)\s*(ms|s|m|min)?")
_SECONDS = {None: 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "min": 60.0}


def _duration(reader: FieldReader, key: str) -> float:
    """Return seconds from 0.01 to 3600, written as a number or with a unit."""
    value = reader.value(key)
    found = _DURATION.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    seconds = float(found[1]) * _SECONDS[found[2]] if found else 0.0
    if not _SHORTEST_S <= seconds <= _LONGEST_S:
        reader.fail(key, "must be from 10ms to 3600s, such as 1s or 500ms")
        return _LONGEST_S
    return seconds


_ALLOWED = "10ms to 3600s"
WATCH, CONFIG = "watch", "config"


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """The options, in the order of the help text."""

    watch_s: float | None = option(
        None,
        Kind(allowed=_ALLOWED, shown="DURATION", read=_duration),
        "show the GPUs again after each DURATION, such as 1s or 500ms",
        name=WATCH,
        null="once",
    )
    output_format: OutputFormat = option(
        OutputFormat.TABLE,
        choice(OutputFormat, OutputFormat.TABLE, OutputFormat.JSON),
        "json: one object; with watch one line per reading",
        name=FORMAT,
    )
    results_dir: PurePath = option(
        PurePath("results"),
        path("a folder", "FOLDER"),
        "the results are in FOLDER/monitor/<name of the command>/",
    )
    sample_period_s: float = option(
        0.1,
        Kind(allowed=_ALLOWED, shown="SECONDS", read=_duration),
        "period at which the GPUs and the host are sampled",
        unit="s",
    )


_READ = options_of(MonitorOptions)

OF_GPUS: Mapping[str, Option] = {name: _READ[name] for name in (WATCH, FORMAT)}
"""Options without a command, by name."""

OF_COMMAND: Mapping[str, Option] = {
    CONFIG: Option(
        name=CONFIG,
        kind=path("a file", "FILE"),
        default=None,
        meaning="a file that python -m profiler.estimate reads: its estimate is put next to what is measured; further "
        "keys of a trial, such as model=NAME, complete it",
        null="no estimate",
    ),
    **{name: each for name, each in _READ.items() if name not in OF_GPUS},
}
"""Options with a command, by name."""

KEYS = {**OF_GPUS, **OF_COMMAND}
"""All, in the order of the help text."""
