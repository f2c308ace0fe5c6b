"""Whether peaks grew between two sweeps, in Markdown for the page of a job."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from profiler.analysis.differences import Comparison, Difference
from profiler.domain.outcome import Status, Versions
from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import escaped, markdown_table
from profiler.rendering.wording import result_text, short_card, short_model, signed_percent

_MOST_ROWS = 50
"""Most trials in the table; all of those that grew come first."""


def versions_table(versions: Mapping[str, Versions]) -> str:
    """Return the versions of each environment, those that differ in bold.

    Args:
        versions: By the name of the environment.
    """
    packages = [asdict(each) for each in versions.values()]
    rows = []
    for package in packages[0]:
        found = [each[package] for each in packages]
        if any(found):
            mark = "**" if len(set(found)) > 1 else ""
            rows.append([package, *(f"{mark}{escaped(version or 'none')}{mark}" for version in found)])
    table = markdown_table(["package", *map(escaped, versions)], rows, align=Align.RIGHT)
    if all(each == packages[0] for each in packages):
        table += "\n\nAll versions are equal, so that each trial ran once and is compared with itself."
    return f"{table}\n"


def growth_summary(
    comparison: Comparison, grown: Sequence[Difference], *, most_ratio: float, names: Sequence[str]
) -> str:
    """Return the verdict, and one row per trial, those that grew first.

    Args:
        comparison: All trials.
        grown: Those of them whose peak grew by more than allowed.
        most_ratio: Allowed increase.
        names: Of the two sweeps.
    """
    count = len(comparison.both)
    lost = [each for each in grown if each.after.result_bytes is None and each.before.result_bytes is not None]
    verdict = f"{len(grown) - len(lost)} of {count} trials grew by more than {100 * most_ratio:g} %"
    if lost:
        verdict += f", and {len(lost)} have no figure in {escaped(names[1])}"
    lines = [f"### GPU memory: {verdict}", ""]
    others = [each for each in comparison.both if each not in grown]
    shown = [*grown, *others][: max(_MOST_ROWS, len(grown))]
    if shown:
        header = ["trial", *(escaped(name) for name in names), "change"]
        rows = [_row(each, is_grown=each in grown) for each in shown]
        lines += [markdown_table(header, rows, align=Align.RIGHT), ""]
    lines.append("GiB of peak allocated memory; OOM n: what it needs.")
    if len(shown) < count:
        lines.append(f"{count - len(shown)} more trials did not grow.")
    for reason in _reasons(lost, names[1]):
        lines += ["", reason]
    for name, alone in zip(names, (comparison.only_before, comparison.only_after), strict=True):
        if alone:
            lines.append(f"Only in {escaped(name)}: {alone} trials.")
    return "\n".join(lines) + "\n"


def _reasons(lost: Sequence[Difference], name: str) -> list[str]:
    """Return why trials have no figure in the second sweep, one line per reason."""
    labels: dict[str, list[str]] = {}
    for each in lost:
        labels.setdefault(each.after.message or each.after.status.value, []).append(each.after.label)
    return [
        f"No figure in {escaped(name)} of {len(found)} trials ({escaped('; '.join(found))}): {escaped(reason)}"
        for reason, found in labels.items()
    ]


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
