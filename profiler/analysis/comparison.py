"""The comparison: methods down, models across, one section for each origin, card and set of versions."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from profiler.analysis.cells import Cell, Setting, cells
from profiler.analysis.order import in_reading_order
from profiler.analysis.published import PublishedFigure
from profiler.domain.memory import Origin
from profiler.domain.outcome import Status
from profiler.domain.trial import SHOWN_KEYS

_ORIGINS = (Origin.MEASURED, Origin.SIMULATED, None)
"""In the order of the sections; None is the CPU."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """The part of a comparison whose results may stand side by side."""

    setting: Setting
    rows: tuple[str, ...]
    """Labels of the methods."""
    models: tuple[str, ...]
    """In ascending size."""
    cells: Mapping[tuple[str, str], Cell]
    """By (row, model); not every place need have one."""

    @property
    def has_estimates(self) -> bool:
        """Whether any cell shows an estimate."""
        return any(cell.estimated_bytes is not None for cell in self.cells.values())

    @property
    def published(self) -> tuple[PublishedFigure, ...]:
        """The published figures that stand beside ours."""
        return tuple(cell.published for cell in self.in_order() if cell.published is not None)

    @property
    def unanswered(self) -> tuple[Cell, ...]:
        """The cells whose trial did not end with an answer."""
        return tuple(cell for cell in self.in_order() if cell.status not in (Status.OK, Status.OOM))

    def in_order(self) -> Iterable[Cell]:
        """The cells, model by model, each from the first row to the last."""
        places = ((row, model) for model in self.models for row in self.rows)
        return (self.cells[place] for place in places if place in self.cells)


def compare(runs: pd.DataFrame, published: Iterable[PublishedFigure] = ()) -> tuple[Section, ...]:
    """The `runs` table as sections: the measured, then the simulated, then those of the CPU.

    Two trials never share a place: where a label stands for several configurations, the keys in which they differ
    are added to it.
    """
    if runs.empty:
        return ()
    ordered = in_reading_order(runs)
    found = cells(ordered, published)
    by_setting: dict[Setting, list[Cell]] = {}
    for cell in found:
        by_setting.setdefault(cell.setting, []).append(cell)
    specs = ordered.set_index("trial_id", drop=False)
    settings = sorted(by_setting, key=_section_rank)
    return tuple(_section(setting, _apart(by_setting[setting], specs)) for setting in settings)


def _section_rank(setting: Setting) -> tuple[int, str, int, tuple[tuple[str, str], ...]]:
    return (_ORIGINS.index(setting.origin), setting.card or "", setting.memory_bytes or 0, setting.versions)


def _section(setting: Setting, found: list[Cell]) -> Section:
    sizes = {cell.model: cell.parameters for cell in found}
    return Section(
        setting=setting,
        rows=tuple(dict.fromkeys(cell.label for cell in found)),
        models=tuple(sorted(sizes, key=lambda model: (sizes[model] is None, sizes[model] or 0, model))),
        cells={(cell.label, cell.model): cell for cell in found},
    )


def _apart(found: list[Cell], specs: pd.DataFrame) -> list[Cell]:
    """The cells with labels that tell any two of one model apart."""
    places = Counter((cell.label, cell.model) for cell in found)
    crowded = {label for (label, _), count in places.items() if count > 1}
    if not crowded:
        return found
    told = []
    for label in dict.fromkeys(cell.label for cell in found):
        members = [cell for cell in found if cell.label == label]
        told.extend(_tell_apart(members, specs) if label in crowded else members)
    return told


def _tell_apart(members: list[Cell], specs: pd.DataFrame) -> list[Cell]:
    rows = specs.loc[[cell.trial_id for cell in members], list(SHOWN_KEYS)].astype(str)
    differing = [key for key in SHOWN_KEYS if rows.groupby(specs.loc[rows.index, "model"])[key].nunique().max() > 1]
    values = {(str(trial_id), key): str(value) for key in differing for trial_id, value in rows[key].items()}
    labels = [
        ", ".join([cell.label, *(f"{key}={values[cell.trial_id, key]}" for key in differing)]) for cell in members
    ]
    places = Counter(zip(labels, (cell.model for cell in members), strict=True))
    return [
        # The same configuration twice differs in what is no key of a row, such as an id that was edited by hand.
        replace(cell, label=label if places[(label, cell.model)] == 1 else f"{label}, {cell.trial_id[:8]}")
        for cell, label in zip(members, labels, strict=True)
    ]
