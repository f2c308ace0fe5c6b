"""What the page says of this project itself: how far it was before it had seen a job, and where it loses."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd

from maintenance.benchmark.adapters.question import Said
from maintenance.benchmark.answers.predictors import RANKED
from maintenance.benchmark.ranking.scores import compared, pairs_of, scores
from maintenance.benchmark.rows.jobs import config_of
from maintenance.benchmark.rows.kept import OF_THE_SET, first_estimates
from maintenance.pages.error_cells import ERROR_COLUMNS, error_cells
from maintenance.samples.benchmark import FROZEN, UNSEEN
from profiler.domain.runs.shared import Metric, Row, RowOrigin
from profiler.domain.trials.trial import DistributedType
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import escaped, markdown_table

Answers = Mapping[str, Mapping[str, Said]]
"""By the key of the predictor, then by the name of the row."""

_THIRDS = dict(zip(OF_THE_SET, ("the first two thirds", "the last third"), strict=True))
_LOST = 0.1
"""An error that is worth a row of the list of losses."""
_LOSSES = 15


def of_origin(rows: Sequence[Row], origin: RowOrigin) -> list[Row]:
    """Return the rows of an origin."""
    return [row for row in rows if row.origin is origin]


def of_source(rows: Sequence[Row], name: str) -> list[Row]:
    """Return the rows of a source, by the beginning of their names."""
    return [row for row in rows if row.row_id.rpartition("-")[0] == name or row.row_id.split("-")[0] == name]


def percent(ratio: float | None) -> str:
    """Return a ratio as shown; "" for None."""
    return "" if ratio is None else f"{100 * ratio:.1f} %"


def of_the_set(rows: Sequence[Row], answers: Answers) -> tuple[str, ...]:
    """Return how far the estimate was from the samples for the set before it had seen them, and is today."""
    found = {name: each for name in OF_THE_SET if (each := of_source(rows, name))}
    if not found:
        return ()
    first, today = first_estimates(), answers["estimate"]
    changed = {name: _others_since(first, today, each) for name, each in found.items()}
    since = (f"{len(each)} of {_THIRDS[name]} ({sum(map(_is_fsdp, each))} by FSDP)" for name, each in changed.items())
    return (
        "### Before the jobs were seen, and today",
        "[400 jobs](../results/reference/benchmark/README.md) were sampled by a seed and written down before any was "
        f"emulated; `before` is the estimate of commit {UNSEEN}, which had seen none. The seed of "
        "[200 more](../results/reference/benchmark_last/README.md), the last third, is the hash of the commit in which "
        f"estimate and simulation were frozen for them, {FROZEN}. They were judged once, when all were emulated: "
        "`before` is the frozen estimate, and the frozen simulation ran those of one GPU. `compared` counts jobs with "
        "a closed form, of those with a peak.",
        *(
            part
            for metric in (Metric.ALLOCATED, Metric.RESERVED)
            for part in (f"{metric.value.capitalize()} memory:", _before_and_today(found, first, today, metric))
        ),
        f"Answers that have changed since: {', '.join(since)}. The first two thirds showed an error in what DDP "
        "copies, the last third errors in what FSDP gathers and reduces, and the formulas were corrected. All other "
        "tables of this page have today's estimate. **Its figures for FSDP are not blind**: the corrected formulas "
        "have seen these jobs. Reserved memory is a bound in the answers before, and today a replay, as `estimate` "
        "says it of one trial.",
        *(_equal_to_the_byte(found[name], answers["simulation"], _THIRDS[name]) for name in found),
    )


def _before_and_today(
    found: Mapping[str, Sequence[Row]], first: Mapping[str, Said], today: Mapping[str, Said], metric: Metric
) -> str:
    """Return the table of the errors in a metric, of each sample and of its jobs by FSDP."""
    parts = [(_THIRDS[name], each) for name, each in found.items()]
    parts += [(f"{text}, FSDP", [row for row in each if _is_fsdp(row)]) for text, each in parts]
    lines = []
    for text, each in parts:
        for when, said in (("before", first), ("today", today)):
            errors = [pair.error for pair in pairs_of(each, _only(said, metric))]
            if errors:
                cells = error_cells(pd.Series(errors))
                lines.append((text, when, f"{len(errors)} of {len(each)}", *cells))
    return markdown_table(
        ("jobs", "estimate", "compared", *ERROR_COLUMNS), lines, align=(*(Align.LEFT,) * 2, *(Align.RIGHT,) * 5)
    )


def _only(answers: Mapping[str, Said], metric: Metric) -> Mapping[str, Said]:
    """Return the answers of one metric."""
    return {name: {metric.value: said[metric.value]} for name, said in answers.items() if metric.value in said}


def _is_fsdp(row: Row) -> bool:
    return row.job["distributed_type"] == DistributedType.FSDP


def _others_since(first: Mapping[str, Said], today: Mapping[str, Said], rows: Sequence[Row]) -> list[Row]:
    """Return the rows of which the estimate said another size of allocated memory before it had seen them."""
    name = Metric.ALLOCATED.value
    return [row for row in rows if row.row_id in first and today[row.row_id].get(name) != first[row.row_id].get(name)]


def _equal_to_the_byte(rows: Sequence[Row], simulated: Mapping[str, Said], sample: str) -> str:
    """Return how many rows of one GPU of a sample have the same peaks in the simulation."""
    of_one = [row for row in rows if row.job["num_processes"] == 1]
    pairs = [(row, simulated[row.row_id]) for row in of_one if simulated.get(row.row_id)]
    same = Counter(
        peak.metric for row, said in pairs for peak in row.peaks if said.get(peak.metric.value) == peak.size_bytes
    )
    return (
        f"Of {len(of_one)} jobs of one GPU of {sample}, {len(pairs)} are simulated too: allocated memory is equal to "
        f"the byte in {same[Metric.ALLOCATED]} of them, reserved memory in {same[Metric.RESERVED]}."
    )


def about_measured(rows: Sequence[Row], answers: Answers) -> tuple[str, ...]:
    """Return how far the estimate was before the trials ran, and which trials the simulation did not finish."""
    first, today = first_estimates(), answers["estimate"]
    found = scores(rows, first)
    if found.worst_too_low is None:
        return ()
    since = _others_since(first, today, rows)
    failed = [f"{row.row_id} ({row.job['model']})" for row in rows if not answers["simulation"].get(row.row_id)]
    return (
        "The table has today's estimate, some of whose formulas were corrected after a campaign had shown an error: "
        f"{len(since)} of {found.compared} answers are others since. Before the trials ran, it was "
        f"{percent(found.median_error)} off in the median, {percent(found.p95_error)} in the 95th percentile and "
        f"{100 * found.worst_too_low:+.1f} % at worst.",
        *([f"Trials whose simulation failed, which count as not covered: {', '.join(failed)}."] if failed else []),
    )


def losses(rows: Sequence[Row], answers: Answers) -> str:
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
    too_low = [-pair.error for pair in pairs if pair.is_too_low]
    return (
        f"Of {len(pairs)} measured rows, the estimate is too low in {len(too_low)}, by "
        f"{percent(median(too_low) if too_low else None) or 'nothing'} in the median. It is more than {_LOST:.0%} off "
        f"in {len(lost)}; the {min(_LOSSES, len(lost))} largest errors:\n\n{table}\n\n"
        f"{_simulated_wrongly(measured, answers)}{_better(measured, answers)}\n\n{_reserved(rows, answers)}"
    )


def _simulated_wrongly(rows: Sequence[Row], answers: Answers) -> str:
    """Return the large errors of the simulation, with the releases of both; nothing without any."""
    lost = [pair for pair in pairs_of(rows, answers["simulation"]) if abs(pair.error) > _LOST]
    if not lost:
        return ""
    named = ", ".join(
        f"{pair.row.row_id} {100 * pair.error:+.1f} % (transformers {pair.row.versions.get('transformers', 'unknown')})"
        for pair in lost
    )
    are_mixtures = all("num_local_experts" in config_of(str(pair.row.job["model"])) for pair in lost)
    why = " Since transformers 5 a mixture's experts are one tensor, which bitsandbytes leaves in 16 bits."
    return (
        f"The simulation, with today's releases, is more than {_LOST:.0%} off in {len(lost)} measured "
        f"{'row' if len(lost) == 1 else 'rows'}: {named}.{why if are_mixtures else ''}\n\n"
    )


def _reserved(rows: Sequence[Row], answers: Answers) -> str:
    """Return the errors of reserved memory, which the tables leave out where allocated memory is known."""
    lines = []
    for origin in RowOrigin:
        stated = [row for row in of_origin(rows, origin) if not row.assumed and not row.beyond]
        for predictor in (each for each in RANKED.values() if each.is_ours):
            said = _only(answers[predictor.key], Metric.RESERVED)
            if errors := [pair.error for pair in pairs_of(stated, said)]:
                lines.append((origin.value, predictor.title, str(len(errors)), *error_cells(pd.Series(errors))))
    table = markdown_table(
        ("rows", "predictor", "compared", *ERROR_COLUMNS), lines, align=(*(Align.LEFT,) * 2, *(Align.RIGHT,) * 5)
    )
    return (
        "Reserved memory, which the tables above leave out where allocated memory is known, and which the card must "
        f"have:\n\n{table}"
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
                f"- {predictor.title}: {percent(theirs.median_error)} over {theirs.compared} measured rows, our "
                f"estimate {percent(ours.median_error)}"
            )
    head = "Lower median errors than the estimate's, on the measured rows that both answer:"
    lower = (
        "\n".join([head, "", *lines]) if lines else "No other has a lower median error on the rows that both answer."
    )
    return f"{lower}\n\nCloser than the estimate, row by row: {', '.join(closer) or 'nobody'}."
