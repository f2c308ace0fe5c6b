"""The comparison: methods down, models across, one section per origin, card and set of versions."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from profiler.analysis.compared.cells import Cell, Setting, cells
from profiler.analysis.compared.order import in_reading_order
from profiler.analysis.compared.published import PublishedFigure
from profiler.domain.memory import Origin
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.labels import Naming, naming

_ORIGINS = (*Origin, None)
"""In the order of the sections; None is the CPU."""


@dataclass(frozen=True, kw_only=True)
class Section:
    """The results of one setting, which can be compared with each other."""

    setting: Setting
    naming: Naming
    """The keys that labels name."""
    rows: tuple[str, ...]
    """Labels of the methods."""
    models: tuple[str, ...]
    """In ascending size."""
    cells: Mapping[tuple[str, str], Cell]
    """By (row, model); a place can be empty."""

    @property
    def has_estimates(self) -> bool:
        """Whether any cell has an estimate."""
        return any(cell.estimated_bytes is not None for cell in self.cells.values())

    @property
    def published(self) -> tuple[PublishedFigure, ...]:
        """The published figures of the section's trials."""
        return tuple(cell.published for cell in self.in_order() if cell.published is not None)

    @property
    def unanswered(self) -> tuple[Cell, ...]:
        """The cells whose trial ended without an answer."""
        return tuple(cell for cell in self.in_order() if cell.status not in (Status.OK, Status.OOM))

    def in_order(self) -> Iterable[Cell]:
        """Yield the cells, model by model, each from the first row to the last."""
        places = ((row, model) for model in self.models for row in self.rows)
        return (self.cells[place] for place in places if place in self.cells)


def compare(runs: pd.DataFrame, published: Iterable[PublishedFigure] = ()) -> tuple[Section, ...]:
    """Return the `runs` table as sections: the measured, the emulated, the simulated, then those of the CPU."""
    if runs.empty:
        return ()
    found = cells(in_reading_order(runs), published)
    named = naming([cell.keys for cell in found])
    by_setting: dict[Setting, list[Cell]] = {}
    for cell in found:
        by_setting.setdefault(cell.setting, []).append(cell)
    settings = sorted(by_setting, key=_section_rank)
    return tuple(_section(setting, named, _with_different_labels(by_setting[setting], named)) for setting in settings)


def only(section: Section, trial_ids: Iterable[str]) -> Section | None:
    """Return the part of a section with these trials; None if it has none of them."""
    wanted = frozenset(trial_ids)
    kept = {place: cell for place, cell in section.cells.items() if cell.trial_id in wanted}
    if not kept:
        return None
    rows, models = ({place[side] for place in kept} for side in (0, 1))
    return replace(
        section,
        rows=tuple(row for row in section.rows if row in rows),
        models=tuple(model for model in section.models if model in models),
        cells=kept,
    )


def _section_rank(setting: Setting) -> tuple[int, str, int, tuple[tuple[str, str], ...]]:
    return (_ORIGINS.index(setting.origin), setting.card or "", setting.memory_bytes or 0, setting.versions)


def _section(setting: Setting, named: Naming, found: Sequence[Cell]) -> Section:
    sizes = {cell.model: cell.parameters for cell in found}
    return Section(
        setting=setting,
        naming=named,
        rows=tuple(dict.fromkeys(cell.label for cell in found)),
        models=tuple(sorted(sizes, key=lambda model: (sizes[model] is None, sizes[model] or 0, model))),
        cells={(cell.label, cell.model): cell for cell in found},
    )


def _with_different_labels(found: Sequence[Cell], named: Naming) -> list[Cell]:
    """Return the cells with labels that tell any two of the same model apart."""
    # The setting says backend and card, unless a capped card is as large as a whole one.
    spelled_out = [
        replace(cell, label=named.label(cell.keys)) if repeated else cell for cell, repeated in _repeated(found)
    ]
    return [
        # Rows of the same keys: somebody edited an id.
        replace(cell, label=f"{cell.label}, {cell.trial_id[:8]}") if repeated else cell
        for cell, repeated in _repeated(spelled_out)
    ]


def _repeated(found: Sequence[Cell]) -> list[tuple[Cell, bool]]:
    """Return each cell, and whether another one has the same label and model."""
    places = Counter((cell.label, cell.model) for cell in found)
    return [(cell, places[cell.label, cell.model] > 1) for cell in found]
