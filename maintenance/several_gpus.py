"""`python -m maintenance.several_gpus`: sampled trials of several GPUs, emulated, and compared with the closed form.

The sample is written to `sampled.jsonl` first. An existing file is kept, so that results cannot influence the sample.
Each trial writes one record; the same command continues after an interruption. What was emulated is kept in `rows.csv`,
whose estimates are computed with `judge=true`.

Exit codes: docs/exit_codes.md.
"""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from textwrap import fill
from typing import Any

import pandas as pd

from maintenance.emulated.rows import needed_sizes
from maintenance.emulated.running import Side, run_pending, run_side
from maintenance.pages.error_cells import ERROR_COLUMNS, error_cells
from maintenance.pages.kept_page import kept_page
from maintenance.samples.emulated_sample import Sample, sample
from maintenance.samples.judgement import committed
from maintenance.samples.sampling import architecture_of, folder_faults, written_down
from maintenance.samples.several_gpus import SAMPLES
from maintenance.words import read_words
from profiler.analytical.estimate import estimate_with_replay, has_form
from profiler.command_line import as_command, print_line, print_text
from profiler.config.options.reading import FieldReader
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_OK, EXIT_SOME_TRIALS_FAILED, Fault, UsageError
from profiler.domain.runs.outcome import Outcome
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.rendering.layouts.markdown import markdown_table
from profiler.rendering.layouts.script_data import as_csv
from profiler.storage.files.atomic import write_atomically
from profiler.storage.stores.record_store import RecordStore

ROWS, PAGE = "rows.csv", "README.md"

_DEFAULTS: Mapping[str, object] = {
    "sample": "several_gpus",
    "limit": None,
    "emulate": True,
    "judge": False,
    "jobs": 1,
    "python": None,
    "results_dir": "results",
}

_USAGE = f"""\
python -m maintenance.several_gpus [key=value ...]

Samples trials of several GPUs, or of one in float16 or with other optimizers,
emulates those that have no row yet, and with judge=true compares their peaks
with the closed form. Keys and defaults:
{chr(10).join(f"  {key}={value}" for key, value in _DEFAULTS.items())}
{fill(f"sample: {', '.join(SAMPLES)}.", width=80)}
python=PATH is a Python with torch's CUDA build; the samples of DeepSpeed need
DeepSpeed there. limit=N runs only the first N of the sample; judge=true needs
committed code, which the page names.

Examples:
  python -m maintenance.several_gpus
  python -m maintenance.several_gpus jobs=2 results_dir=results/reference
  python -m maintenance.several_gpus sample=deepspeed python=~/ds/bin/python
  python -m maintenance.several_gpus sample=sharded emulate=false judge=true
"""


@as_command("several_gpus", when_interrupted="What has finished is kept; the same command continues from there.")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    return _run(_settings(words))


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """The parsed command line."""

    chosen: Sample
    limit: int | None
    emulate: bool
    judge: bool
    options: RunOptions
    folder: Path


def _run(settings: _Settings) -> int:
    chosen, folder = settings.chosen, settings.folder
    commit = committed() if settings.judge else ""
    specs = written_down(folder, sample(chosen), seed=chosen.seed)
    rows = read_rows(folder / ROWS) if (folder / ROWS).exists() else pd.DataFrame({"trial": []})
    if settings.judge and chosen.is_judged_once and "error" in rows:
        problem = f"has been judged, and once only: {folder / ROWS} has what code said that had seen none of it"
        hint = "Name another results_dir, with a copy of the rows without their estimates."
        raise UsageError([Fault(key="sample", found=chosen.name, problem=problem, hint=hint)])
    if settings.emulate:
        emulated = _emulate(specs[: settings.limit], set(rows["trial"]), settings)
        rows = pd.concat([part for part in (rows, emulated) if len(part)]) if len(emulated) else rows
        rows = rows.sort_values("trial", ignore_index=True)
    if settings.judge:
        rows = judged(rows, specs)
        write_atomically(folder / PAGE, page(rows, chosen, commit=commit).encode())
    write_atomically(folder / ROWS, as_csv(rows).encode())
    ended = int(rows["emulated_allocated_bytes"].notna().sum()) if len(rows) else 0
    print_line(f"{ended} of {len(specs)} trials have a peak: {folder / ROWS}")
    return EXIT_OK if ended == len(specs) else EXIT_SOME_TRIALS_FAILED


def _emulate(specs: Sequence[TrialSpec], known: Collection[int], settings: _Settings) -> pd.DataFrame:
    """Emulate the trials without a row, and return the rows of those that have ended; one that failed has a row too."""
    store, side = RecordStore(settings.folder), _emulated(settings.options)
    pending = {number: spec for number, spec in enumerate(specs) if number not in known}
    run_pending(tuple(pending.values()), (side,), store=store, options=settings.options, at_most=None, run=run_side)
    found = {number: store.find(side.trial(spec).trial_id) for number, spec in pending.items()}
    return emulated_rows({n: (pending[n], record.outcome) for n, record in found.items() if record is not None})


def read_rows(path: Path) -> pd.DataFrame:
    """Return kept rows, with whole numbers where a trial may have none."""
    rows = pd.read_csv(path)
    whole = [str(name) for name in rows if str(name).endswith("_bytes")]
    return rows.astype(dict.fromkeys(whole, "Int64"))


