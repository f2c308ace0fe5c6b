"""The parsed command line of `python -m profiler.monitor`: our keys, and the command to watch, if there is one."""

import os
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath

from profiler.config.command_words import END, own_words
from profiler.config.key_help import option_lines
from profiler.config.option import read_options
from profiler.config.reading import show
from profiler.config.trl_interval import KEY as TRL
from profiler.config.value_grammar import read_into
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.trial import SPEC_KEYS
from profiler.monitor.options import CONFIG, KEYS, OF_COMMAND, OF_GPUS, MonitorOptions
from profiler.storage.files.foreign_files import Kind, kind_of, reason

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
        elif key in KEYS:
            read_into(values, key, text, faults, KEYS[key].kind.read_text)
        else:
            faults.append(_unknown(key, text))
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


def _unknown(key: str, text: str) -> Fault:
    problem = f"is an unknown key; the keys are {', '.join(KEYS)} and those of a trial"
    hint = (
        nearest(key, (*KEYS, *SPEC_KEYS)) or "An environment variable is set before python, or by env after our keys."
    )
    return Fault(key=key or "key", found=text, problem=problem, hint=hint)


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
    if kind is Kind.MISSING:
        return "no such file"
    return "is not a program that can be run" if kind is Kind.FILE else f"is a {kind.value}, and a program is needed"


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
