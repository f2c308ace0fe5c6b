"""`python -m maintenance.accuracy [count=2000] [seed=2053] ...`: sample, simulate, and later judge.

The sample is written to `sampled.parquet` first. An existing file is kept, so that results cannot influence the sample.
(Formulas were corrected after 29 small trials of seed 2026, and after 500 trials each of seeds 2027 to 2029; hence
seed 2053.) Each trial writes one record; the same command continues after an interruption. What was simulated is kept
in `simulated.parquet`, without any estimate: with `judge=true` the estimates are computed by code that is committed.

Exit codes: docs/exit_codes.md.
"""

import io
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from maintenance.accuracy.judgement import judged
from maintenance.accuracy.rows import NUMBER, STATUS, TRIAL_ID, simulated_frame
from maintenance.accuracy.sampling import COUNT, SEED, sample
from maintenance.samples.judgement import Judgement, committed
from maintenance.samples.sampling import config_of, folder_faults, written_down
from maintenance.words import read_words
from profiler.analysis.times.sweep_time import SweepTally
from profiler.command_line import as_command, print_line, print_text
from profiler.config.options.option import MAX_S
from profiler.config.options.reading import FieldReader
from profiler.config.options.run_options import RunOptions
from profiler.config.trials.identity import labels, trial_id
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, UsageError
from profiler.domain.runs.outcome import Status, TrialRecord
from profiler.domain.trials.trial import PlannedTrial, TrialSpec
from profiler.storage.files.atomic import write_atomically
from profiler.storage.foreign.model_config import content_of
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.record_store import RecordStore

GRID = "accuracy"
SIMULATED = "simulated.parquet"
"""What was simulated: a row per trial that ended, in the order of the sample."""

_DEFAULTS: Mapping[str, object] = {
    "count": COUNT,
    "seed": SEED,
    "limit": None,
    "simulate": True,
    "judge": False,
    "jobs": 1,
    "timeout_s": 1800,
    "results_dir": "results",
}

_USAGE = f"""\
python -m maintenance.accuracy [key=value ...]

Samples trials, simulates those that are not stored yet, and with judge=true
compares them with the closed form and its baselines. Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}
limit=N uses the first N of the sample; simulate=false runs none of them. Trials
that took longer than timeout_s run again.
judge=true needs committed code, which the page names.

Examples:
  python -m maintenance.accuracy limit=20
  python -m maintenance.accuracy simulate=false judge=true \\
    results_dir=results/reference
"""

_MOST_TRIALS = 10_000

Simulate = Callable[[Sequence[PlannedTrial], RecordStore, "Settings"], None]
"""Writes a record of each trial to the store."""

CommitOf = Callable[[], str]
"""Returns the commit of the code that judges; raises `UsageError` if the code is not committed."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parsed command line."""

    count: int
    seed: int
    limit: int | None
    simulate: bool
    judge: bool
    options: RunOptions
    """Of the simulated trials."""
    folder: Path


@as_command("accuracy", when_interrupted="What has finished is kept; the same command continues from there.")
def main(
    argv: Sequence[str] | None = None, *, simulate: Simulate | None = None, commit_of: CommitOf = committed
) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    return _run(_settings(words), simulate or _simulate, commit_of)


def _settings(words: Sequence[str]) -> Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    settings = Settings(
        count=reader.count("count", maximum=_MOST_TRIALS),
        seed=reader.count("seed", minimum=0),
        limit=reader.optional_count("limit"),
        simulate=reader.flag("simulate"),
        judge=reader.flag("judge"),
        options=RunOptions(jobs=reader.count("jobs"), timeout_s=reader.count("timeout_s", maximum=MAX_S)),
        folder=Path(reader.text("results_dir", "a folder")) / GRID,
    )
    if reader.sound("results_dir"):
        faults.extend(folder_faults(settings.folder))
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return settings


def _run(settings: Settings, simulate: Simulate, commit_of: CommitOf) -> int:
    commit = commit_of() if settings.judge else ""
    sampled = sample(settings.count, seed=settings.seed)
    specs = written_down(settings.folder, sampled, seed=settings.seed)
    plan = _plan(specs[: settings.limit])
    store = RecordStore(settings.folder)
    kept = _kept(settings.folder)
    answers = set(kept[TRIAL_ID][_are_answers(kept)])
    pending = {number: trial for number, trial in enumerate(plan) if trial.trial_id not in answers}
    if settings.simulate:
        simulate(list(pending.values()), store, settings)
    found = {number: store.find(trial.trial_id) for number, trial in pending.items()}
    rows = _merged(kept, {number: record for number, record in found.items() if record is not None})
    if len(rows):
        _write_parquet(rows, settings.folder / SIMULATED)
    if settings.judge:
        judgement = Judgement(commit=commit, seed=settings.seed, sampled=len(specs))
        judged(specs, rows, judgement, settings.folder)
    answered = int(_are_answers(rows).sum())
    print_line(f"{answered} of {len(plan)} trials are answered.")
    return EXIT_OK if answered == len(plan) or not settings.simulate else EXIT_SOME_TRIALS_FAILED


def _plan(specs: Sequence[TrialSpec]) -> list[PlannedTrial]:
    versions = installed_versions()
    return [
        PlannedTrial(
            trial_id=trial_id(spec, versions, content=content_of(spec.model, None, model_config=config_of)),
            grid=GRID,
            label=label,
            spec=spec,
        )
        for spec, label in zip(specs, labels(specs), strict=True)
    ]


def _kept(folder: Path) -> pd.DataFrame:
    """Return the kept rows."""
    path = folder / SIMULATED
    return pd.read_parquet(path) if path.exists() else pd.DataFrame({NUMBER: [], TRIAL_ID: [], STATUS: []})


def _are_answers(rows: pd.DataFrame) -> "pd.Series[bool]":
    return rows[STATUS].map(lambda status: Status(status).answered).astype(bool)


def _merged(kept: pd.DataFrame, new: Mapping[int, TrialRecord]) -> pd.DataFrame:
    """Return the rows in the order of the sample; that of a new record takes the place of a kept one."""
    parts = [part for part in (kept[~kept[NUMBER].isin(new)], simulated_frame(new)) if len(part)]
    return pd.concat(parts).sort_values(NUMBER, ignore_index=True) if parts else kept


def _simulate(plan: Sequence[PlannedTrial], store: RecordStore, settings: Settings) -> None:
    """Simulate each trial in a separate process; skip stored ones."""
    from profiler.execution import run_trials, stored_answer
    from profiler.rendering.layouts.terminal import TerminalConsole
    from profiler.rendering.live.progress import SweepProgress

    pending = [trial for trial in plan if stored_answer(trial.trial_id, store=store, options=settings.options) is None]
    if not pending:
        return
    with SweepProgress(SweepTally(pending), console=TerminalConsole()) as observer:
        run_trials(pending, options=settings.options, store=store, versions=installed_versions(), observer=observer)


def _write_parquet(rows: pd.DataFrame, path: Path) -> None:
    content = io.BytesIO()
    rows.to_parquet(content, index=False)
    write_atomically(path, content.getvalue())
