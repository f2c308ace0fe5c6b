"""The parsed command line of `python -m profiler.emulation`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profiler.domain.errors import Fault, nearest
from profiler.domain.gpu import KNOWN_GPUS, Gpu
from profiler.domain.gpu_names import name_known_card

INSTALL, CHECK = "install", "check"
_KEYS = {INSTALL: ("torch", "python"), CHECK: ("python", "gpu", "strict")}
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_DEFAULT_GPU = "h100-80gb"


@dataclass(kw_only=True)
class Command:
    """A parsed command line; its errors are in `faults`."""

    action: str = ""
    torch: str | None = None
    python: Path | None = None
    gpu: Gpu = KNOWN_GPUS[_DEFAULT_GPU]
    strict: bool = True
    wants_help: bool = False
    faults: list[Fault] = field(default_factory=list)


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program). If a key is repeated, the last value counts."""
    command = Command(wants_help=any(word in ("-h", "--help") for word in words))
    if command.wants_help:
        return command
    command.action = words[0] if words else ""
    if command.action not in _KEYS:
        hint = nearest(command.action, list(_KEYS)) or "See python -m profiler.emulation --help."
        problem = f"must be one of {', '.join(_KEYS)}"
        command.faults.append(Fault(key="command", found=command.action or "none", problem=problem, hint=hint))
        # Each fault is found, not only the first.
    keys = _KEYS.get(command.action) or tuple(dict.fromkeys(key for keys in _KEYS.values() for key in keys))
    for word in words[1:]:
        _read_word(command, word, keys)
    return command


def _read_word(command: Command, word: str, keys: Sequence[str]) -> None:
    key, equals, value = word.partition("=")
    if not equals or word.startswith("-"):
        problem = "options are written as key=value"
        command.faults.append(Fault(key="argument", found=word, problem=problem))
    elif key not in keys:
        problem = f"unknown key; the keys are {', '.join(keys)}"
        command.faults.append(Fault(key=key, found=value, problem=problem, hint=nearest(key, keys)))
    else:
        _read_value(command, key, value)


def _read_value(command: Command, key: str, value: str) -> None:
    if key == "torch" and _VERSION.fullmatch(value):
        command.torch = value
    elif key == "torch":
        command.faults.append(Fault(key=key, found=value, problem="must be a version such as 2.13.0"))
    elif key == "python" and _is_file(value):
        command.python = Path(value)
    elif key == "python":
        problem = "must be a file that can be run"
        hint = "Give the interpreter, such as /path/to/environment/bin/python."
        command.faults.append(Fault(key=key, found=value, problem=problem, hint=hint))
    elif key == "gpu":
        _read_gpu(command, value)
    elif value in ("true", "false"):
        command.strict = value == "true"
    else:
        command.faults.append(Fault(key=key, found=value, problem="must be true or false"))


def _read_gpu(command: Command, value: str) -> None:
    card = name_known_card(value)
    if card.name:
        command.gpu = KNOWN_GPUS[card.name]
    else:
        command.faults.append(Fault(key="gpu", found=value, problem=card.problem, hint=card.hint))


def _is_file(path: str) -> bool:
    """Whether a path names a file; false for a path that no file can have."""
    try:
        return bool(path) and Path(path).is_file()
    except (OSError, ValueError):
        return False
