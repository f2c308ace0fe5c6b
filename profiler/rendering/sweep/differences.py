"""The changes between two sweeps: for a terminal, and in Markdown for the page of a job."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from profiler.analysis.compared.cells import Cell as Trial
from profiler.analysis.compared.cells import Setting
from profiler.analysis.compared.comparison import NOISE_RATIO, Comparison, Difference
from profiler.domain.runs.outcome import Status, Versions
from profiler.rendering.document import (
    Block,
    Cell,
    Column,
    Document,
    Heading,
    Row,
    Section,
    Table,
    Text,
    Tone,
    Wrap,
    number_columns,
)
from profiler.rendering.layouts.markdown import markdown_part
from profiler.rendering.sweep.words import (
    origin_word,
    result_text,
    short_card,
    short_model,
    signed_percent,
    versions_text,
)

_UNIT_NOTE = "GiB of peak allocated memory; OOM n: what it needs."


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
    text = _change_text(each, "->")
    mark = " *" if each.beyond_noise else "  "
    return Cell(text=text + mark, tone=Tone.WARNING if each.beyond_noise else Tone.NOTE)


def _change_text(each: Difference, becomes: str) -> str:
    """Return the change of the peak, and of the verdict if that is another."""
    text = "" if each.change_ratio is None else signed_percent(each.change_ratio)
    if each.verdict_changed:
        text = f"{text} {_verdict(each.before)} {becomes} {_verdict(each.after)}".strip()
    return text


def _verdict(cell: Trial) -> str:
    return {Status.OK: "fits", Status.OOM: "OOM"}.get(cell.status, cell.status.value)


def _notes(comparison: Comparison, names: Sequence[str]) -> list[str]:
    marked = sum(each.beyond_noise for each in comparison.both)
    lines = [
        f"{len(comparison.both)} trials in both, {marked} with a change (*): another verdict, or more than "
        f"{NOISE_RATIO:.0%}.",
        _UNIT_NOTE,
        *_alone(comparison, names),
    ]
    for name, settings in zip(names, _settings(comparison), strict=True):
        lines += [f"{name}: {line}" for line in settings]
    return lines


def _alone(comparison: Comparison, names: Sequence[str]) -> list[str]:
    """Return how many trials only one of the sweeps has."""
    counts = zip(names, (comparison.only_before, comparison.only_after), strict=True)
    return [f"Only in {name}: {count} trials." for name, count in counts if count]


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
    """Return the versions of each environment in Markdown, those that differ in bold.

    Args:
        versions: By the name of the environment.
    """
    packages = [asdict(each) for each in versions.values()]
    rows: list[Row] = []
    for package in packages[0]:
        found = [each[package] for each in packages]
        if any(found):
            differs = len(set(found)) > 1
            rows.append([package, *(Cell(text=version or "none", strong=differs) for version in found)])
    blocks: list[Block] = [Table(number_columns("package", versions), rows)]
    if all(each == packages[0] for each in packages):
        blocks.append(Text("All versions are equal, so that each trial ran once and is compared with itself."))
    return markdown_part(Document(title="Versions", blocks=blocks))


def growth_summary(
    comparison: Comparison, grown: Sequence[Difference], *, most_ratio: float, names: Sequence[str]
) -> str:
    """Return the verdict in Markdown, and one row per trial, those that grew first.

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
        verdict += f", and {len(lost)} have no figure in {names[1]}"
    others = [each for each in comparison.both if each not in grown]
    shown = [*grown, *others][: max(_MOST_ROWS, len(grown))]
    blocks: list[Block] = [Heading(f"GPU memory: {verdict}")]
    if shown:
        rows = [_growth(each, is_grown=each in grown) for each in shown]
        blocks.append(Table(number_columns("trial", (*names, "change")), rows))
    more = [f"{count - len(shown)} more trials did not grow."] if len(shown) < count else []
    *earlier, last = [[_UNIT_NOTE, *more], *([reason] for reason in _reasons(lost, names[1]))]
    paragraphs = [*earlier, [*last, *_alone(comparison, names)]]
    blocks += [Text(first, lines=lines) for first, *lines in paragraphs]
    return markdown_part(Document(title=verdict, blocks=blocks))


def _reasons(lost: Sequence[Difference], name: str) -> list[str]:
    """Return why trials have no figure in the second sweep, one line per reason."""
    labels: dict[str, list[str]] = {}
    for each in lost:
        labels.setdefault(each.after.message or each.after.status.value, []).append(each.after.label)
    return [
        f"No figure in {name} of {len(found)} trials ({'; '.join(found)}): {reason}" for reason, found in labels.items()
    ]


def _growth(each: Difference, *, is_grown: bool) -> Row:
    change = _change_text(each, "to")
    name = f"{each.after.label}, {short_model(each.after.model)}, {short_card(each.after.setting.card or 'CPU')}"
    texts = (name, result_text(each.before), result_text(each.after), change)
    return [Cell(text=text, strong=is_grown and bool(text)) for text in texts]
