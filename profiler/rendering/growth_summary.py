"""Whether peaks grew between two sweeps, in Markdown for the page of a job."""

from collections.abc import Sequence

from profiler.analysis.differences import Comparison, Difference
from profiler.domain.outcome import Status
from profiler.rendering.markdown_table import Align, escaped, markdown_table
from profiler.rendering.wording import result_text, short_card, short_model, signed_percent

_MOST_ROWS = 50
"""Most trials in the table; all of those that grew come first."""


def growth_summary(
    comparison: Comparison, grown: Sequence[Difference], *, most_ratio: float, names: tuple[str, str]
) -> str:
    """Return the verdict, and one row per trial, those that grew first.

    Args:
        comparison: All trials.
        grown: Those of them whose peak grew by more than allowed.
        most_ratio: Allowed increase.
        names: Of the two sweeps.
    """
    limit = f"{100 * most_ratio:g} %"
    count = len(comparison.both)
    verdict = f"{len(grown)} of {count} trials grew by more than {limit}" if grown else f"No trial of {count} grew"
    lines = [f"### GPU memory: {verdict}{'' if grown else f' by more than {limit}'}", ""]
    others = [each for each in comparison.both if each not in grown]
    shown = [*grown, *others][: max(_MOST_ROWS, len(grown))]
    if shown:
        header = ["trial", *(escaped(name) for name in names), "change"]
        rows = [_row(each, is_grown=each in grown) for each in shown]
        lines += [markdown_table(header, rows, align=Align.RIGHT), ""]
    lines.append("GiB of peak allocated memory; OOM n: what it needs.")
    if len(shown) < count:
        lines.append(f"{count - len(shown)} more trials did not grow.")
    for name, alone in zip(names, (comparison.only_before, comparison.only_after), strict=True):
        if alone:
            lines.append(f"Only in {escaped(name)}: {alone} trials.")
    return "\n".join(lines) + "\n"


def _row(each: Difference, *, is_grown: bool) -> list[str]:
    ratio = each.change_ratio
    change = "" if ratio is None else signed_percent(ratio)
    if each.verdict_changed:
        words = {Status.OK: "fits", Status.OOM: "OOM"}
        was, now = (words.get(cell.status, cell.status.value) for cell in (each.before, each.after))
        change = f"{change} {was} to {now}".strip()
    name = f"{each.after.label}, {short_model(each.after.model)}, {short_card(each.after.setting.card or 'CPU')}"
    cells = [escaped(text) for text in (name, result_text(each.before), result_text(each.after), change)]
    return [f"**{cell}**" if cell and is_grown else cell for cell in cells]
