"""The page of the benchmark: the set, the scores by kind of job and by source, and where this project loses."""

from collections import Counter
from collections.abc import Mapping, Sequence

from maintenance.benchmark.adapters.question import Said
from maintenance.benchmark.answers.predictors import NOT_RANKED, PREDICTORS, RANKED, Predictor
from maintenance.benchmark.answers.published_scripts import has_script
from maintenance.benchmark.ranking.scores import CARDS_GIB, Scores, compared, pairs_of, scores
from maintenance.benchmark.rows.kept import first_estimates
from maintenance.pages.kept_page import kept_page
from maintenance.samples.benchmark import FROZEN
from profiler.domain.runs.shared import Metric, Row, RowOrigin
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import escaped, markdown_table

Answers = Mapping[str, Mapping[str, Said]]
"""By the key of the predictor, then by the name of the row."""
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
    "benchmark": "emulated by this project for the set",
    "benchmark_last": "emulated by this project for the set, last third",
}
_FOR_THE_SET = ("benchmark", "benchmark_last")
_LOST = 0.1
"""An error that is worth a row of the list of losses."""
_LOSSES = 15


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
        "## Measured by others, with all settings stated",
        f"{len(_of_origin(stated, RowOrigin.OTHERS))} rows. Each prediction is compared in "
        "the first metric that it and the row have: allocated, reserved, then device memory. `covers` is the share of "
        "the rows that it answers. `too low` is the share of compared rows that need more than predicted, which is "
        f"what hurts. Verdicts are whether the peak fits on cards of {', '.join(map(str, CARDS_GIB))} GiB.",
        _table(_of_origin(stated, RowOrigin.OTHERS), answers),
        f"{sum(map(has_script, _of_origin(stated, RowOrigin.OTHERS)))} of these rows are loops over a model. Our "
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
        _table(_of_origin(stated, RowOrigin.OURS), answers),
        *_about_measured(_of_origin(stated, RowOrigin.OURS), answers),
        *_sent(_of_origin(rows, RowOrigin.SENT), answers),
        "## Emulated jobs",
        "torch's CUDA build on an emulated driver. Nothing here is measured on a card. Three samples of several GPUs "
        "are of jobs with a closed form, so that the estimate covers all of them; of the sample for the set that was "
        "not asked ([what it showed](../results/reference/benchmark/README.md)). The trainers are those of trl 1.16, "
        "whose loss does not make all logits at once: who counts them is too high.",
        _table(_of_origin(rows, RowOrigin.EMULATED), answers),
        _equal_to_the_byte([row for name in _FOR_THE_SET for row in _of_source(rows, name)], answers["simulation"]),
        "## By kind of job",
        "Measured and emulated rows together; predictors that cover none are left out.",
        *(part for kind in sorted(kinds) for part in (f"### {kind}", _table(_of_kind(rows, kind), answers, cut=True))),
        "## By source",
        *(
            part
            for name, text in _SOURCES.items()
            if _of_source(rows, name)
            for part in (f"### {text}", _table(_of_source(rows, name), answers, cut=True))
        ),
        "## Where this project loses",
        _losses(rows, answers),
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
        "[400 jobs](../results/reference/benchmark/sampled.jsonl) were sampled by a seed and written down before any "
        "was emulated. The seed of [200 more](../results/reference/benchmark_last/sampled.jsonl) is the hash of the "
        f"commit in which estimate and simulation were frozen for them, {FROZEN}; they are judged once, when all are "
        "emulated.",
        command="make benchmark",
    )


def _equal_to_the_byte(rows: Sequence[Row], simulated: Mapping[str, Said]) -> str:
    """Return how many rows have the same peaks in the simulation."""
    pairs = [(row, simulated[row.row_id]) for row in rows if simulated.get(row.row_id)]
    same = Counter(
        peak.metric for row, said in pairs for peak in row.peaks if said.get(peak.metric.value) == peak.size_bytes
    )
    return (
        f"{len(pairs)} jobs of one GPU of that sample are simulated too: allocated memory is equal to the byte in "
        f"{same[Metric.ALLOCATED]} of them, reserved memory in {same[Metric.RESERVED]}. They were sampled and written "
        "down before any of them ran."
    )


def _origins(rows: Sequence[Row]) -> str:
    counts = Counter(row.origin for row in rows)
    return ", ".join(f"{counts[origin]} are {origin.value}" for origin in RowOrigin if counts[origin])


def _of_origin(rows: Sequence[Row], origin: RowOrigin) -> list[Row]:
    return [row for row in rows if row.origin is origin]


