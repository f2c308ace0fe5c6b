"""All commands, declared once: `python -m profiler.NAME` and `grpo-vram NAME` start them here."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec

from profiler.command_line import as_command
from profiler.config.options.option import Option
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.extras import TRAINING, Extra, listed, refuse_former, require, require_linux

TABLES = ("filelock", "markupsafe", "matplotlib", "numpy", "pandas", "pyarrow", "rich")
"""What commands import that write or read the tables, pages and figures of runs."""


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a command, or one use of it, needs where it runs."""

    imports: tuple[str, ...] = ()
    """What its modules import beyond the dependencies of the bare distribution."""
    extra: Extra = Extra.SWEEP
    """The extra that brings them."""
    on_linux_only: bool = False
    """Whether it follows processes by what only Linux has."""

    def check(self, key: str, found: str) -> None:
        """Check that this machine has them.

        Raises:
            UsageError: It does not. The sentence has `key` and `found`, the words of the user that need them.
        """
        if self.on_linux_only:
            require_linux(key, found, everywhere=listed(_everywhere()))
        require(key, found, self.imports, self.extra)


@dataclass(frozen=True, kw_only=True)
class Command(Needs):
    """One command. Every use of it has its needs."""

    summary: str
    has_trial_keys: bool = False
    """Whether the keys of a trial are among its words."""
    uses: Mapping[str, Needs] = field(default_factory=dict)
    """What some of its uses need in addition, by the words after its name."""
    of_clone: str = ""
    """A module that only a clone of the project has; empty if it needs none."""

    def check(self, key: str, found: str) -> None:
        """Check that this machine has what every use needs, and that this is a clone if it has to be one.

        Raises:
            UsageError: As in `Needs.check`; or this is an installed package.
        """
        super().check(key, found)
        if self.of_clone and find_spec(self.of_clone) is None:
            problem = "needs a clone of the project, whose kept results it reads, and this is an installed package"
            hint = "Clone the repository, and run it there: make install."
            raise UsageError([Fault(key=key, found=found, problem=problem, hint=hint)])


WATCHING = "COMMAND"
"""A use of `monitor`: a command is watched."""
TABLE = "runs.parquet"
"""A use of `share`: results are read from their table, because they have no records."""
FIGURE = "figure=PATH"
"""A use of commands that draw a figure where one is asked for."""


COMMANDS: Mapping[str, Command] = {
    "estimate": Command(summary="estimate one trial in closed form, within a second", has_trial_keys=True),
    "solve": Command(
        summary="find the largest setting that fits a card",
        has_trial_keys=True,
        uses={FIGURE: Needs(imports=("matplotlib",))},
    ),
    "advise": Command(summary="say what to change so that training fits a card", has_trial_keys=True),
    "forecast": Command(summary="say whether a whole run survives, step by step", imports=TABLES, has_trial_keys=True),
    "sweep": Command(
        summary="run a grid of trials: measured on a GPU, emulated or simulated",
        imports=("hydra", *TABLES),
        has_trial_keys=True,
        on_linux_only=True,
        uses={
            "backend=simulated": Needs(imports=TRAINING, extra=Extra.SIMULATE),
            "backend=cpu": Needs(imports=TRAINING, extra=Extra.SIMULATE),
            "backend=cuda": Needs(imports=TRAINING, extra=Extra.MEASURE),
        },
    ),
    "report": Command(summary="draw stored results again, or compare two sweeps", imports=TABLES),
    "run": Command(summary="run any training script and show its memory by phase", imports=TABLES, on_linux_only=True),
    "monitor": Command(
        summary="show the GPUs, or watch the memory of any command",
        has_trial_keys=True,
        uses={WATCHING: Needs(imports=TABLES, on_linux_only=True)},
    ),
    "replay": Command(
        summary="replay a memory snapshot with other settings or cards",
        uses={FIGURE: Needs(imports=("matplotlib", "numpy"))},
    ),
    "share": Command(
        summary="turn measured peaks into rows of the benchmark, to be sent",
        has_trial_keys=True,
        uses={TABLE: Needs(imports=TABLES)},
    ),
    "claims": Command(
        summary="judge what public texts claim about the memory of GRPO",
        imports=TABLES,
        of_clone="profiler.rendering.claims",
    ),
    "seams": Command(
        summary="check what the profiler relies on in other libraries",
        imports=("torch",),
        extra=Extra.SIMULATE,
        on_linux_only=True,
    ),
    "emulation": Command(
        summary="run torch's CUDA build on an emulated card",
        imports=("filelock", "packaging"),
        extra=Extra.EMULATE,
        on_linux_only=True,
        # Its environment gets the versions that are installed here.
        uses={"install": Needs(imports=(*TRAINING, "pynvml"), extra=Extra.MEASURE)},
    ),
}
"""By name, in the order of the help text."""


def _everywhere() -> list[str]:
    """Return what runs on every system, as words of a sentence."""
    found = []
    for name, command in COMMANDS.items():
        without = [words for words, needs in command.uses.items() if needs.on_linux_only]
        if not command.on_linux_only:
            found.append(f"{name} (without {listed(without)})" if without else name)
    return found


def options_of_command(name: str) -> Mapping[str, Option]:
    """Return the declared options of a command, by name, in the order of its help text.

    Only its words are imported, where they have a module of their own.
    """
    own = f"profiler.{name}.command"
    options: Mapping[str, Option] = import_module(own if find_spec(own) else f"profiler.{name}.main").OPTIONS
    return options


def start(name: str, words: Sequence[str] | None = None) -> int:
    """Import the command `name`, run it, and return its exit code. Other commands are not imported.

    Args:
        name: A key of `COMMANDS`.
        words: The words after the name of the command; those of the process where not given.
    """
    arguments = sys.argv[1:] if words is None else list(words)

    @as_command(name)
    def run() -> int:
        refuse_former()
        COMMANDS[name].check("command", name)
        main: Callable[[Sequence[str]], int] = import_module(f"profiler.{name}.main").main
        return main(arguments)

    return run()
