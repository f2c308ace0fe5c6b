"""The changes between two sweeps, for a terminal of 80 columns or more."""

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler.analysis.cells import Cell, Setting
from profiler.analysis.differences import NOISE_RATIO, Comparison, Difference
from profiler.domain.outcome import Status
from profiler.rendering.wording import origin_word, result_text, short_card, short_model, signed_percent, versions_text


def print_differences(comparison: Comparison, console: Console, *, names: Sequence[str]) -> None:
    """Print every trial that is in both sweeps, with the change; `names` are those of the sweeps."""
    if comparison.both:
        console.print(_table(comparison, names))
        console.print()
    for line in _notes(comparison, names):
        console.print(Text(line, style="dim"))


def _table(comparison: Comparison, names: Sequence[str]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="")
    table.add_column("trial", overflow="fold")
    for name in names:
        table.add_column(Text(name), justify="right", overflow="fold")
    table.add_column("change", justify="right", no_wrap=True)
    several = _several_cards(comparison)
    for each in comparison.both:
        table.add_row(
            Text(_name(each, card=several)),
            Text(result_text(each.before)),
            Text(result_text(each.after)),
            _change(each),
        )
    return table


def _several_cards(comparison: Comparison) -> bool:
    return len({each.after.setting.card for each in comparison.both}) > 1


def _name(each: Difference, *, card: bool) -> str:
    name = f"{each.after.label}, {short_model(each.after.model)}"
    return f"{name}, {short_card(each.after.setting.card or '')}" if card else name


def _change(each: Difference) -> Text:
    ratio = each.change_ratio
    text = "" if ratio is None else signed_percent(ratio)
    if each.verdict_changed:
        text = f"{text} {_verdict(each.before)} -> {_verdict(each.after)}".strip()
    mark = " *" if each.beyond_noise else "  "
    return Text(text + mark, style="bold yellow" if each.beyond_noise else "dim")


def _verdict(cell: Cell) -> str:
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
