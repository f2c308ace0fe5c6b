"""The shapes of optimizer steps that are shown: every method of one model."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import pandas as pd

from profiler.analysis.compared.cells import Cell
from profiler.analysis.compared.comparison import Section
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.outcome import Status

MOST_SHAPES = 6


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The optimizer step of one trial: the phase and the size of each category at every instant."""

    cell: Cell
    phases: tuple[Phase, ...]
    """Of each instant."""
    sizes_bytes: Mapping[Category, tuple[int, ...]]
    """At each instant; empty categories are left out."""


ShapeOf: TypeAlias = Callable[[Collection[str]], pd.DataFrame]
"""Returns the rows of the `shape` table of some trials."""


def shapes(section: Section, shape_of: ShapeOf) -> tuple[Shape, ...]:
    """Return one shape per method, of the largest model that fits with every method, else of the smallest model."""
    if not section.models:
        return ()
    chosen = _model(section)
    cells = [cell for row in section.rows if (cell := section.cells.get((row, chosen)))]
    known = shape_of([cell.trial_id for cell in cells[:MOST_SHAPES]])
    by_trial = {str(trial_id): rows for trial_id, rows in known.groupby("trial_id")}
    return tuple(_shape(cell, by_trial[cell.trial_id]) for cell in cells if cell.trial_id in by_trial)


def _model(section: Section) -> str:
    fitting = [
        model
        for model in section.models
        if all((cell := section.cells.get((row, model))) and cell.status is Status.OK for row in section.rows)
    ]
    return fitting[-1] if fitting else section.models[0]


def _shape(cell: Cell, rows: pd.DataFrame) -> Shape:
    table = rows.pivot_table(index="instant", columns="category", values="bytes", aggfunc="sum", fill_value=0)
    phases = rows.drop_duplicates("instant").set_index("instant")["phase"]
    present = [category for category in Category if category.value in table.columns]
    return Shape(
        cell=cell,
        phases=tuple(Phase(str(phases[instant])) for instant in table.index),
        sizes_bytes={category: tuple(int(size) for size in table[category.value]) for category in present},
    )
