"""`python -m maintenance.benchmark [key=value]`: ask the predictors, score them, write the page and the figure.

Kept answers of packages are used as they are, unless `environments` names a folder for their environments. Rows are
used as they are, unless `clones` names a folder with the repositories of others.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from maintenance.benchmark.answers.asking import ask, keep, kept_answers, kept_costs
from maintenance.benchmark.answers.environments import install_bytes, python_of
from maintenance.benchmark.answers.predictors import PREDICTORS, RANKED
from maintenance.benchmark.answers.simulating import simulate, simulate_scripts
from maintenance.benchmark.imported.canifinetune import CANIFINETUNE
from maintenance.benchmark.imported.fms import FMS
from maintenance.benchmark.imported.held import coursia_rows, fitcheck_rows
from maintenance.benchmark.imported.parts import Clone, Reader
from maintenance.benchmark.imported.peft import PEFT
from maintenance.benchmark.ranking.page import benchmark_page
from maintenance.benchmark.ranking.scores import pairs_of
from maintenance.benchmark.rows.jobs import FOLDER, checked
from maintenance.benchmark.rows.kept import ROWS, all_rows, others_rows, rows_to_simulate
from maintenance.benchmark.rows.sent import faults_of_sent, read_row
from maintenance.words import read_words
from profiler.command_line import as_command, print_line, print_text
from profiler.config.options.reading import FieldReader
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_OK, Fault, UsageError, shortened
from profiler.domain.memory import MIB
from profiler.domain.runs.shared import Row, RowOrigin
from profiler.share.rows import row_line, rows_text
from profiler.storage.files.atomic import write_atomically
from profiler.storage.files.foreign_files import read_bytes, reason

CLONES: tuple[Clone, ...] = (PEFT, FMS, CANIFINETUNE)
_MOST_BYTES = 64 * MIB
PAGE, FIGURE = FOLDER.parent / "docs" / "benchmark.md", FOLDER / "errors.png"

_DEFAULTS: Mapping[str, object] = {
    "clones": None,
    "environments": None,
    "simulations": None,
    "scripts": None,
    "check": None,
}

_USAGE = f"""\
python -m maintenance.benchmark [key=value ...]

Asks the predictors that run here, scores all answers, and writes the page
docs/benchmark.md and its figure. Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}
clones=FOLDER reads rows of others anew, from git repositories OWNER+NAME below
it; environments=FOLDER asks the predictors that have a package, in environments
that are made there; simulations=FOLDER simulates rows of one GPU, of others and
of this set, that have no record there; scripts=FOLDER runs the scripts that
others publish with their rows on the simulated card, where their output is not
there yet. check=FILE checks rows of python -m profiler.share, and does nothing
else.

Examples:
  python -m maintenance.benchmark
  python -m maintenance.benchmark environments=../environments
  python -m maintenance.benchmark check=benchmark/sent.jsonl
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parsed command line."""

    clones: Path | None
    environments: Path | None
    simulations: Path | None
    scripts: Path | None
    check: Path | None


@as_command("benchmark", when_interrupted="Answers that are complete are kept.")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    settings = _settings(words)
    return _run(settings) if settings.check is None else _check(settings.check)


def _settings(words: Sequence[str]) -> Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    paths = {key: None if values[key] is None else Path(reader.text(key, "a path")) for key in _DEFAULTS}
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return Settings(**paths)


def _run(settings: Settings) -> int:
    if settings.clones is not None:
        write_atomically(ROWS, rows_text(checked(imported(settings.clones))).encode())
    if settings.simulations is not None:
        found = simulate(rows_to_simulate(), settings.simulations, options=RunOptions())
        print_line(f"{found} rows are simulated.")
    if settings.scripts is not None:
        found = simulate_scripts(others_rows(), settings.scripts)
        print_line(f"{found} rows of others are simulated by the script that measured them.")
    rows = all_rows()
    for predictor in PREDICTORS.values():
        if not predictor.package:
            keep(predictor, ask(predictor, rows), install_bytes=0)
        elif settings.environments is not None:
            python = python_of(settings.environments, predictor)
            size = install_bytes(settings.environments, predictor)
            keep(predictor, ask(predictor, rows, python=python), install_bytes=size)
    write_results(rows)
    print_line(f"{len(rows)} rows, {len(PREDICTORS)} predictors: {PAGE}")
    return EXIT_OK


def _check(path: Path) -> int:
    """Say that the rows of a file can be part of the set, and return the exit code.

    Raises:
        UsageError: With every fault of its rows, or the file cannot be read.
    """
    try:
        lines = read_bytes(path, most_bytes=_MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read ({reason(error) if isinstance(error, OSError) else error})"
        raise UsageError([Fault(key="check", found=str(path), problem=problem)]) from error
    faults: list[Fault] = []
    names = {row.row_id for row in all_rows() if row.origin is not RowOrigin.SENT}
    for number, line in enumerate(lines, 1):
        key = f"line {number}"
        try:
            row = read_row(line)
        except (ValueError, RecursionError) as error:
            faults.append(Fault(key=key, found=shortened(line, 60), problem=f"is no row ({error})"))
            continue
        if line != row_line(row):
            faults.append(Fault(key=key, found=row.row_id, problem="is not written as python -m profiler.share does"))
        faults += [replace(fault, key=f"{key}, {fault.key}") for fault in faults_of_sent(row)]
        if row.row_id in names:
            faults.append(Fault(key=key, found=row.row_id, problem="is the name of another row"))
        names.add(row.row_id)
    if faults:
        raise UsageError(faults)
    print_line(f"{len(lines)} {'row' if len(lines) == 1 else 'rows'} can be part of the set.")
    return EXIT_OK


def imported(folder: Path) -> list[Row]:
    """Return the rows of others, from repositories below `folder` and from the readings that this one holds."""
    rows = [*fitcheck_rows(), *coursia_rows()]
    for clone in CLONES:
        place = folder / clone.name.replace("/", "+")
        rows += clone.rows(Reader(folder=place / "repo" if (place / "repo").exists() else place, clone=clone))
    return rows


def write_results(rows: Sequence[Row]) -> None:
    """Write the page and the figure of the kept answers."""
    from maintenance.benchmark.ranking.figure import errors_figure
    from profiler.rendering.figures.theme import as_png

    answers = {key: kept_answers(key) for key in PREDICTORS}
    errors = {each.title: [pair.error for pair in pairs_of(rows, answers[key])] for key, each in RANKED.items()}
    ours = [each.title for each in RANKED.values() if each.is_ours]
    write_atomically(FIGURE, as_png(errors_figure(errors, ours=ours)))
    write_atomically(PAGE, page_of(rows).encode())


def page_of(rows: Sequence[Row]) -> str:
    """Return the page of the kept answers."""
    answers = {key: kept_answers(key) for key in PREDICTORS}
    return benchmark_page(rows, answers, kept_costs(), figure=f"../benchmark/{FIGURE.name}")
