"""The estimates of a grid as one table and as JSON."""

from collections import Counter
from collections.abc import Sequence

from profiler.analytical.explanation.cards import Fit
from profiler.analytical.explanation.grid import EstimatedGrid, EstimatedPoint
from profiler.config.options.reading import show
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.memory import Origin
from profiler.rendering.document import Align, Block, Column, Document, Section, Table, paragraphs
from profiler.rendering.estimate.table import CONTEXT_NOTE, RESERVED_NOTE
from profiler.rendering.layouts.json_text import json_text
from profiler.rendering.layouts.plain_text import plain_text
from profiler.rendering.memory_words import gib_number

_TITLE = "Estimated peaks, GiB (2^30 bytes)."
_NUMBERS = ("allocated", "reserved", "rule")
_TEXTS = ("peak in", "verdict")


def grid_table(grid: EstimatedGrid) -> str:
    """Return one row per trial: the keys that vary, its peaks, the phase of the peak, the verdict for its card."""
    numbers = [*_NUMBERS, *(key for key in grid.keys if _is_count(grid, key))]
    columns = [
        Column(title=title, align=Align.RIGHT if title in numbers else Align.LEFT)
        for title in (*grid.keys, *_NUMBERS, *_TEXTS)
    ]
    blocks: list[Block] = [
        paragraphs(_TITLE),
        Section("", [Table(columns, [_cells(point, grid.keys) for point in grid.points])]),
        paragraphs(f"{_summary(grid)} {RESERVED_NOTE} {CONTEXT_NOTE}"),
    ]
    return plain_text(Document(title=_TITLE, blocks=blocks))


def grid_json(grid: EstimatedGrid) -> str:
    """Return one object: the keys that all trials share, and per trial its other keys and its peaks in bytes."""
    trials = [spec_to_mapping(point.spec) for point in grid.points]
    first = trials[0]
    common = {key: value for key, value in first.items() if all(trial[key] == value for trial in trials)}
    points = [
        {
            "trial": {key: value for key, value in trial.items() if key not in common},
            "peak_allocated_bytes": point.peak_allocated_bytes,
            "peak_reserved_bytes": point.peak_reserved_bytes,
            "peak_rule_bytes": point.peak_rule_bytes,
            "peak_phase": point.peak_phase.value,
            "verdict": point.fit.value if point.fit else None,
        }
        for trial, point in zip(trials, grid.points, strict=True)
    ]
    return json_text({"origin": Origin.ESTIMATED.value, "trial": common, "points": points})


def _cells(point: EstimatedPoint, keys: Sequence[str]) -> list[str]:
    return [
        *(show(getattr(point.spec, key)) for key in keys),
        gib_number(point.peak_allocated_bytes),
        gib_number(point.peak_reserved_bytes),
        gib_number(point.peak_rule_bytes),
        point.peak_phase.value,
        point.fit.value if point.fit else "",
    ]


def _is_count(grid: EstimatedGrid, key: str) -> bool:
    return isinstance(getattr(grid.points[0].spec, key), int | float)


def _summary(grid: EstimatedGrid) -> str:
    """Return the number of trials per verdict, and the card if all have the same."""
    counts = Counter(point.fit for point in grid.points)
    verdicts = "".join(f"; {fit.value}: {counts[fit]}" for fit in Fit if counts[fit])
    cards = {point.spec.gpu for point in grid.points}
    card = f" on {next(iter(cards))}" if len(cards) == 1 and None not in cards else ""
    return f"{len(grid.points):,} trials{card}{verdicts}."
