"""`grpo-vram COMMAND ...`: all commands under one name. `python -m profiler.COMMAND ...` does the same."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from profiler import __version__
from profiler.command_line import as_command, print_line
from profiler.domain.errors import EXIT_OK, Fault, UsageError, nearest

NAME = "grpo-vram"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One command."""

    summary: str
    run: Callable[[Sequence[str]], int]
    """Takes the words after the command's name, returns the exit code."""


@as_command(NAME)
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the first word of `argv` (without the program) names; return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    first = words[0] if words else ""
    if first in ("-h", "--help"):
        print_line(usage())
        return EXIT_OK
    if first == "--version":
        print_line(f"{NAME} {__version__}")
        return EXIT_OK
    if first in ("-sc", "--shell-completion"):
        return _complete(words)
    if first not in COMMANDS:
        raise UsageError([_unknown(first)])
    return COMMANDS[first].run(words[1:])


def usage() -> str:
    """Return the text of `grpo-vram --help`."""
    listed = "\n".join(f"  {name:<10}{command.summary}" for name, command in COMMANDS.items())
    return (
        f"{NAME} COMMAND [argument ...]\n\n"
        "How much GPU memory training needs: measured, emulated, simulated or estimated.\n\n"
        f"{listed}\n\n"
        f"{NAME} COMMAND --help shows the arguments of a command, with examples.\n"
        f"{NAME} COMMAND and python -m profiler.COMMAND are the same.\n"
        f'eval "$({NAME} -sc install=bash)" completes commands, grids and keys in bash.\n\n'
        "Examples:\n"
        f"  {NAME} estimate model=qwen2.5-7b tuning=lora gpu=h100-80gb\n"
        f"  {NAME} sweep +grid=lora_vs_full\n"
        f"  {NAME} run train.py\n"
        f"  {NAME} report results/lora_vs_full"
    )


def _complete(words: Sequence[str]) -> int:
    """Answer the shell: names of commands, and Hydra's completion of grids and keys after `sweep`."""
    if not any(word.startswith("query=") for word in words):
        return _sweep(words)
    line = os.environ.get("COMP_LINE", "")
    typed = line.split(maxsplit=2)[1:]
    if not typed or (len(typed) == 1 and not line.endswith(" ")):
        print_line(" ".join(COMMANDS))
    elif typed[0] == "sweep":
        # Hydra expects overrides right after the program.
        os.environ["COMP_LINE"] = f"{NAME} {''.join(typed[1:])}"
        return _sweep(words)
    return EXIT_OK


def _unknown(word: str) -> Fault:
    names = tuple(COMMANDS)
    problem = f"must be one of {', '.join(names)}"
    hint = nearest(word, names) or f"See {NAME} --help."
    return Fault(key="command", found=word or "none", problem=problem, hint=hint)


# Each command is imported when it runs: an estimate does without the imports of a sweep.


def _sweep(words: Sequence[str]) -> int:
    from profiler.sweep.main import main as run

    return run(words)


def _estimate(words: Sequence[str]) -> int:
    from profiler.estimate.main import main as run

    return run(words)


def _solve(words: Sequence[str]) -> int:
    from profiler.solve.main import main as run

    return run(words)


def _report(words: Sequence[str]) -> int:
    from profiler.report.main import main as run

    return run(words)


def _replay(words: Sequence[str]) -> int:
    from profiler.replay.main import main as run

    return run(words)


def _run(words: Sequence[str]) -> int:
    from profiler.run.main import main as run

    return run(words)


def _monitor(words: Sequence[str]) -> int:
    from profiler.monitor.main import main as run

    return run(words)


def _seams(words: Sequence[str]) -> int:
    from profiler.seams.__main__ import main as run

    return run(words)


def _emulation(words: Sequence[str]) -> int:
    from profiler.emulation.__main__ import main as run

    return run(words)


COMMANDS: Mapping[str, Command] = {
    "estimate": Command(summary="estimate one trial in closed form, within a second", run=_estimate),
    "solve": Command(summary="find the largest setting that fits a card", run=_solve),
    "sweep": Command(summary="run a grid of trials: measured on a GPU, emulated or simulated", run=_sweep),
    "report": Command(summary="draw stored results again, or compare two sweeps", run=_report),
    "run": Command(summary="run any training script and show its memory by phase", run=_run),
    "monitor": Command(summary="show the GPUs, or watch the memory of any command", run=_monitor),
    "replay": Command(summary="replay a memory snapshot with other settings or cards", run=_replay),
    "seams": Command(summary="check what the profiler relies on in other libraries", run=_seams),
    "emulation": Command(summary="run torch's CUDA build on an emulated card", run=_emulation),
}
"""By name, in the order of the help text."""


if __name__ == "__main__":
    sys.exit(main())