def _about_measured(rows: Sequence[Row], answers: Answers) -> tuple[str, ...]:
    """Return how far the estimate was before the trials ran, and which trials the simulation did not finish."""
    first, today = first_estimates(), answers["estimate"]
    found = scores(rows, first)
    if found.worst_too_low is None:
        return ()
    since = [row for row in rows if today[row.row_id].get("allocated") != first[row.row_id]["allocated"]]
    failed = [f"{row.row_id} ({row.job['model']})" for row in rows if not answers["simulation"].get(row.row_id)]
    return (
        "The table has today's estimate, some of whose formulas were corrected after a campaign had shown an error: "
        f"{len(since)} of {found.compared} answers are others since. Before the trials ran, it was "
        f"{_percent(found.median_error)} off in the median, {_percent(found.p95_error)} in the 95th percentile and "
        f"{100 * found.worst_too_low:+.1f} % at worst.",
        *([f"Trials whose simulation failed, which count as not covered: {', '.join(failed)}."] if failed else []),
    )


def _sent(rows: Sequence[Row], answers: Answers) -> tuple[str, ...]:
    """Return the section of rows that were sent; nothing without any."""
    if not rows:
        return ()
    text = "Measured and sent by `python -m profiler.share`; nothing is ever fitted to them."
    return ("## Measured and sent", text, _table(rows, answers))


def _of_kind(rows: Sequence[Row], kind: str) -> list[Row]:
    return [row for row in rows if row.kind == kind]


def _of_source(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if row.row_id.rpartition("-")[0] == name or row.row_id.split("-")[0] == name]


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
        _percent(found.median_error),
        _percent(found.p95_error),
        "" if found.too_low is None else f"{found.too_low:.0%}",
        "" if lowest is None else f"{100 * lowest:+.1f} %" if lowest < 0 else "none",
        "" if found.right_verdicts is None else f"{found.right_verdicts:.1%}",
        "" if found.wrong_fits is None else f"{found.wrong_fits:.1%}",
    )


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else f"{100 * ratio:.1f} %"


def _losses(rows: Sequence[Row], answers: Answers) -> str:
    """Return the largest errors of the estimate over measured rows, and whom it does worse than."""
    measured = [row for row in rows if row.origin is not RowOrigin.EMULATED]
    pairs = sorted(pairs_of(measured, answers["estimate"]), key=lambda pair: -abs(pair.error))
    lost = [pair for pair in pairs if abs(pair.error) > _LOST]
    table = markdown_table(
        ("row", "metric", "our estimate", "in what the described job differs"),
        [
            (pair.row.row_id, pair.metric.value, f"{100 * pair.error:+.1f} %", escaped("; ".join(pair.row.differs)))
            for pair in lost[:_LOSSES]
        ],
        align=(Align.LEFT, Align.LEFT, Align.RIGHT, Align.LEFT),
    )
    return (
        f"Of {len(pairs)} measured rows, the estimate is more than {_LOST:.0%} off in {len(lost)}; "
        f"the {min(_LOSSES, len(lost))} largest errors:\n\n{table}\n\n{_better(measured, answers)}"
    )


def _better(rows: Sequence[Row], answers: Answers) -> str:
    """Return who has a lower median error than the estimate on the rows that both answer, and who is closer in some."""
    lines, closer = [], []
    for key, predictor in RANKED.items():
        both = [row for row in rows if answers[key].get(row.row_id) and answers["estimate"].get(row.row_id)]
        theirs, ours = scores(both, answers[key]), scores(both, answers["estimate"])
        if predictor.is_ours or theirs.median_error is None or ours.median_error is None:
            continue
        pairs = [
            (compared(row, answers[key][row.row_id]), compared(row, answers["estimate"][row.row_id])) for row in both
        ]
        better = sum(bool(one and other and abs(one.error) < abs(other.error)) for one, other in pairs)
        if better:
            closer.append(f"{predictor.title} in {better} of {theirs.compared}")
        if theirs.median_error < ours.median_error:
            lines.append(
                f"- {predictor.title}: {_percent(theirs.median_error)} over {theirs.compared} measured rows, our "
                f"estimate {_percent(ours.median_error)}"
            )
    head = "Lower median errors than the estimate's, on the measured rows that both answer:"
    lower = (
        "\n".join([head, "", *lines]) if lines else "No other has a lower median error on the rows that both answer."
    )
    return f"{lower}\n\nCloser than the estimate, row by row: {', '.join(closer) or 'nobody'}."


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
