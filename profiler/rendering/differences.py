"""The changes between two sweeps, as a document."""

from collections.abc import Sequence

from profiler.analysis.cells import Cell as Trial
from profiler.analysis.cells import Setting
from profiler.analysis.differences import NOISE_RATIO, Comparison, Difference
from profiler.domain.outcome import Status
from profiler.rendering.document import (
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
from profiler.rendering.wording import origin_word, result_text, short_card, short_model, signed_percent, versions_text


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
