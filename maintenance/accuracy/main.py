"""`python -m maintenance.accuracy [count=500] [seed=2029] ...`: sample, simulate, compare, write.

The sample is written to `sampled.jsonl` first. An existing file is kept, so that results cannot influence the sample.
(Formulas were corrected after 29 small trials of seed 2026, and after 500 trials each of seeds 2027 and 2028; hence
seed 2029.) Each trial writes one record; the same command continues after an interruption.

Exit codes: docs/exit_codes.md.
"""

import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maintenance.accuracy.sampling import sample
from maintenance.samples.sampling import folder_faults, written_down
from maintenance.words import read_words
from profiler.analysis.times.sweep_time import SweepTally
from profiler.command_line import as_command, print_line, print_text
from profiler.config.options.option import MAX_S
from profiler.config.options.reading import FieldReader
from profiler.config.options.run_options import RunOptions
from profiler.config.trials.identity import labels, trial_id
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, UsageError
from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.trials.trial import PlannedTrial, TrialSpec
from profiler.storage.files.atomic import write_atomically
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.record_store import RecordStore

GRID = "accuracy"
ROWS, PAGE, FIGURE = "rows.parquet", "accuracy.md", "predictors"

_DEFAULTS: Mapping[str, object] = {
    "count": 500,
    "seed": 2029,
    "limit": None,
    "simulate": True,
    "jobs": 1,
    "timeout_s": 1800,
    "results_dir": "results",
}

_USAGE = f"""\
python -m maintenance.accuracy [key=value ...]

Samples trials, simulates those that are not stored yet, and compares them with
the closed form and its baselines. Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}
limit=N uses the first N of the sample; simulate=false only compares.

Examples:
  python -m maintenance.accuracy limit=20
  python -m maintenance.accuracy simulate=false results_dir=results/reference
"""

_MOST_TRIALS = 10_000
_NICENESS = 10

Simulate = Callable[[Sequence[PlannedTrial], RecordStore, "Settings"], None]
"""Writes a record of each trial to the store."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parsed command line."""

    count: int
    seed: int
    limit: int | None
    simulate: bool
    options: RunOptions
    """Of the simulated trials."""
    folder: Path


@as_command("accuracy", when_interrupted="What has finished is kept; the same command continues from there.")
def main(argv: Sequence[str] | None = None, *, simulate: Simulate | None = None) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    return _run(_settings(words), simulate or _simulate)


def _settings(words: Sequence[str]) -> Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    settings = Settings(
        count=reader.count("count", maximum=_MOST_TRIALS),
        seed=reader.count("seed", minimum=0),
        limit=reader.optional_count("limit"),
        simulate=reader.flag("simulate"),
        options=RunOptions(jobs=reader.count("jobs"), timeout_s=reader.count("timeout_s", maximum=MAX_S)),
        folder=Path(reader.text("results_dir", "a folder")) / GRID,
    )
    if reader.sound("results_dir"):
        faults.extend(folder_faults(settings.folder))
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return settings


def _run(settings: Settings, simulate: Simulate) -> int:
    sampled = sample(settings.count, seed=settings.seed)
    specs = written_down(settings.folder, sampled, seed=settings.seed)
    asked = specs[: settings.limit]
    plan = _plan(asked)
    store = RecordStore(settings.folder)
    if settings.simulate:
        simulate(plan, store, settings)
    found = [record for trial in plan if (record := store.find(trial.trial_id)) is not None]
    answered = [record for record in found if record.outcome.status.answered]
    if answered:
        _write_results(settings, answered, sampled=len(specs))
    print_line(f"{len(answered)} of {len(plan)} trials are answered.")
    return EXIT_OK if len(answered) == len(plan) or not settings.simulate else EXIT_SOME_TRIALS_FAILED


def _plan(specs: Sequence[TrialSpec]) -> list[PlannedTrial]:
    versions = installed_versions()
    return [
        PlannedTrial(trial_id=trial_id(spec, versions), grid=GRID, label=label, spec=spec)
        for spec, label in zip(specs, labels(specs), strict=True)
    ]


def _simulate(plan: Sequence[PlannedTrial], store: RecordStore, settings: Settings) -> None:
    """Simulate each trial in a separate process at low priority; skip stored ones."""
    from profiler.execution import run_trials, stored_answer
    from profiler.rendering.layouts.terminal import TerminalConsole
    from profiler.rendering.live.progress import SweepProgress

    # Workers inherit the priority.
    os.nice(_NICENESS)
    pending = [trial for trial in plan if stored_answer(trial.trial_id, store=store, options=settings.options) is None]
    if not pending:
        return
    with SweepProgress(SweepTally(pending), console=TerminalConsole()) as observer:
        run_trials(pending, options=settings.options, store=store, versions=installed_versions(), observer=observer)


def _write_results(settings: Settings, records: Sequence[TrialRecord], *, sampled: int) -> None:
    """Write rows, page and figure of the answered trials."""
    from maintenance.accuracy.errors import phase_errors, predictor_errors, predictors_figure, worst_rows
    from maintenance.accuracy.page import accuracy_page
    from maintenance.accuracy.rows import prediction_frame
    from profiler.rendering.figures.theme import as_png

    frame = prediction_frame(records)
    if frame.empty:
        return
    rows = io.BytesIO()
    frame.to_parquet(rows, index=False)
    write_atomically(settings.folder / ROWS, rows.getvalue())
    write_atomically(settings.folder / f"{FIGURE}.png", as_png(predictors_figure(frame)))
    page = accuracy_page(
        sampled=sampled,
        predictors=predictor_errors(frame),
        phases=phase_errors(frame),
        worst=worst_rows(frame),
        figure=f"{FIGURE}.png",
        command="python -m maintenance.accuracy",
    )
    write_atomically(settings.folder / PAGE, page.encode())
