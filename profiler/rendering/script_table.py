"""The run of a script as text for a terminal."""

from collections.abc import Sequence
from textwrap import fill

from profiler.analysis.scripts import RunLines
from profiler.rendering.script_words import UNIT_NOTE, held_rows, held_title, run_sentences, run_title, short_gib

_WIDTH = 80


def script_table(run: RunLines) -> str:
    """Return the table of a run's phases, and what there is to say of it."""
    lines = [run_title(run)]
    if run.phases:
        rows: list[tuple[str, ...]] = [("phase", "allocated", "reserved")]
        rows += [
            (line.phase.value, short_gib(run, line.allocated_bytes), short_gib(run, line.reserved_bytes))
            for line in run.phases
        ]
        lines += _columns(rows)
        lines.append(f"{UNIT_NOTE}.")
    lines += [fill(sentence, _WIDTH, break_long_words=False, break_on_hyphens=False) for sentence in run_sentences(run)]
    if run.largest:
        lines.append(f"{held_title(run)}:")
        lines += _columns([("GiB", "tensors", "what", "line"), *held_rows(run)], left_from=2)
    return "\n".join(lines) + "\n"


def _columns(rows: Sequence[Sequence[str]], *, left_from: int | None = None) -> list[str]:
    """Return the rows as lines. Numbers are right-aligned; the first column, or those from `left_from` on, are not."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    found = []
    for row in rows:
        cells = []
        for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
            is_left = place == 0 if left_from is None else place >= left_from
            cells.append(cell.ljust(width) if is_left else cell.rjust(width))
        found.append("  ".join(cells).rstrip())
    return found
