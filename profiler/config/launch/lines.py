"""The one command of a shell script, or of a command line, that trains."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from profiler.config.files.arguments import read_arguments
from profiler.config.files.foreign_formats import foreign_script
from profiler.config.foreign_text import ForeignTextError
from profiler.config.launch.launchers import PYTHON, TRL, Started, started
from profiler.config.notes import not_counted
from profiler.config.shell.run_script import ENVIRONMENTS
from profiler.config.shell.running import SOURCES, Call, TextReader, commands_run, no_text
from profiler.config.shell.values import Item, Value, is_label
from profiler.config.trl.argument_keys import is_trl_key
from profiler.config.trl.argument_values import OTHER_TRAINERS
from profiler.domain.trials.recipe import Recipe

_TRL_TRAINERS = frozenset({*Recipe, *OTHER_TRAINERS})
"""Commands of trl that train, in any version."""

_OTHER_COMMANDS = frozenset({"chat", "env", "skills", "vllm-serve", "vllm_serve", "run", ""})
"""Commands of trl that do not."""

_PREPARES = re.compile(
    r"(?:^|_)(?:eval\w*|infer\w*|test\w*|prepare\w*|preprocess\w*|download\w*|merge\w*|convert\w*|generate\w*|serve\w*|"
    r"plot\w*|upload\w*|build\w*|filter\w*|score\w*|export\w*|push\w*|check\w*|verify\w*|setup|install\w*|bench\w*)(?:_|$)"
)
"""Names of scripts that prepare a training or use its result."""

_TRAINS = re.compile(r"train|grpo|rloo|sft|dpo|ppo|kto|orpo|finetune|(?:^|_)rl(?:_|$)|(?:^|_)ft(?:_|$)", re.IGNORECASE)
_LAUNCHES = re.compile(r"\b(?:accelerate|torchrun|trl|deepspeed|swift|llamafactory-cli|axolotl|python3?)\b")
_NOT_SCRIPTS = ("pip", "vllm", "http.server", "venv", "json.tool", "ipykernel", "ray")
SHELL = (".sh", ".bash", ".slurm", ".sbatch")
"""How names of shell scripts end."""

_RUN_SCRIPTS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh", "nohup", "sbatch", "srun", "exec", "time")
_PARTS = re.compile(r"--(?:gpu|max|tensor|data|kv|dtype|enforce)[-_]?")
_MOST_CALLED = 5
"""How many scripts run one another."""
_FEWEST_KEYS = 2
"""Keys of trl among the arguments of a script, by which it trains whatever its name is."""


def training_in(text: str, called: Call | None = None, read: TextReader = no_text) -> Started:
    """Return what a shell script starts that trains.

    Args:
        text: The script.
        called: The command of another script that runs it; None if there is none.
        read: Returns the text of a file that it reads as its own.

    Raises:
        ForeignTextError: It starts no training, or several, or exceeds a limit.
    """
    calls = commands_run(text, called, read)
    found = _one([found for call in calls for found in _trainings(call)])
    files = [each[1] for call in calls if (each := [item.value.text for item in call.items])[0] in SOURCES and each[1:]]
    texts = [f"what {each} sets, which is not here" for each in files if not each.endswith(ENVIRONMENTS)]
    texts += [f"{each} of trl vllm-serve (its engine is that of its defaults)" for each in _of_servers(calls)]
    return replace(found, notes=tuple(not_counted(text) for text in dict.fromkeys(texts)))


def _of_servers(calls: Sequence[Call]) -> Iterator[str]:
    """Return the options of an engine of its own by which it takes another part of its card."""
    for texts in [[item.value.text for item in call.items] for call in calls]:
        if "trl" in texts and {"vllm-serve", "vllm_serve"} & {*texts}:
            yield from (each for each in texts if each.startswith("--") and _PARTS.match(each))


def innermost(name: str, text: str, read: TextReader) -> tuple[str, str, Call | None]:
    """Return the script that a shell script without a training of its own runs: its name, text and call.

    Raises a `ForeignTextError` if it runs several, or one that is not there, or exceeds a limit.
    """
    called: Call | None = None
    for _ in range(_MOST_CALLED):
        calls = commands_run(text, called, read)
        found = [one for call in calls if (one := _script_of(call)) is not None]
        if not found or foreign_script(name, text) is not None or any(True for call in calls for _ in _trainings(call)):
            break
        if len({repr(each) for each in found}) > 1:
            shown = ", ".join(dict.fromkeys(inner for inner, _ in found))
            raise ForeignTextError(f"starts no training itself and runs several scripts ({shown}); give one of these")
        path, called = found[0]
        name, there = PurePosixPath(path).name, read(path)
        if there is None:
            problem = f"starts no training itself and runs {path}, which is not here; give that script in its place"
            raise ForeignTextError(problem)
        text = there
    return name, text, called


def _script_of(call: Call) -> tuple[str, Call] | None:
    texts = [item.value.text for item in call.items]
    place = next((place for place, text in enumerate(texts) if text.endswith(SHELL)), None)
    if place is None or not all(text in _RUN_SCRIPTS or text.startswith("-") for text in texts[:place]):
        return None
    if _PREPARES.search(PurePosixPath(texts[place]).stem):
        return None
    return texts[place], replace(call, items=call.items[place + 1 :])


def training_of(words: Sequence[str]) -> Started:
    """Return what the words of one command start.

    Raises:
        ForeignTextError: It is not known that this trains.
    """
    if not words:
        raise ForeignTextError("is empty, and a command that trains must follow")
    items = [Item(value=Value(text=word)) for word in words if not _is_assignment(word)]
    found = started(items, dict(_assignments(words)))
    if found is None or not found.program:
        raise ForeignTextError(
            "starts nothing that is known; trl, accelerate launch, torchrun, deepspeed, swift, llamafactory-cli, "
            "axolotl and python are"
        )
    _check_command(found)
    return found


def words_of(text: str) -> list[str]:
    """Return the words of a command.

    Raises:
        ForeignTextError: A quote is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ForeignTextError(f"is not a command ({str(error).lower()})") from error


