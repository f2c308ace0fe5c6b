"""What the peak of each trial is made of: its categories, and the highest memory of each phase."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.domain.memory import Category, Phase


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One trial's peak, category on category."""

    cell: Cell
    shares: Mapping[Category, int]
    """Bytes, in the order of `Category`; they sum to the cell's peak. Categories of no bytes are left out."""


@dataclass(frozen=True, kw_only=True)
class PhaseRow:
    """The highest allocated memory of each phase of one trial."""

    cell: Cell
    peaks: Mapping[Phase, int]
    """Only the phases that ran and whose peak is known."""
    utilisation_percent: Mapping[Phase, float]
    """Mean share of time in which a kernel ran; only of phases that were sampled."""


def stacks(section: Section, breakdown: pd.DataFrame) -> tuple[Stack, ...]:
    """The stacks of a section, in its order; without the trials whose breakdown is not known."""
    shares = _by_trial(breakdown, "category", "bytes")
    return tuple(
        Stack(
            cell=cell,
            shares={
                category: int(size)
                for category in Category
                if (size := shares[cell.trial_id].get(category.value, 0)) > 0
            },
        )
        for cell in section.in_order()
        if cell.trial_id in shares
    )


def phase_rows(section: Section, phases: pd.DataFrame) -> tuple[PhaseRow, ...]:
    """The phases of each trial of a section, in its order; without the trials whose phases are not known."""
    peaks = _by_trial(phases, "phase", "peak_allocated_bytes")
    busy = _by_trial(phases, "phase", "mean_utilisation_percent")
    return tuple(
        PhaseRow(
            cell=cell,
            peaks={phase: int(size) for phase, size in _of_phases(peaks[cell.trial_id])},
            utilisation_percent=dict(_of_phases(busy.get(cell.trial_id, {}))),
        )
        for cell in section.in_order()
        if cell.trial_id in peaks
    )


def _by_trial(frame: pd.DataFrame, key: str, size: str) -> dict[str, dict[str, float]]:
    known = frame[~frame[size].isna()]
    found: dict[str, dict[str, float]] = {}
    for trial_id, name, value in zip(known["trial_id"], known[key], known[size], strict=True):
        found.setdefault(str(trial_id), {})[str(name)] = value
    return found


def _of_phases(values: Mapping[str, float]) -> Iterable[tuple[Phase, float]]:
    return ((phase, values[phase.value]) for phase in Phase if phase.value in values)


@dataclass(frozen=True, kw_only=True)
class LargestGroup:
    """One of the largest tensors, or groups of tensors alike, at a trial's peak. Texts are as the table has them."""

    size_bytes: int
    tensors: int
    category: str
    shape: str
    dtype: str
    what: str
    """Its name, or the module that made it; empty where neither is known."""
    operation: str
    phase: str


@dataclass(frozen=True, kw_only=True)
class LargestRow:
    """The largest tensors of one trial."""

    cell: Cell
    groups: tuple[LargestGroup, ...]
    """Largest first."""


def largest_rows(section: Section, largest: pd.DataFrame) -> tuple[LargestRow, ...]:
    """The largest tensors of each trial of a section, in its order; without the trials where they are not known."""
    groups: dict[str, list[LargestGroup]] = {}
    for row in largest.sort_values(["trial_id", "rank"]).itertuples():
        groups.setdefault(str(row.trial_id), []).append(
            LargestGroup(
                size_bytes=int(str(row.bytes)),
                tensors=int(str(row.tensors)),
                category=str(row.category),
                shape=str(row.shape),
                dtype=str(row.dtype),
                what=str(row.name or row.module),
                operation=str(row.operation),
                phase=str(row.phase),
            )
        )
    return tuple(
        LargestRow(cell=cell, groups=tuple(groups[cell.trial_id]))
        for cell in section.in_order()
        if cell.trial_id in groups
    )
