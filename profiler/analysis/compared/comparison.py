"""The comparison of methods and models, as a tidy frame too, and what changed between two sweeps."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from profiler.analysis.compared.cells import Cell, KeyValue, Setting, cells, in_reading_order
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
    spelled_out = [replace(cell, label=named.label(cell.keys)) if twice else cell for cell, twice in _repeated(found)]
    return [
        # Rows of the same keys: somebody edited an id.
        replace(cell, label=f"{cell.label}, {cell.trial_id[:8]}") if repeated else cell
        for cell, repeated in _repeated(spelled_out)
    ]


def _repeated(found: Sequence[Cell]) -> list[tuple[Cell, bool]]:
    """Return each cell, and whether another one has the same label and model."""
    places = Counter((cell.label, cell.model) for cell in found)
    return [(cell, places[cell.label, cell.model] > 1) for cell in found]


_COLUMNS: Mapping[str, tuple[str, Callable[[Cell], object]]] = {
    "origin": ("string", lambda cell: cell.setting.origin),
    "card": ("string", lambda cell: cell.setting.card),
    "method": ("string", lambda cell: cell.label),
    "model": ("string", lambda cell: cell.model),
    "status": ("string", lambda cell: cell.status.value),
    "result_bytes": ("Int64", lambda cell: cell.result_bytes),
    "missing_bytes": ("Int64", lambda cell: cell.missing_bytes),
    "estimated_bytes": ("Int64", lambda cell: cell.estimated_bytes),
    "estimate_error_ratio": ("Float64", lambda cell: cell.estimate_error_ratio),
    "published": ("string", lambda cell: cell.published.printed if cell.published else None),
}
"""Columns of the tidy frame: their type, and what a cell has in them."""


def comparison_frame(sections: Iterable[Section]) -> pd.DataFrame:
    """Return one row per cell: its place, result, estimate and published figure. Null: unknown."""
    rows = [[of(cell) for _, of in _COLUMNS.values()] for section in sections for cell in section.in_order()]
    return pd.DataFrame(rows, columns=list(_COLUMNS)).astype({name: kind for name, (kind, _) in _COLUMNS.items()})


NOISE_RATIO = 0.01
"""Smaller changes count as noise. Simulated peaks are equal to the byte; for measured ones the value is ASSUMED."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One trial in both sweeps."""

    before: Cell
    after: Cell

    @property
    def change_ratio(self) -> float | None:
        """(after - before) / before of the results; None if one is unknown."""
        was, now = self.before.result_bytes, self.after.result_bytes
        return None if not was or now is None else (now - was) / was

    @property
    def verdict_changed(self) -> bool:
        """Whether the trials ended with different statuses."""
        return self.before.status is not self.after.status

    @property
    def beyond_noise(self) -> bool:
        """Whether the verdict changed, or the result by more than `NOISE_RATIO`."""
        change = self.change_ratio
        return self.verdict_changed or (change is not None and abs(change) > NOISE_RATIO)

    def grew(self, most_ratio: float) -> bool:
        """Return whether the result grew by more than `most_ratio`, or no longer fits, or has no answer any more."""
        change = self.change_ratio
        if self.verdict_changed and self.before.status is Status.OK:
            return True
        return change is not None and change > most_ratio


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every trial of two sweeps."""

    both: tuple[Difference, ...]
    """Trials in both, in reading order."""
    only_before: int
    only_after: int


def compare_sweeps(before: pd.DataFrame, after: pd.DataFrame) -> Comparison:
    """Compare the `runs` tables of two sweeps; trials match if they run the same, wherever they run.

    A trial that is in one sweep several times (on several cards, with several versions) is compared with the trial of
    the same card if the other sweep has one, else with all of them.
    """
    first, second = _by_configuration(before), _by_configuration(after)
    both = [
        Difference(before=one, after=other)
        for key, ones in first.items()
        for one in ones
        for other in _partners(one, second.get(key, ()))
    ]
    return Comparison(
        both=tuple(both),
        only_before=len(before) - len({each.before.trial_id for each in both}),
        only_after=len(after) - len({each.after.trial_id for each in both}),
    )


def _by_configuration(runs: pd.DataFrame) -> dict[tuple[KeyValue, ...], list[Cell]]:
    found: dict[tuple[KeyValue, ...], list[Cell]] = {}
    for cell in () if runs.empty else cells(in_reading_order(runs)):
        found.setdefault(cell.configuration, []).append(cell)
    return found


def _partners(cell: Cell, others: Sequence[Cell]) -> Sequence[Cell]:
    same_card = [other for other in others if other.setting.card == cell.setting.card]
    return same_card or others
