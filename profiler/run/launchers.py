"""Launchers in front of a script: `torchrun`, `accelerate launch` and `deepspeed`, as far as they decide its processes.

A launcher is not started. What it says about the number of processes is read here; what else it decides, such
as mixed precision or FSDP in a configuration of accelerate, is set up in the script's process (`process.py`).
A whole command of `gpus=` is started, with its launcher: here is which words lead it away from the emulated cards.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from profiler.config.foreign_text import ForeignTextError, parse_yaml
from profiler.config.shell.running import commands_run
from profiler.domain.errors import Fault
from profiler.storage.files.foreign_files import Kind as FileKind
from profiler.storage.files.foreign_files import expanded, kind_of, read_bytes, reason

_MOST_BYTES = 1 << 20
_SUFFIX = ".py"
MODULE_OPTIONS = ("-m", "--module")


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Options of a launcher that say how many processes there are."""

    words: tuple[str, ...]
    """The words that start it."""
    counts: tuple[tuple[str, ...], ...]
    """Options whose numbers are multiplied, each with its spellings without dashes and underscores."""
    needed: tuple[str, ...]
    """The one without which the number is unknown."""


_KINDS = (
    _Kind(
        words=("torchrun",),
        counts=(("nprocpernode", "npernode"), ("nnodes",)),
        needed=("nprocpernode", "npernode"),
    ),
    _Kind(words=("accelerate", "launch"), counts=(("numprocesses",),), needed=("numprocesses",)),
    _Kind(words=("deepspeed",), counts=(("numgpus",), ("numnodes",)), needed=("numgpus",)),
)

_CONFIG = "configfile"


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The words of a launcher."""

    words: tuple[str, ...] = ()
    """All words in front of the script; empty without a launcher."""
    num_processes: int | None = None
    """None if the words do not say it."""


def split_launcher(words: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the words of a launcher, and the script with its arguments."""
    if not any(tuple(words[: len(kind.words)]) == kind.words for kind in _KINDS):
        return (), tuple(words)
    place = next((place for place, word in enumerate(words) if _is_script(word)), len(words))
    return tuple(words[:place]), tuple(words[place:])


def read_launch(words: tuple[str, ...], faults: list[Fault]) -> Launch:
    """Return how many processes a launcher would start; faults are appended."""
    kind = next((each for each in _KINDS if words[: len(each.words)] == each.words), None)
    if kind is None:
        return Launch()
    given = _options(words[len(kind.words) :])
    if set(given) & {option.strip("-") for option in MODULE_OPTIONS}:
        faults.append(_fault("launcher", " ".join(words), "runs a module, and only files are run", "Name the file."))
    values = _file_values(given[_CONFIG], faults) if _CONFIG in given else {}
    total, known = 1, False
    for spellings in kind.counts:
        name = next((each for each in spellings if each in given or each in values), None)
        if name is None:
            continue
        found = given.get(name, values.get(name, ""))
        if found.isdigit() and 1 <= int(found) < 1_000_000:
            total *= int(found)
            known = known or name in kind.needed
        elif name in kind.needed and found not in ("auto", "gpu", "cpu", "xpu"):
            faults.append(_fault(f"{kind.words[0]} {name}", found or "nothing", "must be a number of at least 1"))
    return Launch(words=words, num_processes=total if known else None)


_ENVIRONMENT_LOST = "starts the command without the environment of the emulated cards"
_OWN_PYTHON = "chooses a Python by itself, and the emulated cards need one with torch's CUDA build"
_IN_CONTAINER = "starts the command in a container, which has none of the emulated cards"
_BY_OTHERS = "has the command started by other processes, which are not part of the run"
_NO_RIGHTS = "Leave it out: emulated cards need no rights."
_NAME_PYTHON = "Leave it out, and name that Python: python=PATH."
_WITHOUT = "Leave it out, and give the command that it starts."

_LEAD_AWAY: Mapping[tuple[str, ...], tuple[str, str]] = {
    **dict.fromkeys([("sudo",), ("doas",), ("su",)], (_ENVIRONMENT_LOST, _NO_RIGHTS)),
    **dict.fromkeys(
        [("env", "-i"), ("env", "-"), ("env", "--ignore-environment")],
        (_ENVIRONMENT_LOST, "Leave out the option; env NAME=VALUE works."),
    ),
    **dict.fromkeys(
        [(tool, "run") for tool in ("conda", "mamba", "micromamba", "poetry", "uv", "pdm", "pipenv", "pixi", "hatch")],
        (_OWN_PYTHON, _NAME_PYTHON),
    ),
    **dict.fromkeys([("uvx",), ("pipx", "run")], (_OWN_PYTHON, _NAME_PYTHON)),
    **dict.fromkeys([("docker",), ("podman",), ("nerdctl",)], (_IN_CONTAINER, _WITHOUT)),
    **dict.fromkeys([("apptainer",), ("singularity",), ("enroot",)], (_IN_CONTAINER, _WITHOUT)),
    **dict.fromkeys(
        [("srun",), ("sbatch",), ("salloc",), ("ssh",), ("kubectl",), ("ray", "job"), ("ray", "submit"), ("tmux",)],
        (_BY_OTHERS, _WITHOUT),
    ),
    **dict.fromkeys([("screen",), ("systemd-run",)], (_BY_OTHERS, _WITHOUT)),
}
"""Words in front of a command: what they do with it, and what to do instead."""

