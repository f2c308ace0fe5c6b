"""The changes between two sweeps: for a terminal, and in Markdown for the page of a job."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from profiler.analysis.cells import Cell as Trial
from profiler.analysis.cells import Setting
from profiler.analysis.differences import NOISE_RATIO, Comparison, Difference
from profiler.domain.outcome import Status, Versions
from profiler.rendering.document import (
    Align,
    Block,
    Cell,
    Column,
    Document,
    Row,
    Section,
    Table,
    Text,
    Tone,
    Wrap,
    number_columns,
)
from profiler.rendering.layouts.markdown import escaped, markdown_table
from profiler.rendering.sweep.words import (
    origin_word,
    result_text,
    short_card,
    short_model,
    signed_percent,
    versions_text,
)


def differences_summary(comparison: Comparison, *, names: Sequence[str]) -> Document:
    """Return every trial that is in both sweeps, with the change; `names` are those of the sweeps."""
    notes = [Text(line, Tone.NOTE) for line in _notes(comparison, names)]
    blocks: Sequence[Block] = [_table(comparison, names), Section("", notes)] if comparison.both else notes
    return Document(title="Differences", blocks=blocks)


def _table(comparison: Comparison, names: Sequence[str]) -> Table:
    several = _several_cards(comparison)
    rows: list[Row] = [
        [_name(each, card=several), result_text(each.before), result_text(each.after), _change(each)]
        for each in comparison.both
    ]
    return Table([*number_columns("trial", names), Column(title="change", wrap=Wrap.NEVER)], rows)


def _several_cards(comparison: Comparison) -> bool:
    return len({each.after.setting.card for each in comparison.both}) > 1


def _name(each: Difference, *, card: bool) -> str:
    name = f"{each.after.label}, {short_model(each.after.model)}"
    return f"{name}, {short_card(each.after.setting.card or '')}" if card else name


def _change(each: Difference) -> Cell:
    ratio = each.change_ratio
    text = "" if ratio is None else signed_percent(ratio)
    if each.verdict_changed:
        text = f"{text} {_verdict(each.before)} -> {_verdict(each.after)}".strip()
    mark = " *" if each.beyond_noise else "  "
    return Cell(text=text + mark, tone=Tone.WARNING if each.beyond_noise else Tone.NOTE)


def _verdict(cell: Trial) -> str:
    return {Status.OK: "fits", Status.OOM: "OOM"}.get(cell.status, cell.status.value)


def _notes(comparison: Comparison, names: Sequence[str]) -> list[str]:
    marked = sum(each.beyond_noise for each in comparison.both)
    lines = [
        f"{len(comparison.both)} trials in both, {marked} with a change (*): another verdict, or more than "
        f"{NOISE_RATIO:.0%}.",
        "GiB of peak allocated memory; OOM n: what it needs.",
    ]
    for name, alone in zip(names, (comparison.only_before, comparison.only_after), strict=True):
        if alone:
            lines.append(f"Only in {name}: {alone} trials.")
    for name, settings in zip(names, _settings(comparison), strict=True):
        lines += [f"{name}: {line}" for line in settings]
    return lines


def _settings(comparison: Comparison) -> tuple[list[str], list[str]]:
    """Return one line per setting of each side."""
    before = dict.fromkeys(each.before.setting for each in comparison.both)
    after = dict.fromkeys(each.after.setting for each in comparison.both)
    return [_setting(setting) for setting in before], [_setting(setting) for setting in after]


def _setting(setting: Setting) -> str:
    return f"{origin_word(setting)} on {short_card(setting.card or 'the CPU')}, {versions_text(setting)}"


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
