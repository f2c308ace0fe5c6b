"""The parsed command line of `python -m profiler.monitor`: our keys, and the command to watch, if there is one."""

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath

from profiler.config.command_words import END, own_words
from profiler.config.reading import show
from profiler.config.trl_interval import KEY as TRL
from profiler.config.value_grammar import read_into, read_path, read_value
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.trial import SPEC_KEYS
from profiler.monitor.options import CONFIG, KEYS, RESULTS_DIR, Mode, MonitorOptions, read_options
from profiler.storage.foreign_files import Kind, kind_of, reason

_SCRIPT, _MODULE = ".py", "-m"


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
        elif key in KEYS:
            _read_value(key, text, values, faults)
        else:
            faults.append(_unknown(key, text))
    mode = Mode.COMMAND if others or END in words else Mode.GPUS
    faults += [_misplaced(key, show(value), mode) for key, value in values.items() if KEYS[key].mode is not mode]
    if mode is Mode.GPUS:
        faults += [_misplaced(word.partition("=")[0], word.partition("=")[2], mode) for word in estimate]
    else:
        faults += _program_faults(others)
    options = None
    try:
        options = read_options(values)
    except UsageError as error:
        faults.extend(error.faults)
    if options is None or faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    return Command(options=options, words=tuple(others), estimate=tuple(estimate))


def _read_value(key: str, text: str, values: dict[str, object], faults: list[Fault]) -> None:
    read_into(values, key, text, faults, read_path if key == RESULTS_DIR else read_value)


def _unknown(key: str, text: str) -> Fault:
    problem = f"is an unknown key; the keys are {', '.join(KEYS)} and those of a trial"
    hint = (
        nearest(key, (*KEYS, *SPEC_KEYS)) or "An environment variable is set before python, or by env after our keys."
    )
    return Fault(key=key or "key", found=text, problem=problem, hint=hint)


def _misplaced(key: str, found: str, mode: Mode) -> Fault:
    if mode is Mode.GPUS:
        return Fault(key=key, found=found, problem="has a meaning only in front of a command to watch")
    return Fault(key=key, found=found, problem="has no meaning with a command, which is sampled until it ends")


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
    if kind is Kind.MISSING:
        return "no such file"
    return "is not a program that can be run" if kind is Kind.FILE else f"is a {kind.value}, and a program is needed"


def _see_help() -> str:
    return "See python -m profiler.monitor --help."
