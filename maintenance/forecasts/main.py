"""`python -m maintenance.forecasts [at_most=N] ...`: emulate whole runs step by step, forecast them, compare, write.

Each run leaves a file per side in the folder `runs`; the same command goes on after an interruption.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from maintenance.forecasts.jobs import JOBS, RUNS, Run
from maintenance.forecasts.running import Emulate, Files, emulate, run_pending
from maintenance.words import read_words
from profiler.command_line import as_command, print_error, print_line, print_text
from profiler.config.options.option import MAX_S
from profiler.config.options.reading import FieldReader
from profiler.domain.errors import (
    EXIT_ANSWER_IS_NO,
    EXIT_OK,
    EXIT_SOME_TRIALS_FAILED,
    Fault,
    UsageError,
)
from profiler.emulation.launch import EmulatedPython, emulated_python
from profiler.storage.files.atomic import write_atomically

PAGE, RUN_FOLDER = "report.md", "runs"

_DEFAULTS: Mapping[str, object] = {
    "job": None,
    "at_most": None,
    "jobs": 1,
    "timeout_s": 3600,
    "python": None,
    "results_dir": "results",
}

_NAMES = tuple(job.name for job in JOBS)

_USAGE = f"""\
python -m maintenance.forecasts [key=value ...]

Runs {len(RUNS)} runs of drawn lengths on an emulated card, forecasts the same draws,
and compares memory step by step. Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}
job=NAME is one of {", ".join(_NAMES)}; at_most=N emulates at most N runs in
this call, and at_most=0 only compares; jobs=N runs at the same time;
python=PATH is a Python with torch's CUDA build. The exit code is 4 if a step
differs without a known cause.

Examples:
  python -m maintenance.forecasts job=sft at_most=1
  python -m maintenance.forecasts results_dir=results/reference
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parsed command line."""

    runs: Sequence[Run]
    at_most: int | None
    jobs: int
    timeout_s: int
    python: Path | None
    folder: Path


@as_command("forecasts", when_interrupted="Runs that have ended are kept; the same command goes on.")
def main(
    argv: Sequence[str] | None = None,
    *,
    python_of: Callable[[Path | None], EmulatedPython] = emulated_python,
    emulating: Callable[..., None] = emulate,
) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    settings = _settings(words)
    if settings.at_most == 0:
        return _run(settings, emulating)
    return _run(settings, partial(emulating, python=python_of(settings.python), timeout_s=settings.timeout_s))


def _settings(words: Sequence[str]) -> Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    job = reader.value("job")
    if job is not None and job not in _NAMES:
        faults.append(Fault(key="job", found=str(job), problem=f"must be one of {', '.join(_NAMES)}"))
    settings = Settings(
        runs=[run for run in RUNS if job in (None, run.job.name)],
        at_most=None if reader.value("at_most") is None else reader.count("at_most", minimum=0),
        jobs=reader.count("jobs"),
        timeout_s=reader.count("timeout_s", maximum=MAX_S),
        python=None if reader.value("python") is None else Path(reader.text("python", "the path of a program")),
        folder=Path(reader.text("results_dir", "a folder")) / "forecasts",
    )
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return settings


def _run(settings: Settings, emulating: Emulate) -> int:
    files = Files(folder=settings.folder / RUN_FOLDER)
    left = run_pending(
        settings.runs, files, emulating=emulating, at_most=settings.at_most, jobs=settings.jobs, say=print_line
    )
    problems = _write(settings.folder, files)
    for sentence in problems:
        print_error(sentence)
    print_line(f"{len(settings.runs) - left} of {len(settings.runs)} runs have been emulated.")
    if left:
        return EXIT_SOME_TRIALS_FAILED
    return EXIT_ANSWER_IS_NO if problems else EXIT_OK


def _write(folder: Path, files: Files) -> list[str]:
    """Write rows and page of the runs that have ended on both sides; return what does not hold for no known cause."""
    from maintenance.forecasts.compared import compared, keep, read_causes, unexplained  # imports pandas
    from maintenance.forecasts.page import comparison_page
    from profiler.storage.records.versioned import installed_versions

    found = compared(RUNS, files)
    if not found:
        return []
    versions = installed_versions()
    torch = (versions.torch or "").partition("+")[0]
    line = f"torch {torch}, trl {versions.trl}, transformers {versions.transformers}, peft {versions.peft}"
    keep(found, folder)
    causes = read_causes(folder)
    write_atomically(folder / PAGE, comparison_page(found, causes, versions=line).encode())
    return unexplained(found, causes)
