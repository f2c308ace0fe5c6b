"""`python -m maintenance.engine_cost [key=value ...]`: what an engine adds to each trial.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from maintenance.engine_cost.cost import ALLOWED_S, EngineCost, added_s, cost, engines, settings, where
from maintenance.words import read_words
from profiler.command_line import as_command, print_error, print_text
from profiler.config.options.reading import FieldReader
from profiler.domain.errors import EXIT_OK, Fault, UsageError
from profiler.domain.machines.engines import Scheduler
from profiler.rendering.document import Column, Document, Table, text_columns
from profiler.rendering.layouts.plain_text import plain_text

_DEFAULTS: Mapping[str, object] = {"engine": None, "trials": 1_000, "jobs": "1,2,4", "nodes": "1,2"}
_MOST_JOBS = 1_000

_USAGE = f"""\
python -m maintenance.engine_cost [key=value ...]

Runs trials that do nothing, and prints the time from one to the next with each
engine that is at hand, in a folder and in a store that machines share. Keys and
defaults:
  engine=null    local, ray or slurm; null is all that are at hand
  trials={_DEFAULTS["trials"]}    in each row, at least 2
  jobs={_DEFAULTS["jobs"]}     numbers of slots
  nodes={_DEFAULTS["nodes"]}      numbers of nodes of Ray, all of them on this machine
engine=local is always measured, because the others are compared with it. With
1,000 trials a row takes about a minute; an engine may add {1e3 * ALLOWED_S:.0f} ms per trial.

Examples:
  python -m maintenance.engine_cost engine=local trials=200
  python tests/stress/slurm_node.py \\
      python -m maintenance.engine_cost engine=slurm
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parsed command line."""

    chosen: tuple[Scheduler, ...]
    trials: int
    jobs: tuple[int, ...]
    nodes: tuple[int, ...]


@as_command("engine_cost")
def main(argv: Sequence[str] | None = None, *, at_hand: Callable[[], Sequence[Scheduler]] = engines) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    found = _settings(words, at_hand)
    every: list[EngineCost] = []
    for setting in settings(found.chosen, jobs=found.jobs, nodes=found.nodes):
        every.append(cost(setting, trials=found.trials))
        print_error(f"{where(setting)}: {1e3 * every[-1].each_s:.1f} ms per trial")
    print_text(plain_text(Document(title="What an engine adds to each trial", blocks=[_table(every)])))
    return EXIT_OK


def _settings(words: Sequence[str], at_hand: Callable[[], Sequence[Scheduler]]) -> Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    engine = None if reader.value("engine") is None else reader.choice("engine", Scheduler)
    trials, jobs, nodes = reader.count("trials", minimum=2), _counts(reader, "jobs"), _counts(reader, "nodes")
    faults.extend(reader.faults)
    if not faults:
        there = at_hand()
        if engine is not None and engine not in there:
            problem = f"is not at hand here, only {', '.join(there)}"
            hint = {
                Scheduler.RAY: "Install the extra ray: `make engines` makes such an environment.",
                Scheduler.SLURM: "Start the command by `python tests/stress/slurm_node.py`, which starts a Slurm.",
            }
            faults.append(Fault(key="engine", found=engine, problem=problem, hint=hint[engine]))
    if faults:
        raise UsageError(faults)
    return Settings(chosen=(engine,) if engine else tuple(there), trials=trials, jobs=jobs, nodes=nodes)


def _counts(reader: FieldReader, key: str) -> tuple[int, ...]:
    """Return numbers that are separated by commas."""
    texts = str(reader.value(key)).split(",")
    if all(text.isascii() and text.isdigit() and 1 <= int(text) <= _MOST_JOBS for text in texts):
        return tuple(dict.fromkeys(map(int, texts)))
    reader.fail(key, f"must be whole numbers from 1 to {_MOST_JOBS:,}, separated by commas")
    return (1,)


def _table(every: Sequence[EngineCost]) -> Table:
    rows = []
    for found in every:
        setting, more_s = found.setting, added_s(found, every)
        store = "shared" if setting.is_shared else "folder"
        added = "" if more_s is None else f"{1e3 * more_s:+.1f}"
        row = [str(setting.engine), store, str(setting.nodes or 1), str(setting.jobs)]
        rows.append([*row, f"{found.first_s:.1f}", f"{1e3 * found.each_s:.1f}", added])
    numbers = ("nodes", "slots", "s to the first", "ms per trial", "ms added to local")
    return Table((*text_columns(("engine", "store")), *(Column(title=title) for title in numbers)), rows)
