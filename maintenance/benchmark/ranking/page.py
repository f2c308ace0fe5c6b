"""The page of the benchmark: the set, the scores by kind of job and by source, and where this project loses."""

from collections import Counter
from collections.abc import Mapping, Sequence

from maintenance.benchmark.answers.predictors import NOT_RANKED, PREDICTORS, RANKED, Predictor
from maintenance.benchmark.answers.published_scripts import has_script
from maintenance.benchmark.ranking.own_results import (
    Answers,
    about_measured,
    losses,
    of_origin,
    of_source,
    of_the_set,
    percent,
)
from maintenance.benchmark.ranking.scores import CARDS_GIB, Scores, scores
from maintenance.benchmark.rows.kept import OF_THE_SET
from maintenance.pages.kept_page import kept_page
from profiler.domain.runs.shared import Row, RowOrigin
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import escaped, markdown_table

Costs = Mapping[str, Mapping[str, float | None]]

_COLUMNS = (
    *("predictor", "covers", "compared", "median error", "95th percentile", "too low", "worst too low"),
    *("verdicts right", 'wrong "fits"'),
)
_ALIGN = (Align.LEFT, *(Align.RIGHT,) * (len(_COLUMNS) - 1))
_SOURCES = {
    "canifinetune": "canifinetune's own runs, RTX 4080",
    "coursia": "CoursIA, RTX 3070 Laptop",
    "fitcheck": "fitcheck's own runs, Tesla T4",
    "fms": "IBM's fms-acceleration, A100",
    "peft": "PEFT's method comparison, L40S",
    "h200": "this project's first campaign, H200",
    "h200_second": "this project's second campaign, H200",
    "h200_third": "this project's third campaign, H200",
    "h100": "this project's fourth campaign, H100",
    "h200_fourth": "this project's fifth campaign, H200",
    "sent": "rows that were sent",
    "emulated": "emulated by this project, one GPU",
    "several_gpus": "emulated by this project, DDP and FSDP",
    "deepspeed": "emulated by this project, DeepSpeed",
    "deepspeed_blind": "emulated by this project, DeepSpeed, blind",
    "benchmark": "emulated by this project for the set, first two thirds",
    "benchmark_last": "emulated by this project for the set, last third",
}


def benchmark_page(rows: Sequence[Row], answers: Answers, costs: Costs, *, figure: str) -> str:
    """Return the page of rows and answers."""
    stated = [row for row in rows if not row.assumed and not row.beyond and row.peaks]
    kinds = Counter(row.kind for row in rows if row.peaks)
    return kept_page(
        "One benchmark for all who predict memory",
        f"{len(rows)} jobs with their peaks, and what {len(RANKED)} predictors say of them. "
        f"{_origins(rows)}. What a predictor does not cover counts as not covered, not as wrong. "
        "This project made the set and the adapters, and is ranked in it: its formulas and its simulation were "
        "developed on emulated jobs like those here, so its scores on emulated rows say less than those on measured "
        "ones. No constant of either was fitted to a row that others measured.",
        f"![Errors of each predictor]({figure})",
        "The figure has every row with a peak that is answered, also those with a setting that had to be assumed.",
        "## Measured by others, with all settings stated",
        f"{len(of_origin(stated, RowOrigin.OTHERS))} rows. Each prediction is compared in "
        "the first metric that it and the row have: allocated, reserved, then device memory. `covers` is the share of "
        "the rows that it answers. `too low` is the share of compared rows that need more than predicted, which is "
        f"what hurts. Verdicts are whether the peak fits on cards of {', '.join(map(str, CARDS_GIB))} GiB.",
        _table(of_origin(stated, RowOrigin.OTHERS), answers),
        f"{sum(map(has_script, of_origin(stated, RowOrigin.OTHERS)))} of these rows are loops over a model. Our "
        "simulation ran the program that measured them, as its authors publish it, and so knows more of the job than "
        "its keys, which all others are asked by ([reserved memory, and by release of torch]"
        "(evidence.md#their-own-scripts-run-on-the-simulated-card)).",
        "Who covers few rows is compared on those few. fitcheck's constants are fitted to some of its own T4 rows, and "
        "canifinetune's to its own: [by source](#by-source) both are apart.",
        "Not ranked, because they predict jobs of a trainer or kernels of their own, of which the set has no row yet: "
        + ", ".join(each.title for each in PREDICTORS.values() if each.own_trainer)
        + ". Their adapters are written, and their answers to the rows are kept.",
        "## Measured here",
        "GRPO, SFT, DPO, KTO and reward models, on four NVIDIA H200 and one H100, in five campaigns. The predictions "
        "of this project were committed before the trials of each ran. The trainers are those of trl 1.16, as below.",
        _table(of_origin(stated, RowOrigin.OURS), answers),
        *about_measured(of_origin(stated, RowOrigin.OURS), answers),
        *_sent(of_origin(rows, RowOrigin.SENT), answers),
        "## Emulated jobs",
        "torch's CUDA build on an emulated driver. Nothing here is measured on a card. Three samples of several GPUs "
        "are of jobs with a closed form, so that the estimate covers all of them; of the samples for the set none was "
        "asked for. The trainers are those of trl 1.16, whose loss does not make all logits at once: who counts them "
        "is too high.",
        _table(of_origin(rows, RowOrigin.EMULATED), answers),
        *of_the_set(rows, answers),
        "## By kind of job",
        "Measured and emulated rows together; predictors that cover none are left out.",
        *(part for kind in sorted(kinds) for part in (f"### {kind}", _table(_of_kind(rows, kind), answers, cut=True))),
        "## By source",
        *(
            part
            for name, text in _SOURCES.items()
            if of_source(rows, name)
            for part in (f"### {text}", *_seen(name), _table(of_source(rows, name), answers, cut=True))
        ),
        "## Where this project loses",
        losses(rows, answers),
        "## What an answer costs",
        "Seconds are the median of one answer in a process that has started. The installation is what the package and "
        "what it needs add to an empty environment; of those without one, their formula runs here. The estimate needs "
        "this project's core, which a test holds below 15 MB; the simulation and torch's trackers need torch, "
        "transformers and trl, torch-kitsune and vram-check the first two, which are not counted. "
        "What was not asked on the machine of the others is not timed.",
        _costs(costs),
        "## The predictors",
        "Each is asked with its own best settings for the job, through "
        "[an adapter](../maintenance/benchmark/adapters/) of at most 60 lines. **Its authors can correct it**: by an "
        "issue or a change that names the file and the setting, with the page of their documentation that says so. "
        "`make benchmark` then draws this page anew. torch's trackers watch a script, which "
        "[this project wrote](../maintenance/benchmark/adapters/watched_steps.py) for them.",
        _predictors(),
        "Not ranked: " + "; ".join(f"{name} ({reason})" for name, reason in NOT_RANKED.items()) + ".",
        "## The rows",
        "[rows.jsonl](../benchmark/rows.jsonl) has those of others, [models.json](../benchmark/models.json) the models "
        "that are not built in. Every row states its source with commit and licence, what the source does not state "
        "(`missing`), keys that had to be assumed (`assumed`), what the job has that no key can say (`beyond`), and in "
        "what the described job is not the one that ran (`differs`).",
        _differences(rows),
        "[sent.jsonl](../benchmark/sent.jsonl) has those that were sent ([how](../CONTRIBUTING.md#how-to-send-a-row)).",
        "Emulated jobs are those of the samples in [results/reference](../results/reference/), each with its page.",
        command="make benchmark",
    )


