"""`python -m maintenance.verl_tuning`: the jobs of verl's published table of hardware, and what the estimate says.

`jobs.jsonl` has each row of the table with the keys of its run script; nothing is measured here, and nothing is fitted.

Exit codes: docs/exit_codes.md.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from maintenance.pages.kept_page import kept_page
from maintenance.words import read_words
from profiler.analytical.explanation.boundary import verl_card, verl_fit
from profiler.analytical.explanation.explained import Fit, Unanswered
from profiler.analytical.timeline.recipes.verl import verl_estimate
from profiler.command_line import as_command, print_line, print_text
from profiler.config.models.lookup import builtin_architecture
from profiler.config.options.reading import FieldReader
from profiler.config.verl.config import read_verl
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_OK, UsageError
from profiler.domain.memory import as_gib
from profiler.rendering.layouts.markdown import markdown_table
from profiler.rendering.layouts.script_data import as_csv
from profiler.storage.files.atomic import write_atomically

GRID = "verl_tuning"
JOBS, ROWS, PAGE = "jobs.jsonl", "rows.csv", "report.md"

MEAN_ROW = 344
"""Tokens of prompt and response of GSM8K on average, in verl's own log of that data: 104.9 and 239.1.

Source: `docs/start/quickstart.rst` of verl 0.7, whose responses end at 256 tokens.
"""

_DEFAULTS: Mapping[str, object] = {"results_dir": "results/reference"}

_USAGE = f"""\
python -m maintenance.verl_tuning [results_dir=FOLDER]

Estimates the jobs of verl's table of hardware, FOLDER/{GRID}/{JOBS}, and
writes {ROWS} and {PAGE} next to it. It takes seconds.

Examples:
  python -m maintenance.verl_tuning
"""


@as_command("verl_tuning")
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if {"-h", "--help"} & set(words):
        print_text(_USAGE)
        return EXIT_OK
    values, faults = read_words(words, _DEFAULTS)
    reader = FieldReader(values)
    folder = Path(reader.text("results_dir", "a folder")) / GRID
    if faults or reader.faults:
        raise UsageError((*faults, *reader.faults))
    rows = comparison(jobs_of(folder))
    write_atomically(folder / ROWS, as_csv(rows).encode())
    write_atomically(folder / PAGE, page(rows).encode())
    print_line(f"{int((rows['agrees'] == 'yes').sum())} of {len(rows)} jobs agree: {folder / PAGE}")
    return EXIT_OK


def jobs_of(folder: Path) -> list[dict[str, Any]]:
    """Return the jobs of the table, one per row."""
    return [json.loads(line) for line in (folder / JOBS).read_text(encoding="utf-8").splitlines()]


def comparison(jobs: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return one row per job of the table, which its authors ran: what is estimated, and whether it fits."""
    return pd.DataFrame([_row(job) for job in jobs])


def _row(job: Mapping[str, Any]) -> dict[str, object]:
    reading = read_verl(job["keys"], megatron=job["megatron"])
    architecture = builtin_architecture(reading.job.model)
    if architecture is None:
        raise ValueError(f"{reading.job.model} is not built in")
    card = KNOWN_GPUS[job["gpu"]]
    found = verl_estimate(reading.job, architecture, card)
    fit = verl_fit(reading.job, reading.job_at, architecture, card, removes_padding=reading.removes_padding)
    usual = verl_estimate(reading.job_at(MEAN_ROW), architecture, card)
    at_mean = verl_card(usual).fit
    return {
        "model": reading.job.model,
        "task": job["task"],
        "resource": job["resource"],
        "gpu": card.name,
        "script": job["script"],
        "longest_row": fit.longest_row,
        "tokens_at_most": reading.job.actor.max_tokens,
        "peak_at_most_gib": round(as_gib(found.peak_bytes), 1),
        "fit_at_most": fit.fit.value,
        "mean_row_that_fits": fit.fits_up_to or 0,
        "mean_row_that_is_tight": fit.tight_up_to or 0,
        "peak_of_mean_row_gib": round(as_gib(usual.peak_bytes), 1),
        "fit_of_mean_row": at_mean.value,
        "agrees": "no" if at_mean is Fit.TOO_LARGE else "yes",
        "why": " ".join(filter(None, (_why(fit.fit, at_mean), job["remark"]))),
        "not_counted": "; ".join(note.text for note in reading.notes if not note.is_counted),
    }