_SHELLS = ("bash", "sh", "dash", "zsh", "ksh")
_SHELL_SCRIPTS = (".sh", ".bash")
_SCRIPTS = (".py", *_SHELL_SCRIPTS)


def command_faults(words: Sequence[str]) -> list[Fault]:
    """Return why a command would not run on the emulated cards, as far as its words say so, before it is started."""
    front = list(words[: next((place + 1 for place, word in enumerate(words) if _begins(word)), len(words))])
    names = [PurePath(word).name for word in front]
    if lead := _lead_away(names):
        return [_fault("command", " ".join(lead), *_LEAD_AWAY[lead])]
    if names[-1:] == ["-c"] and set(names) & set(_SHELLS):
        return _faults_of("".join(words[len(front) : len(front) + 1]), "the text after -c", frozenset())
    script = front[-1] if front and front[-1].endswith(_SCRIPTS) else None
    if script is None or not _is_started(names[:-1]):
        return []
    try:
        kind = kind_of(expanded(script))
    except OSError as error:
        return [_fault("script", script, f"cannot be read ({reason(error)})")]
    if kind is FileKind.MISSING:
        return [_fault("script", script, "no such file", "It is looked for from the folder in which this runs.")]
    if not names[:-1] and not os.access(expanded(script), os.X_OK):
        return [_fault("script", script, "cannot be run as a program", f"Name its shell: bash {script}.")]
    return _faults_in(script, frozenset())


def _lead_away(names: Sequence[str]) -> tuple[str, ...]:
    """Return the words that lead a command away from the emulated cards; none if it stays there."""
    for place in range(len(names)):
        for lead in _LEAD_AWAY:
            if tuple(names[place : place + len(lead)]) == lead:
                return lead
    return ()


def _faults_in(script: str, outer: frozenset[str]) -> list[Fault]:
    """Return why what a script starts would not run there; `outer` are the scripts that start it."""
    if not script.endswith(_SHELL_SCRIPTS) or script in outer:
        return []
    try:
        text = read_bytes(expanded(script), most_bytes=_MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError):
        return []  # Its shell says what is wrong with it, or it is made before it is started.
    return _faults_of(text, script, outer | {script})


def _faults_of(text: str, where: str, outer: frozenset[str]) -> list[Fault]:
    """Return why what a text of a shell starts would not run there. What only a branch starts is left to the run."""
    try:
        calls = commands_run(text)
    except ForeignTextError:
        return []
    for call in calls:
        words = [item.value.text if item.value.is_known and item.is_certain else "" for item in call.items]
        first = next((place for place, word in enumerate(words) if _begins(word)), None)
        if first is None or not call.is_certain:
            continue
        if lead := _lead_away([PurePath(word).name for word in words[:first]]):
            problem, hint = _LEAD_AWAY[lead]
            return [_fault("command", f"{' '.join(lead)} in {where}", problem, hint)]
        if faults := _faults_in(words[first], outer):
            return faults
    return []


def _begins(word: str) -> bool:
    """Whether the words after this one are arguments of a program of the command."""
    return word.endswith(_SCRIPTS) or word in ("-c", *MODULE_OPTIONS)


def _is_started(names: Sequence[str]) -> bool:
    """Whether these words start the script that comes after them, in this folder."""
    if not names or any(tuple(names[: len(kind.words)]) == kind.words for kind in _KINDS):
        return True
    return (names[0] in _SHELLS or names[0].startswith("python")) and all(name.startswith("-") for name in names[1:])


def _is_script(word: str) -> bool:
    return word.endswith(_SUFFIX) and not word.startswith("-")


def _options(words: Sequence[str]) -> Mapping[str, str]:
    """Return the options, without dashes and underscores in their names, and their values or the words after them."""
    found: dict[str, str] = {}
    for place, word in enumerate(words):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            following = words[place + 1] if place + 1 < len(words) else ""
            found[name.replace("-", "").replace("_", "")] = value if equals else following
    return found


def _file_values(path: str, faults: list[Fault]) -> Mapping[str, str]:
    """Return the numbers in a configuration of accelerate."""
    try:
        found = parse_yaml(read_bytes(Path(path), most_bytes=_MOST_BYTES).decode())
    except OSError as error:
        faults.append(_fault("config_file", path, f"cannot be read ({reason(error)})"))
        return {}
    except (ForeignTextError, UnicodeDecodeError) as error:
        faults.append(_fault("config_file", path, f"is not a configuration of accelerate, because it {error}"))
        return {}
    if not isinstance(found, dict):
        faults.append(_fault("config_file", path, "is not a configuration of accelerate"))
        return {}
    return {str(name).replace("_", ""): str(value) for name, value in found.items()}


def _fault(key: str, found: str, problem: str, hint: str = "") -> Fault:
    return Fault(key=key, found=found, problem=problem, hint=hint)
