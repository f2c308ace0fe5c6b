"""`python -m maintenance.releases environments=FOLDER python=PATH`: emulate the jobs with each release, and write.

Each run leaves a folder below `runs`; the same command goes on after an interruption.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from maintenance.releases.compared import keep, kept, merged, read_causes, rows_of, runs_in
from maintenance.releases.page import figure_of, releases_page, sizes_with_rows
from maintenance.releases.runs import PACKAGES, RUNS, Run, emulate, package_of, python_of, run_pending
from maintenance.words import read_words
from profiler.command_line import as_command, print_line, print_text
from profiler.config.options.reading import FieldReader
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, Fault, UsageError
from profiler.emulation.launch import emulated_python
from profiler.storage.files.atomic import write_atomically

GRID, PLACE, PAGE = "releases", "runs", "README.md"

_DEFAULTS: Mapping[str, object] = {
    "environments": None,
    "python": None,
    "package": None,
    "at_most": None,
    "again": False,
    "runs": None,
    "results_dir": "results",
}

_USAGE = f"""\
python -m maintenance.releases [key=value ...]

Emulates {len(RUNS)} runs: each job of examples/scripts/trl_recipe.py with each release.
Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}
environments=FOLDER has one environment per release, made where it is missing;
python=PATH has torch's CUDA build and every other package, and stays as it is.
package={"|".join(package.name for package in PACKAGES)}
runs the releases of one package alone. Those with vLLM run only if they are
named: their python=PATH has vLLM too (emulated_environments/trl.txt).
at_most=N runs at most N in this call; without environments nothing runs.
again=true runs what is kept as well; otherwise only what has no row yet.
runs=FOLDER has what each run left (results_dir/{GRID}/{PLACE}); its rows
replace or join those that are kept, and the page is written anew.

Examples:
  python -m maintenance.releases environments=../environments package=peft
  python -m maintenance.releases results_dir=results/reference
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parsed command line."""

    environments: Path | None
    python: Path | None
    package: str | None
    at_most: int | None
    again: bool
    runs: Path
    folder: Path


@as_command("releases", when_interrupted="Runs that have ended are kept; the same command goes on.")
def main(
    argv: Sequence[str] | None = None,
    *,
    base_of: Callable[[Path | None], Path] = lambda path: emulated_python(path, strict=False).executable,
    emulated: Callable[[Run, Path, Path], None] = emulate,
) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    settings = _settings(words)
    left = 0
    if settings.environments is not None:
        base = base_of(settings.python)
        there = () if settings.again else runs_in(kept(settings.folder))
        left = run_pending(
            [run for run in chosen(settings.package) if run not in there],
            settings.runs,
            python=partial(python_of, place=settings.environments, base=base),
            at_most=settings.at_most,
            say=print_line,
            emulated=emulated,
        )
    ran = _write(settings)
    print_line(f"{ran} of {len(RUNS)} runs have ended: {settings.folder / PAGE}")
    return EXIT_SOME_TRIALS_FAILED if left else EXIT_OK


def chosen(package: str | None) -> Sequence[Run]:
    """Return the runs of a package; of all of them if none is named, but for those that need an engine in the base."""
    return [run for run in RUNS if run.package == package or (package is None and not package_of(run).engine)]


def _settings(words: Sequence[str]) -> Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)

    def path(key: str) -> Path | None:
        return None if reader.value(key) is None else Path(reader.text(key, "a path"))

    folder = Path(reader.text("results_dir", "a folder")) / GRID
    settings = Settings(
        environments=path("environments"),
        python=path("python"),
        package=None if reader.value("package") is None else reader.word("package", [each.name for each in PACKAGES]),
        at_most=None if reader.value("at_most") is None else reader.count("at_most", minimum=0),
        again=reader.flag("again"),
        runs=path("runs") or folder / PLACE,
        folder=folder,
    )
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return settings


def _write(settings: Settings) -> int:
    """Write tables, page and figure of the runs that have ended, and return their number."""
    from maintenance.releases.figure import releases_figure  # matplotlib takes a second
    from profiler.rendering.figures.theme import as_png

    if not settings.runs.is_dir() and not settings.folder.is_dir():
        raise UsageError([Fault(key="results_dir", found=str(settings.folder), problem="has neither runs nor tables")])
    keep(*merged(rows_of(settings.runs), kept(settings.folder)), settings.folder)
    rows, tensors = kept(settings.folder)
    for package, size in sizes_with_rows(rows):
        write_atomically(settings.folder / figure_of(package, size), as_png(releases_figure(rows, package, size)))
    page = releases_page(rows, tensors, read_causes(settings.folder))
    write_atomically(settings.folder / PAGE, page.encode())
    return len(rows)
