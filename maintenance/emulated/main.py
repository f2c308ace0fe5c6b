"""`python -m maintenance.emulated [limit=N] [at_most=N] ...`: sample, emulate, simulate, compare, write.

The sample is written to `sampled.jsonl` first. An existing file is kept, so that results cannot influence the sample.
Each trial writes one record per side; the same command continues after an interruption.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from maintenance.emulated.running import GRID, RunSide, Side, pairs, run_pending, run_side, sides
from maintenance.samples.emulated_sample import sample
from maintenance.samples.one_gpu import ONE_GPU
from maintenance.samples.sampling import folder_faults, written_down
from maintenance.words import read_words
from profiler.command_line import as_command, print_error, print_line, print_text
from profiler.config.options.option import MAX_S
from profiler.config.options.reading import FieldReader
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_ANSWER_IS_NO, EXIT_OK, EXIT_SOME_TRIALS_FAILED, UsageError
from profiler.storage.stores.record_store import RecordStore

_DEFAULTS: Mapping[str, object] = {
    "limit": None,
    "at_most": None,
    "jobs": 1,
    "timeout_s": 600,
    "python": None,
    "results_dir": "results",
}

_USAGE = f"""\
python -m maintenance.emulated [key=value ...]

Samples {ONE_GPU.count} trials, runs those that have no record yet on an emulated card and
in the simulation, and compares both. Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}
limit=N uses the first N of the sample; at_most=N runs at most N trials on each
side in this call, and at_most=0 only compares; python=PATH is a Python with
torch's CUDA build. The exit code is 4 if a threshold does not hold, or if a
trial ends differently without a known cause.

Examples:
  python -m maintenance.emulated limit=5
  python -m maintenance.emulated at_most=5 results_dir=results/reference
"""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The parsed command line."""

    limit: int | None
    at_most: int | None
    options: RunOptions
    folder: Path


@as_command("emulated", when_interrupted="What has finished is kept; the same command continues from there.")
def main(
    argv: Sequence[str] | None = None,
    *,
    sides_of: Callable[[RunOptions], tuple[Side, Side]] = sides,
    run: RunSide = run_side,
) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    settings = _settings(words)
    return _run(settings, sides_of(settings.options), run)


def _settings(words: Sequence[str]) -> Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    python = None if reader.value("python") is None else PurePath(reader.text("python", "the path of a program"))
    settings = Settings(
        limit=reader.optional_count("limit"),
        at_most=None if reader.value("at_most") is None else reader.count("at_most", minimum=0),
        options=RunOptions(
            jobs=reader.count("jobs"),
            timeout_s=reader.count("timeout_s", maximum=MAX_S),
            python=python,
        ),
        folder=Path(reader.text("results_dir", "a folder")) / GRID,
    )
    if reader.sound("results_dir"):
        faults.extend(folder_faults(settings.folder))
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return settings


def _run(settings: Settings, both: tuple[Side, Side], run: RunSide) -> int:
    from maintenance.emulated.results import write_results  # imports pandas

    sampled = written_down(settings.folder, sample(ONE_GPU), seed=ONE_GPU.seed)
    specs = sampled[: settings.limit]
    store = RecordStore(settings.folder)
    left = run_pending(specs, both, store=store, options=settings.options, at_most=settings.at_most, run=run)
    every = pairs(specs, both, store)
    found = sum(pair.is_complete for pair in every)
    problems = write_results(settings.folder, every, sampled=len(sampled), versions=both[0].versions)
    for sentence in problems:
        print_error(sentence)
    print_line(f"{found} of {len(specs)} trials have run on both sides; {left} runs are left.")
    if found < len(specs):
        return EXIT_SOME_TRIALS_FAILED
    return EXIT_ANSWER_IS_NO if problems else EXIT_OK