def _assignments(words: Sequence[str]) -> Iterator[tuple[str, Value]]:
    for word in words:
        if not _is_assignment(word):
            return
        name, _, text = word.partition("=")
        yield name, Value(text=text)


def _is_assignment(word: str) -> bool:
    return re.match(r"[A-Za-z_]\w*=", word) is not None


def _trainings(called: Call, *, is_inner: bool = False) -> Iterator[Started]:
    """Return the trainings of a command: its own, or those of a text that it passes to another shell."""
    found, items = started(called.items, called.environment), called.items
    if found is not None:
        if _trains(found):
            yield found
        return
    for item in items if not is_inner else ():
        text = item.value.text
        if not item.value.alternatives and " " in text.strip() and _LAUNCHES.search(text) and not is_label(text):
            for call in commands_run(text):
                yield from _trainings(call, is_inner=True)


def _trains(found: Started) -> bool:
    program = found.program
    if found.launcher.commands:
        return program in found.launcher.commands
    if found.launcher is TRL:
        return program not in _OTHER_COMMANDS
    if not program or (found.is_module and program.partition(".")[0] in _NOT_SCRIPTS):
        return False
    stem = stem_of(program)
    keys = read_arguments(found.arguments)
    own = [key for key in (*keys.values, *keys.undecided) if is_trl_key(key) or key == "config"]
    if len(own) >= _FEWEST_KEYS:
        return True
    if _PREPARES.search(stem) or (not found.is_module and not program.endswith(".py")):
        return False
    return found.launcher is not PYTHON or _TRAINS.search(stem) is not None


def stem_of(program: str) -> str:
    """Return the name of a script or module without folder, package and suffix."""
    return PurePosixPath(program).stem if program.endswith(".py") else program.rpartition(".")[2]


def _one(found: Sequence[Started]) -> Started:
    different = list(dict.fromkeys(found_words(each) for each in found))
    if not found:
        raise ForeignTextError("starts no training that is known")
    if len(different) > 1:
        shown = ", ".join(dict.fromkeys(each.said for each in found))
        raise ForeignTextError(f"starts {len(different)} trainings ({shown}), and one is read; give it after --")
    _check_command(found[0])
    return found[0]


def found_words(found: Started) -> tuple[object, ...]:
    """Return what distinguishes one training from another."""
    return (found.said, repr(found.options), found.arguments)


def _check_command(found: Started) -> None:
    """Check that a command of trl, or of a program with commands of its own, is one that trains."""
    if found.launcher.commands and found.program not in found.launcher.commands:
        raise ForeignTextError(f"runs {found.said}, which trains nothing")
    if found.launcher is not TRL or found.program in _TRL_TRAINERS:
        return
    if found.program in _OTHER_COMMANDS:
        raise ForeignTextError(f"runs trl {found.program}, which trains nothing")
    raise ForeignTextError(f"runs trl {found.program}, and trl has no such command")
