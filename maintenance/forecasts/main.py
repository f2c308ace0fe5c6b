"""`python -m maintenance.forecasts [at_most=N] ...`: train whole runs step by step, forecast them, compare, write.

Each run leaves a file per side in the folder `runs`; the same command goes on after an interruption.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from maintenance.forecasts.jobs import RUNS, Run
from maintenance.forecasts.running import Files, Train, emulate, measure, run_pending
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
from profiler.domain.trials.trial import Backend
from profiler.emulation.launch import EmulatedPython, emulated_python
from profiler.storage.files.atomic import write_atomically

PAGE, FIGURE, RUN_FOLDER = "report.md", "steps.png", "runs"

_DEFAULTS: Mapping[str, object] = {
    "backend": "emulated",
    "job": None,
    "at_most": None,
    "jobs": 1,
    "timeout_s": 3600,
    "python": None,
    "results_dir": "results",
}

FOLDERS: Mapping[Backend, str] = {Backend.EMULATED: "forecasts", Backend.CUDA: "forecasts_measured"}
"""Of the results, by where the trainer runs."""


def _names(backend: Backend) -> str:
    return ", ".join(dict.fromkeys(run.job.name for run in RUNS if run.job.backend is backend))


_USAGE = f"""\
python -m maintenance.forecasts [key=value ...]

Runs {len(RUNS)} runs of drawn lengths, on an emulated card or a real one, forecasts
the same draws, and compares memory step by step. Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}
backend=emulated has the jobs {_names(Backend.EMULATED)};
backend=cuda has {_names(Backend.CUDA)}.
job=NAME takes one of them; at_most=N trains at most N runs in this call;
at_most=0 only compares, and forecasts what was measured; jobs=N runs at the
same time; python=PATH is a Python with torch's CUDA build, for emulation. The
exit code is 4 if a step differs without a known cause.

Examples:
  python -m maintenance.forecasts job=sft at_most=1
  python -m maintenance.forecasts results_dir=results/reference
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parsed command line."""

    backend: Backend
    runs: Sequence[Run]
    at_most: int | None
    jobs: int
    timeout_s: int
    python: Path | None
    folder: Path


_TRAINING: Mapping[Backend, Callable[..., None]] = {Backend.EMULATED: emulate, Backend.CUDA: measure}


@as_command("forecasts", when_interrupted="Runs that have ended are kept; the same command goes on.")
def main(
    argv: Sequence[str] | None = None,
    *,
    python_of: Callable[[Path | None], EmulatedPython] = emulated_python,
    training: Mapping[Backend, Callable[..., None]] = _TRAINING,
) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    settings = _settings(words)
    train = partial(training[settings.backend], timeout_s=settings.timeout_s)
    if settings.backend is Backend.EMULATED and settings.at_most != 0:
        train = partial(train, python=python_of(settings.python))
    return _run(settings, train)


def _settings(words: Sequence[str]) -> Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    backend = reader.choice("backend", Backend)
    if backend not in FOLDERS:
        reader.one_of("backend", tuple(FOLDERS))
    job, own = reader.value("job"), [run for run in RUNS if run.job.backend is backend]
    if job is not None and job not in {run.job.name for run in own}:
        faults.append(Fault(key="job", found=str(job), problem=f"must be one of {_names(backend)}"))
    settings = Settings(
        backend=backend,
        runs=[run for run in own if job in (None, run.job.name)],
        at_most=None if reader.value("at_most") is None else reader.count("at_most", minimum=0),
        jobs=reader.count("jobs"),
        timeout_s=reader.count("timeout_s", maximum=MAX_S),
        python=None if reader.value("python") is None else Path(reader.text("python", "the path of a program")),
        folder=Path(reader.text("results_dir", "a folder")) / FOLDERS.get(backend, ""),
    )
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return settings


def _run(settings: Settings, training: Train) -> int:
    files = Files(folder=settings.folder / RUN_FOLDER)
    left = run_pending(
        settings.runs, files, training=training, at_most=settings.at_most, jobs=settings.jobs, say=print_line
    )
    problems = _write(settings, files)
    for sentence in problems:
        print_error(sentence)
    print_line(f"{len(settings.runs) - left} of {len(settings.runs)} runs have ended.")
    if left:
        return EXIT_SOME_TRIALS_FAILED
    return EXIT_ANSWER_IS_NO if problems else EXIT_OK


def _write(settings: Settings, files: Files) -> list[str]:
    """Write rows and page of the runs that have ended on both sides; return what does not hold for no known cause."""
    from maintenance.forecasts.compared import compared, keep, read_causes, unexplained  # imports pandas
    from maintenance.forecasts.figure import runs_figure
    from maintenance.forecasts.page import comparison_page
    from profiler.rendering.figures.theme import as_png
    from profiler.storage.records.versioned import installed_versions

    folder = settings.folder
    found = compared([run for run in RUNS if run.job.backend is settings.backend], files)
    if not found:
        return []
    versions = installed_versions()
    torch = (versions.torch or "").partition("+")[0]
    line = f"torch {torch}, trl {versions.trl}, transformers {versions.transformers}, peft {versions.peft}"
    keep(found, folder)
    causes = read_causes(folder)
    write_atomically(folder / FIGURE, as_png(runs_figure(found)))
    write_atomically(folder / PAGE, comparison_page(found, causes, versions=line, figure=FIGURE).encode())
    return unexplained(found, causes)