def _origins(rows: Sequence[Row]) -> str:
    counts = Counter(row.origin for row in rows)
    return ", ".join(f"{counts[origin]} are {origin.value}" for origin in RowOrigin if counts[origin])


def _sent(rows: Sequence[Row], answers: Answers) -> tuple[str, ...]:
    """Return the section of rows that were sent; nothing without any."""
    if not rows:
        return ()
    text = "Measured and sent by `python -m profiler.share`; nothing is ever fitted to them."
    return ("## Measured and sent", text, _table(rows, answers))


def _seen(name: str) -> tuple[str, ...]:
    """Return the sentence on a sample for the set, of which the table has today's estimate."""
    text = "The estimate is that of today; above is what it said [before](#before-the-jobs-were-seen-and-today)."
    return (text,) if name in OF_THE_SET else ()


def _of_kind(rows: Sequence[Row], kind: str) -> list[Row]:
    return [row for row in rows if row.kind == kind]


def _table(rows: Sequence[Row], answers: Answers, *, cut: bool = False) -> str:
    found = {key: scores(rows, answers[key]) for key in RANKED}
    shown = {key: score for key, score in found.items() if score.compared or not cut}
    order = sorted(shown, key=lambda key: (shown[key].median_error is None, shown[key].median_error or 0))
    number = sum(1 for row in rows if row.peaks)
    if not shown:
        return f"{number} rows, of which no predictor covers one."
    table = markdown_table(_COLUMNS, [_cells(RANKED[key], shown[key]) for key in order], align=_ALIGN)
    return f"{number} rows.\n\n{table}" if cut else table


def _cells(predictor: Predictor, found: Scores) -> tuple[str, ...]:
    name = f"**{predictor.title}**" if predictor.is_ours else predictor.title
    lowest = found.worst_too_low
    return (
        name,
        f"{found.coverage:.0%}",
        str(found.compared),
        percent(found.median_error),
        percent(found.p95_error),
        "" if found.too_low is None else f"{found.too_low:.0%}",
        "" if lowest is None else f"{100 * lowest:+.1f} %" if lowest < 0 else "none",
        "" if found.right_verdicts is None else f"{found.right_verdicts:.1%}",
        "" if found.wrong_fits is None else f"{found.wrong_fits:.1%}",
    )


def _costs(costs: Costs) -> str:
    lines = []
    for key, predictor in PREDICTORS.items():
        seconds, size = costs[key]["seconds"], costs[key]["install_bytes"]
        cost = "not timed" if seconds is None else f"{1000 * seconds:,.1f} ms"
        lines.append((predictor.title, cost, f"{size / 1e6:,.{0 if size > 1e6 else 2}f} MB" if size else ""))
    return markdown_table(("predictor", "one answer", "installation"), lines, align=(Align.LEFT, *(Align.RIGHT,) * 2))


def _predictors() -> str:
    return markdown_table(
        ("predictor", "asked", "its figure is", "it is asked for", "source"),
        [(each.title, each.package or "here", each.says, each.covers, each.source) for each in PREDICTORS.values()],
        align=Align.LEFT,
    )


def _differences(rows: Sequence[Row]) -> str:
    others = [row for row in rows if row.origin is RowOrigin.OTHERS]
    names = ("differs", "missing", "beyond")
    counts = {name: Counter(text for row in others for text in getattr(row, name)) for name in names}
    return markdown_table(
        ("field", "text", "rows"),
        [(name, escaped(text), str(count)) for name in names for text, count in counts[name].most_common()],
        align=(Align.LEFT, Align.LEFT, Align.RIGHT),
    )
