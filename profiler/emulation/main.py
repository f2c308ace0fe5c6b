"""`python -m profiler.emulation`: make an environment for the emulated card, and check one."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from profiler.command_line import as_command, print_line, print_text
from profiler.commands import COMMANDS
from profiler.config.options.command_words import as_pairs, read_given, word_fault
from profiler.config.options.option import FLAG, KNOWN_CARD, Kind, Option, option, options_of
from profiler.config.options.reading import FieldReader, show
from profiler.config.options.run_options import option_lines
from profiler.config.options.value_grammar import read_path
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, Fault, UsageError, nearest
from profiler.domain.memory import gib_text, mib_text
from profiler.emulation.installing import Contents, default_torch, for_trials, install, of_file
from profiler.emulation.launch import EmulatedPython, check, emulated_python

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


@as_command("emulation", when_interrupted="Run the same command: it starts again with what is not complete.")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    command = read_command(sys.argv[1:] if argv is None else argv)
    if command.wants_help:
        print_text(usage())
        return EXIT_OK
    if command.faults:
        raise UsageError(command.faults)
    python = _python(command)
    print_line(f"torch {python.torch}, CUDA {python.cuda}: {python.executable}")
    print_line(f"emulated libraries: {python.libraries}")
    found = check(python, KNOWN_GPUS[command.options.gpu], strict=command.options.strict)
    print_line(
        f"{found.card} (emulated), {gib_text(found.memory_bytes, 2)}: a small program allocated "
        f"{mib_text(found.allocated_bytes)} and reserved {mib_text(found.reserved_bytes)}; values: {found.values}"
    )
    return EXIT_OK


def _python(command: Command) -> EmulatedPython:
    options = command.options
    python = None if options.python is None else Path(options.python)
    if command.action == INSTALL:
        python = install(_contents(options), base=python, announce=print_line)
    return emulated_python(python, strict=options.strict)


def _contents(options: EmulationOptions) -> Contents:
    if options.requirements is None:
        found = for_trials(options.torch or default_torch())
    else:
        found = of_file(Path(options.requirements).expanduser().absolute())
        if options.torch is not None and options.torch != found.torch:
            problem = f"and {options.requirements} pins {found.torch}"
            raise UsageError([Fault(key="torch", found=options.torch, problem=problem, hint="Leave one of them out.")])
    if found.has_trainer:
        COMMANDS["emulation"].uses[INSTALL].check("command", INSTALL)
    return found