def emulated_rows(ended: Mapping[int, tuple[TrialSpec, Outcome]]) -> pd.DataFrame:
    """Return one row per trial, by its place in the sample: its main keys, how it ended, and both peaks in bytes.

    Of a trial that ran out of memory, the peaks are what it needs on a card of unlimited memory.
    """
    rows = pd.DataFrame([_row(number, spec, outcome) for number, (spec, outcome) in ended.items()])
    return rows.astype(dict.fromkeys((str(name) for name in rows if str(name).endswith("_bytes")), "Int64"))


def judged(rows: pd.DataFrame, specs: Sequence[TrialSpec]) -> pd.DataFrame:
    """Return the rows with the estimates of today in bytes, and their errors; none where one of both is missing."""
    found = rows.copy()
    estimates = {number: _estimated(specs[number]) for number in rows["trial"]}
    for place, metric in enumerate(("allocated", "reserved")):
        if f"emulated_{metric}_bytes" not in rows:
            continue
        estimated = pd.array([estimates[number][place] for number in rows["trial"]], dtype="Int64")
        found[f"estimated_{metric}_bytes"] = estimated
        error = "error" if metric == "allocated" else "reserved_error"
        found[error] = (found[f"estimated_{metric}_bytes"] / found[f"emulated_{metric}_bytes"] - 1).astype("Float64")
    return found


def _estimated(spec: TrialSpec) -> tuple[int | None, int | None]:
    architecture = architecture_of(spec.model)
    if not has_form(spec, architecture):
        return None, None
    found = estimate_with_replay(spec, architecture)
    return found.peak_allocated_bytes, found.peak_reserved_bytes


def page(rows: pd.DataFrame, chosen: Sample, *, commit: str = "") -> str:
    """Return the comparison as a page of Markdown; `commit` is that of the code that judges, empty where unknown."""
    compared = rows[rows["error"].notna()]
    stages = compared["zero_stage"].map("zero_stage={:.0f}".format, na_action="ignore").astype(object)
    of_one = compared["num_processes"].eq(1).all()
    kinds = compared["recipe"] + ", " + compared["tuning"] if of_one else stages.fillna(compared["distributed_type"])
    groups = [("all", compared), *((str(kind), group) for kind, group in compared.groupby(kinds))]
    other = rows[rows["error"].isna()]
    ends = [(str(row.trial), str(row.model), _why(row)) for row in other.itertuples()]
    lacking = "a peak" if other["emulated_allocated_bytes"].isna().all() else "a peak, or without a closed form"
    by = f" Estimates are those of commit {commit}." if commit else ""
    return kept_page(
        f"The estimate of {chosen.what}, and emulated trials",
        f"{len(compared)} of {chosen.count} sampled trials are compared. Errors of estimated allocated memory, "
        "relative to torch's counters on the first of the emulated GPUs. Nothing here is measured. The sample was "
        f"written down before any trial ran.{by} {chosen.earlier}",
        _table(groups, "error"),
        *(("Reserved memory:", _table(groups, "reserved_error")) if "reserved_error" in rows else ()),
        *((f"Trials without {lacking}:", markdown_table(("trial", "model", "status"), ends)) if ends else ()),
        command=f"python -m maintenance.several_gpus sample={chosen.name} results_dir=results/reference",
    )


def _table(groups: Sequence[tuple[str, pd.DataFrame]], error: str) -> str:
    return markdown_table(
        ("trials of", "number", *ERROR_COLUMNS),
        [(name, str(len(group)), *error_cells(group[error])) for name, group in groups],
    )


def _why(row: Any) -> str:  # noqa: ANN401  a named tuple of pandas
    return str(row.status) if pd.isna(row.emulated_allocated_bytes) else f"{row.status}, no closed form"


def _settings(words: Sequence[str]) -> _Settings:
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    python = None if reader.value("python") is None else PurePath(reader.text("python", "the path of a program"))
    options = RunOptions(jobs=reader.count("jobs"), python=python)
    name = reader.text("sample", f"one of {', '.join(SAMPLES)}")
    if name not in SAMPLES:
        faults.append(Fault(key="sample", found=name, problem=f"must be one of {', '.join(SAMPLES)}"))
    folder = Path(reader.text("results_dir", "a folder")) / name
    if reader.sound("results_dir"):
        faults.extend(folder_faults(folder))
    limit, emulate, judge = reader.optional_count("limit"), reader.flag("emulate"), reader.flag("judge")
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    return _Settings(chosen=SAMPLES[name], limit=limit, emulate=emulate, judge=judge, options=options, folder=folder)


def _emulated(options: RunOptions) -> Side:
    from profiler.execution.pythons import emulated_workers

    workers = emulated_workers(options)
    return Side(backend=Backend.EMULATED, versions=workers.versions, interpreter_of=workers.interpreter_of)


def _row(number: int, spec: TrialSpec, outcome: Outcome) -> dict[str, object]:
    allocated, reserved = needed_sizes(outcome)
    return {
        "trial": number,
        "model": spec.model,
        "distributed_type": spec.distributed_type.value,
        "zero_stage": spec.zero_stage,
        "num_processes": spec.num_processes,
        "recipe": spec.recipe.value,
        "tuning": spec.tuning.value,
        "status": outcome.status.value,
        "emulated_allocated_bytes": allocated,
        "emulated_reserved_bytes": reserved,
    }


if __name__ == "__main__":
    sys.exit(main())
