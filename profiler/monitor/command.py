"""The command line of `python -m profiler.monitor`: our options, the command to watch if there is one, and the help."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath

from profiler.config.options.command_words import END, own_words
from profiler.config.options.option import (
    FORMAT,
    Kind,
    Option,
    OutputFormat,
    choice,
    option,
    options_of,
    path,
    read_options,
)
from profiler.config.options.reading import FieldReader, show, unknown_key
from profiler.config.options.run_options import option_lines
from profiler.config.options.value_grammar import read_into
from profiler.config.trl_releases.facts import KEY as TRL
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.trial import SPEC_KEYS
from profiler.storage.files.foreign_files import Kind as FileKind
from profiler.storage.files.foreign_files import kind_of, reason

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

OPTIONS = {**OF_GPUS, **OF_COMMAND}
"""All, in the order of the help text."""


_SCRIPT, _MODULE = ".py", "-m"
_INDENT = 24
"""Columns before the meaning of a key in the help text."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line without faults."""

    options: MonitorOptions
    words: tuple[str, ...]
    """The command to watch; empty to show the GPUs."""
    estimate: tuple[str, ...]
    """Words for an estimate; empty without one."""

    @property
    def name(self) -> str:
        """Name of the folder of its results: that of the script or the module in it, otherwise of the program."""
        after_option = next((word for option, word in pairwise(self.words) if option == _MODULE), "")
        named = next((word for word in self.words if word.endswith(_SCRIPT)), after_option.rpartition(".")[2])
        return PurePath(named or self.words[0]).stem or "command"


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program). Our keys end where `own_words` ends them.

    Raises:
        UsageError: Carries every fault found.
    """
    faults: list[Fault] = []
    own, others = own_words(words)
    values: dict[str, object] = {}
    estimate: list[str] = []
    for word in own:
        key, _, text = word.partition("=")
        if key in (CONFIG, TRL) or key in SPEC_KEYS:
            estimate.append(word)
        elif key in OPTIONS:
            read_into(values, key, text, faults, OPTIONS[key].kind.read_text)
        else:
            hint = "An environment variable is set before python, or by env after our keys."
            faults.append(unknown_key(key, text, (*OPTIONS, *SPEC_KEYS), hint=hint))
    has_command = bool(others) or END in words
    known = OF_COMMAND if has_command else OF_GPUS
    faults += [_misplaced(key, show(value), has_command) for key, value in values.items() if key not in known]
    if not has_command:
        faults += [_misplaced(word.partition("=")[0], word.partition("=")[2], has_command) for word in estimate]
    else:
        faults += _program_faults(others)
    options = None
    try:
        options = read_options(MonitorOptions, values)
    except UsageError as error:
        faults.extend(error.faults)
    if options is None or faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    return Command(options=options, words=tuple(others), estimate=tuple(estimate))


def _misplaced(key: str, found: str, has_command: bool) -> Fault:
    without = "has a meaning only in front of a command to watch"
    with_one = "has no meaning with a command, which is sampled until it ends"
    return Fault(key=key, found=found, problem=with_one if has_command else without)


def _program_faults(words: Sequence[str]) -> list[Fault]:
    """Return why `words` cannot be started; empty if they can."""
    name = words[0] if words else ""
    found = shlex.join(words) or "none"
    if not name.strip():
        return [Fault(key="command", found=found, problem="name a program to run", hint=_see_help())]
    if name.startswith("-"):
        return [Fault(key="command", found=found, problem="begins with an option", hint=_see_help())]
    if "\0" in "".join(words):
        return [Fault(key="command", found=found, problem="has a character that no command can have")]
    if shutil.which(name) is not None:
        return []
    if os.sep not in name:
        hint = f"Did you mean 'python {name}'?" if name.endswith(_SCRIPT) else ""
        return [Fault(key="command", found=found, problem="no such program on the PATH", hint=hint)]
    return [Fault(key="command", found=found, problem=_file_problem(name))]


def _file_problem(name: str) -> str:
    try:
        kind = kind_of(Path(name))
    except (OSError, ValueError) as error:
        return f"cannot be read ({reason(error) if isinstance(error, OSError) else error})"
    if kind is FileKind.MISSING:
        return "no such file"
    return (
        "is not a program that can be run" if kind is FileKind.FILE else f"is a {kind.value}, and a program is needed"
    )


def _see_help() -> str:
    return "See python -m profiler.monitor --help."


def usage() -> str:
    """Return the text."""
    return f"""\
python -m profiler.monitor [watch=DURATION] [format=table|json]
python -m profiler.monitor [key=value ...] COMMAND [argument ...]

Without a command: the GPUs of this machine, their memory and load, the processes
on them, allocation retries and failed allocations of profiled ones, and what to
do about a GPU that is more than 90 % full.

{option_lines(OF_GPUS.values(), indent=_INDENT)}
With a command: run it as it is, sample the GPUs, its processes and the memory of
the host until it ends, and leave tables and a page. Signals are passed on, and
its exit code is that of this command. Our keys (key=value or --key value) end at
the first other word, or at "--".

{option_lines(OF_COMMAND.values(), indent=_INDENT)}
For the peaks of phases: VramCallback, python -m profiler.run (docs/monitor.md).

Examples:
  python -m profiler.monitor watch=1s
  python -m profiler.monitor format=json
  python -m profiler.monitor accelerate launch train.py --bf16
  python -m profiler.monitor config=grpo.yaml model=qwen2.5-7b python train.py
"""
