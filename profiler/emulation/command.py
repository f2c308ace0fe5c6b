"""The command line of `python -m profiler.emulation`: what to do, its options, and the help text."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from profiler.config.options.command_words import as_pairs, read_given, word_fault
from profiler.config.options.option import FLAG, KNOWN_CARD, Kind, Option, option, options_of
from profiler.config.options.reading import FieldReader, show
from profiler.config.options.run_options import option_lines
from profiler.config.options.value_grammar import read_path
from profiler.domain.errors import Fault, nearest

INSTALL, CHECK = "install", "check"
_VERSION = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+")
_INDENT = 24
"""Columns before the meaning of an option in the help text."""


def _release(reader: FieldReader, key: str) -> str:
    version = show(reader.value(key))
    if not _VERSION.fullmatch(version):
        reader.fail(key, "must be a version such as 2.13.0")
    return version


def _file(meaning: str, hint: str) -> Callable[[FieldReader, str], PurePath]:
    def read(reader: FieldReader, key: str) -> PurePath:
        written = show(reader.value(key))
        if not _is_file(written):
            reader.fail(key, f"must be {meaning}", hint)
        return PurePath(written)

    return read


_program = _file("a file that can be run", "Give the interpreter, such as /path/to/environment/bin/python.")
_requirements = _file("a file of pip's requirements", "Such as emulated_environments/verl.txt.")


def _is_file(path: str) -> bool:
    """Whether a path names a file; false for a path that no file can have."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


@dataclass(frozen=True, kw_only=True)
class EmulationOptions:
    """The options, in the order of the help text."""

    torch: str | None = option(
        None,
        Kind(allowed="a version such as 2.13.0", shown="VERSION", read=_release),
        "the release of torch to install",
        null="the one that the profiler is tested with",
    )
    python: PurePath | None = option(
        None,
        Kind(allowed="the path of a program", shown="PATH", read=_program, read_text=read_path),
        "install: the interpreter that makes the environment; check: that of an environment with a CUDA build of torch",
        null="install: this one; check: the installed one, or that in EMULATION_PYTHON",
    )
    requirements: PurePath | None = option(
        None,
        Kind(allowed="the path of a file", shown="FILE", read=_requirements, read_text=read_path),
        "install: pinned packages, in an environment of their own: all that it has if torch is one of them",
        null="what trials need",
    )
    gpu: str = option("h100-80gb", KNOWN_CARD, "the emulated card, also by a short name such as 4090")
    strict: bool = option(
        True,
        FLAG,
        "refuse a torch or an entry point of the driver that was never emulated; false: accept them",
    )


OPTIONS = options_of(EmulationOptions)
"""By name."""

_OF_ACTION: Mapping[str, Mapping[str, Option]] = {
    INSTALL: {name: OPTIONS[name] for name in ("torch", "python", "requirements")},
    CHECK: {name: OPTIONS[name] for name in ("python", "gpu", "strict")},
}


@dataclass(frozen=True, kw_only=True)
class Command:
    """A parsed command line; `faults` has what is wrong with it."""

    action: str
    options: EmulationOptions
    wants_help: bool
    faults: tuple[Fault, ...]


def read_command(words: Sequence[str]) -> Command:
    """Parse `words` (argv without the program), of which one names what to do."""
    pairs = as_pairs(words)
    given = read_given(EmulationOptions, pairs)
    action = given.others[0] if given.others else ""
    known = _OF_ACTION.get(action, OPTIONS)
    # Each fault is found, not only the first.
    wrong = [word for word in pairs if word in given.others[1:] or word.partition("=")[0] in OPTIONS.keys() - known]
    faults = [] if action in _OF_ACTION else [_unknown_action(action)]
    faults += [word_fault(word, known) for word in wrong]
    faults += [fault for fault in given.reader.faults if fault.key in known]
    return Command(action=action, options=given.options, wants_help=given.wants_help, faults=tuple(faults))


def _unknown_action(action: str) -> Fault:
    hint = nearest(action, list(_OF_ACTION)) or "See python -m profiler.emulation --help."
    return Fault(key="command", found=action or "none", problem=f"must be one of {', '.join(_OF_ACTION)}", hint=hint)


def usage() -> str:
    """Return the help text."""
    return f"""\
python -m profiler.emulation install [torch=VERSION] [python=PATH] [requirements=FILE]
python -m profiler.emulation check [python=PATH] [gpu=NAME] [strict=false]

torch's own CUDA build on a card that has memory and computes nothing. Linux on
x86-64, with gcc and g++; no GPU, no driver, no library of the vendor.

install makes an environment of its own (2 GB) in the cache folder; the present
one stays as it is. check builds the emulated libraries, once per installed
torch, and runs a small CUDA program.

{option_lines(OPTIONS.values(), indent=_INDENT)}
GRPO_VRAM_CACHE names another cache folder than ~/.cache/grpo-vram-profiler.

Examples:
  python -m profiler.emulation install
  python -m profiler.emulation install requirements=verl.txt
  python -m profiler.emulation check
  python -m profiler.emulation check gpu=4090
"""
