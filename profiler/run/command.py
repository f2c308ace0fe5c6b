"""The parsed command line of `python -m profiler.run`: our keys, a launcher, the script and its arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.config.command_words import own_words
from profiler.config.key_help import option_lines
from profiler.config.option import read_options
from profiler.config.value_grammar import read_into
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.run.launchers import Launch, read_launch, split_launcher
from profiler.run.options import KEYS, ScriptOptions
from profiler.storage.files.foreign_files import Kind, expanded, kind_of, reason

_INDENT = 20
"""Columns before the meaning of a key in the help text."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command line without faults."""

    options: ScriptOptions
    launch: Launch
    script: Path
    """Absolute."""
    arguments: tuple[str, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program). Our keys end where `own_words` ends them.

    Raises:
        UsageError: Carries every fault found.
    """
    faults: list[Fault] = []
    own, others = own_words(words)
    values: dict[str, object] = {}
    for word in own:
        _read_word(word, values, faults)
    launcher, rest = split_launcher(others)
    launch = read_launch(launcher, faults)
    script = _script(rest, launcher, faults)
    options = None
    try:
        options = read_options(ScriptOptions, values)
    except UsageError as error:
        faults.extend(error.faults)
    if options is None or script is None or faults:
        raise UsageError(tuple(dict.fromkeys(faults)))
    return Command(options=options, launch=launch, script=script, arguments=rest[1:])


def _read_word(word: str, values: dict[str, object], faults: list[Fault]) -> None:
    key, _, text = word.partition("=")
    if key not in KEYS:
        problem = f"is an unknown key; the keys are {', '.join(KEYS)}"
        hint = nearest(key, tuple(KEYS)) or "Arguments of the script come after its name."
        faults.append(Fault(key=key or "key", found=text, problem=problem, hint=hint))
        return
    read_into(values, key, text, faults, KEYS[key].kind.read_text)


def _script(rest: Sequence[str], launcher: Sequence[str], faults: list[Fault]) -> Path | None:
    name = rest[0] if rest else ""
    if not name:
        after = f"after {' '.join(launcher[:2])} " if launcher else ""
        hint = "See python -m profiler.run --help."
        faults.append(Fault(key="script", found="none", problem=f"name a Python file {after}to run", hint=hint))
        return None
    problem, hint = _problem(name)
    if problem:
        faults.append(Fault(key="script", found=name, problem=problem, hint=hint))
        return None
    return expanded(name).absolute()


def _problem(name: str) -> tuple[str, str]:
    """Return why a word is not a script, and a hint; empty if it is one."""
    if name.startswith("-"):
        return "is an option, and a script comes first", "Our keys are written as key=value."
    try:
        kind = kind_of(expanded(name))
    except OSError as error:
        return f"cannot be read ({reason(error)})", ""
    if kind is Kind.MISSING:
        if name.startswith("python"):
            return "no such file", "Leave it out: python=PATH chooses it."
        return "no such file", "Our keys are written as key=value." if name in KEYS else ""
    if kind is not Kind.FILE:
        return f"is a {kind.value if kind is Kind.FOLDER else 'device or a pipe'}, and a Python file is needed", ""
    if not name.endswith(".py"):
        return "is not a Python file (.py)", ""
    return "", ""


def usage() -> str:
    """Return the text."""
    return f"""\
python -m profiler.run [key=value ...] train.py [argument ...]
python -m profiler.run [key=value ...] torchrun [option ...] train.py

Run a PyTorch training script as it is and show its GPU memory by phase:
measured on a GPU, or emulated or simulated without one. Our keys (key=value or
--key value) end at the first other word, or at "--"; the words after the script
are its own.
torchrun, accelerate launch and deepspeed in front of the script are understood.

{option_lines(KEYS.values(), indent=_INDENT)}
The results are a table, <results_dir>/scripts/<script>/report.html, parquet
files and records (docs/scripts.md). Exit codes: docs/exit_codes.md.

Examples:
  python -m profiler.run train.py --learning_rate 1e-5
  python -m profiler.run gpu=rtx-4090-24gb steps=2 train.py config/small.py
  python -m profiler.run backend=emulated torchrun --nproc_per_node=8 train.py
  python -m profiler.run snapshot=true breakdown=true train.py
"""
