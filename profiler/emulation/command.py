"""The parsed command line of `python -m profiler.emulation`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from profiler.config.command_words import HELP_FLAGS, as_pairs
from profiler.config.reading import TextReader, show
from profiler.domain.errors import Fault, nearest
from profiler.domain.gpu import KNOWN_GPUS, Gpu
from profiler.domain.gpu_names import name_known_card

INSTALL, CHECK = "install", "check"
TORCH, PYTHON, GPU, STRICT = "torch", "python", "gpu", "strict"
_KEYS = {INSTALL: (TORCH, PYTHON), CHECK: (PYTHON, GPU, STRICT)}
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
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
    command = Command(wants_help=any(word in HELP_FLAGS for word in words))
    if command.wants_help:
        return command
    pairs = as_pairs(words)
    command.action = pairs[0] if pairs else ""
    if command.action not in _KEYS:
        hint = nearest(command.action, list(_KEYS)) or "See python -m profiler.emulation --help."
        problem = f"must be one of {', '.join(_KEYS)}"
        command.faults.append(Fault(key="command", found=command.action or "none", problem=problem, hint=hint))
        # Each fault is found, not only the first.
    keys = _KEYS.get(command.action) or tuple(dict.fromkeys(key for keys in _KEYS.values() for key in keys))
    own: dict[str, str] = {}
    for word in pairs[1:]:
        key, equals, text = word.partition("=")
        if not equals or word.startswith("-"):
            problem = "options are written as key=value"
            command.faults.append(Fault(key="argument", found=word, problem=problem))
        elif key not in keys:
            problem = f"unknown key; the keys are {', '.join(keys)}"
            command.faults.append(Fault(key=key, found=text, problem=problem, hint=nearest(key, keys)))
        else:
            own[key] = text
    _read(command, own)
    return command


def _read(command: Command, own: Mapping[str, str]) -> None:
    reader = TextReader(own, paths=(PYTHON,))
    torch, python = reader.value(TORCH), reader.value(PYTHON)
    if torch is not None and not _VERSION.fullmatch(show(torch)):
        reader.fail(TORCH, "must be a version such as 2.13.0")
    elif torch is not None:
        command.torch = show(torch)
    if python is not None and not _is_file(show(python)):
        hint = "Give the interpreter, such as /path/to/environment/bin/python."
        reader.fail(PYTHON, "must be a file that can be run", hint)
    elif python is not None:
        command.python = Path(show(python))
    if GPU in own:
        _read_gpu(command, reader)
    if STRICT in own:
        command.strict = reader.flag(STRICT)
    command.faults.extend(reader.faults)


def _read_gpu(command: Command, reader: TextReader) -> None:
    card = name_known_card(show(reader.value(GPU)))
    if card.name:
        command.gpu = KNOWN_GPUS[card.name]
    else:
        reader.fail(GPU, card.problem, card.hint)


def _is_file(path: str) -> bool:
    """Whether a path names a file; false for a path that no file can have."""
    try:
        return bool(path) and Path(path).is_file()
    except (OSError, ValueError):
        return False
