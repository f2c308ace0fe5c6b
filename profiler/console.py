"""`grpo-vram COMMAND ...`: all commands under one name, as `python -m profiler COMMAND ...`.

`python -m profiler.COMMAND ...` does the same.
"""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from profiler import __version__
from profiler.command_line import as_command, print_line, print_text
from profiler.commands import COMMANDS, options_of_command, start
from profiler.domain.errors import EXIT_OK, Fault, UsageError, nearest
from profiler.domain.machines.extras import DISTRIBUTION
from profiler.domain.models.builtin_models import BUILTIN_MODELS, VISION_MODELS, find_builtin
from profiler.domain.trials.trial import TRIAL_KEYS

NAME = DISTRIBUTION

_ESTIMATE = "estimate"

_JOB_FILES = (".yaml", ".yml", ".json", ".py", ".sh")
"""How the names of files end that describe a job."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@as_command(NAME)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word of `argv` (without the program) names; without one list all commands.

    If the first word is a model, a hub id or a file, the command is an estimate of it.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    first = words[0] if words else ""
    if first in ("", "-h", "--help"):
        print_line(usage())
        return EXIT_OK
    if first == "--version":
        print_line(f"{NAME} {__version__}")
        return EXIT_OK
    if first in ("-sc", "--shell-completion"):
        return _complete(words)
    if first in COMMANDS:
        return start(first, words[1:])
    if described := _described_by(first):
        return start(_ESTIMATE, [described, *words[1:]])
    raise UsageError([_unknown(first)])


def _described_by(word: str) -> str:
    """Return the key of an estimate that a word without a key is the value of, with it; empty if there is none."""
    path = Path(word)
    # `os.path`, because it takes a name that is too long for one that does not exist.
    if path.name == "config.json" or os.path.isdir(word) or all(map(find_builtin, word.split(","))):  # noqa: PTH112
        return f"model={word}"
    if os.path.isfile(word) or (path.suffix in _JOB_FILES and "=" not in word):  # noqa: PTH113
        return f"config={word}"
    return f"model={word}" if _HUB_ID.fullmatch(word) else ""


def usage() -> str:
    """Return the text of `grpo-vram --help`."""
    listed = "\n".join(f"  {name:<10}{command.summary}" for name, command in COMMANDS.items())
    return (
        f"{NAME} COMMAND [argument ...]\n\n"
        "How much GPU memory training needs: measured, emulated, simulated or estimated.\n\n"
        f"{listed}\n\n"
        f"{NAME} COMMAND --help shows the arguments of a command, with examples.\n"
        f"{NAME} COMMAND and python -m profiler.COMMAND are the same. A model, a\n"
        f"hub id or a file in place of COMMAND is estimated.\n"
        f'eval "$({NAME} -sc install=bash)" completes commands, grids and keys in bash.\n\n'
        "Examples:\n"
        f"  {NAME} qwen2.5-7b tuning=lora gpu=h100-80gb\n"
        f"  {NAME} grpo.yaml gpu=4090\n"
        f"  {NAME} sweep +grid=lora_vs_full\n"
        f"  {NAME} run train.py\n"
        f"  {NAME} report results/lora_vs_full"
    )


def _complete(words: Sequence[str]) -> int:
    """Answer the shell: names of commands, their keys and words, and Hydra's completion of grids after `sweep`."""
    if not any(word.startswith("query=") for word in words):
        return start("sweep", words)
    line = os.environ.get("COMP_LINE", "")
    typed = line.split(maxsplit=2)[1:]
    if not typed or (len(typed) == 1 and not line.endswith(" ")):
        print_line(" ".join(COMMANDS))
    elif typed[0] == "sweep":
        # Hydra expects overrides right after the program.
        os.environ["COMP_LINE"] = f"{NAME} {''.join(typed[1:])}"
        return start("sweep", words)
    elif typed[0] in COMMANDS:
        last = "" if line.endswith(" ") else line.split()[-1]
        print_text("".join(f"{each}\n" for each in _endings(typed[0], last)))
    return EXIT_OK


def _endings(name: str, word: str) -> list[str]:
    """Return the words of a command that begin with `word`: keys, and where one is complete its allowed words."""
    words = {key: option.kind.words for key, option in options_of_command(name).items()}
    if COMMANDS[name].has_trial_keys:
        words |= {key.name: key.allowed for key in TRIAL_KEYS}
    key, equals, _ = word.partition("=")
    offered = [f"{key}={each}" for each in words.get(key, ())] if equals else [f"{key}=" for key in words]
    return [each for each in offered if each.startswith(word)]


def _unknown(word: str) -> Fault:
    names = tuple(COMMANDS)
    problem = f"must be one of {', '.join(names)}"
    hint = nearest(word, (*names, *BUILTIN_MODELS, *VISION_MODELS)) or f"See {NAME} --help."
    return Fault(key="command", found=word, problem=problem, hint=hint)


if __name__ == "__main__":
    sys.exit(main())