def _why(longest: Fit | Unanswered, mean: Fit) -> str:
    """Return why the estimate agrees that the job runs, or why not."""
    if longest is Fit.FITS:
        return "Fits with every row at its maximum."
    if mean is Fit.TOO_LARGE:
        return "Does not fit with rows of the usual length either."
    said = "fit" if mean is Fit.FITS else "are tight: whether the fragments fit is within the error of the method"
    return f"Padding is removed, and rows of the usual length {said}."


def page(rows: pd.DataFrame) -> str:
    """Return the comparison as a page of Markdown."""
    table = markdown_table(
        (
            "job",
            "on",
            "tokens of a pass",
            "peak",
            "verdict",
            "mean row: fits",
            "tight",
            "usual row",
            "verdict",
            "agrees",
        ),
        [
            (
                f"{row.model}, {row.task}",
                str(row.resource),
                f"{row.tokens_at_most:,}",
                f"{row.peak_at_most_gib} GiB",
                str(row.fit_at_most),
                _up_to(int(str(row.mean_row_that_fits)), int(str(row.longest_row))),
                _up_to(int(str(row.mean_row_that_is_tight)), int(str(row.longest_row))),
                f"{row.peak_of_mean_row_gib} GiB",
                str(row.fit_of_mean_row),
                str(row.agrees),
            )
            for row in rows.itertuples()
        ],
    )
    agreed = int((rows["agrees"] == "yes").sum())
    reasons = [f"- {row.model}, {row.task}, {row.resource}: {row.why}" for row in rows.itertuples()]
    missing = sorted({str(text) for text in rows["not_counted"] if text})
    return kept_page(
        "verl's table of hardware, and the estimate",
        "verl publishes jobs with the fewest GPUs on which they ran (`docs/perf/device_tuning.rst`; scripts in "
        f"`examples/tuning/`, commit b178a3cd5). The estimate agrees with {agreed} of {len(rows)}. Everything here is "
        "estimated per GPU; nothing is measured or fitted. An H800 has the memory of an H100.",
        table,
        "*Tokens of a pass*, *peak*, first verdict: every row has the maximum length of prompt and response. The "
        "jobs remove padding (`use_remove_padding`), so a pass computes its tokens and no others, and the mean length "
        "of its rows counts. *Mean row*: the largest mean length, of prompt "
        f"and response together, that fits and that is tight, of the maximum. *Usual row*: {MEAN_ROW} tokens, which "
        "verl's own log shows for this data, GSM8K (prompts of 104.9 tokens on average, responses of 239.1, where 256 "
        "were allowed: `docs/start/quickstart.rst`).",
        "\n".join(reasons),
        "What was not the reason: the type of weights, gradients and states (float32, as `_build_model_optimizer` of "
        "`fsdp_workers.py` says), offloading (it ends before the update), the reference (offloaded in all scripts), "
        "and the engine (it sleeps). Also counted since then: a pass has no more rows than its mini-batch, and where "
        "a mini-batch is one pass there are no earlier gradients.",
        f"Not counted: {'; '.join(missing)}; the buffers of NCCL; what the sleeping engine keeps. So the estimate says "
        "that these jobs run, and not how many more rows would.",
        command="python -m maintenance.verl_tuning",
    )


def _up_to(tokens: int, longest: int) -> str:
    return f"{tokens:,} of {longest:,}" if tokens else f"none of {longest:,}"


if __name__ == "__main__":
    sys.exit(main())
