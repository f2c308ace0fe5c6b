"""`python -m maintenance.emulated [limit=N] [at_most=N] ...`: sample, emulate, simulate, compare, write.

The sample is written to `sampled.jsonl` first. An existing file is kept, so that results cannot influence the sample.
Each trial writes one record per side; the same command continues after an interruption.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from maintenance.emulated.running import GRID, Side, pairs, run_pending, sides
from maintenance.emulated.sampling import COUNT, SEED, sample
from maintenance.sampled_file import folder_faults, written_down
from maintenance.words import read_words
from profiler.command_line import as_command, print_line, print_text
from profiler.config.reading import FieldReader
from profiler.config.run_options import DECLARATIONS, RunOptions
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, UsageError
from profiler.storage.records import RecordStore

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

Samples {COUNT} trials, runs those that have no record yet on an emulated card and in
the simulation, and compares both. Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}
limit=N uses the first N of the sample; at_most=N runs at most N trials on each
side in this call, and at_most=0 only compares; python=PATH is a Python with
torch's CUDA build.

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
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    settings = _settings(words)
    return _run(settings, sides(settings.options))


def _settings(words: Sequence[str]) -> Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    python = None if reader.value("python") is None else PurePath(reader.text("python", "the path of a program"))
    settings = Settings(
        limit=reader.optional_count("limit"),
        at_most=None if reader.value("at_most") is None else reader.count("at_most", minimum=0),
        options=RunOptions(
            jobs=reader.count("jobs"),
            timeout_s=reader.count("timeout_s", maximum=DECLARATIONS["timeout_s"].maximum),
            python=python,
        ),
        folder=Path(reader.text("results_dir", "a folder")) / GRID,
    )
    if reader.sound("results_dir"):
        faults.extend(folder_faults(settings.folder))
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return settings


def _run(settings: Settings, both: tuple[Side, Side]) -> int:
    specs = written_down(settings.folder, sample(), seed=SEED)[: settings.limit]
    store = RecordStore(settings.folder)
    left = run_pending(specs, both, store, settings.options, at_most=settings.at_most)
    found = [pair for pair in pairs(specs, both, store) if pair.is_complete]
    print_line(f"{len(found)} of {len(specs)} trials have run on both sides; {left} are left.")
    return EXIT_OK if len(found) == len(specs) else EXIT_SOME_TRIALS_FAILED
