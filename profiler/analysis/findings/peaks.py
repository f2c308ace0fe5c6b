"""The categories of each trial's peak, the largest tensors, and the shapes of optimizer steps."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pandas as pd

from profiler.analysis.compared.cells import Cell, records_of
from profiler.analysis.compared.comparison import Section
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import VllmMode

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


_MOST_NEEDED = 400
"""Trials of a section up to which the needs of those that ran out of memory are looked up; more are not drawn."""

_TRAINING = (Phase.SCORE, Phase.REWARD, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
"""The phases of training, in which an engine in sleep mode sleeps."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One trial's peak by category."""

    cell: Cell
    shares: Mapping[Category, int]
    """Bytes, in the order of `Category`; they sum to the cell's peak. Empty categories are left out."""
    needed: Mapping[Category, int] = field(default_factory=dict)
    """Of a trial that ran out of memory, the categories at the highest stored instant with unlimited memory.

    They sum to slightly less than what it needs. Empty if unknown.
    """


@dataclass(frozen=True, kw_only=True)
class PhaseRow:
    """The highest allocated memory of each phase of one trial."""

    cell: Cell
    peaks: Mapping[Phase, int]
    """Of the phases whose peak is known."""
    utilisation_percent: Mapping[Phase, float]
    """Mean share of time in which a kernel ran; of sampled phases."""


@dataclass(frozen=True, kw_only=True)
class VllmPeaks:
    """The two peaks of a trial with vLLM in the process that trains, in memory of the device."""

    cell: Cell
    rollout_bytes: int
    training_bytes: int
    """Of scoring, forward, backward and the optimizer."""
    card_bytes: int


def stacks(section: Section, breakdown: pd.DataFrame, shape_of: ShapeOf) -> tuple[Stack, ...]:
    """Return the stacks of a section, in its order, without trials whose breakdown is unknown."""
    shares = _by_trial(section, breakdown, "category", "bytes")
    ran_out = [cell.trial_id for cell in section.in_order() if cell.status is Status.OOM and cell.trial_id in shares]
    needed = _needed(ran_out, shape_of) if len(shares) <= _MOST_NEEDED else {}
    return tuple(
        Stack(cell=cell, shares=_shares(shares[cell.trial_id]), needed=_shares(needed.get(cell.trial_id, {})))
        for cell in section.in_order()
        if cell.trial_id in shares
    )


def _shares(sizes: Mapping[str, float]) -> dict[Category, int]:
    return {category: int(size) for category in Category if (size := sizes.get(category.value, 0)) > 0}


def _needed(ran_out: Sequence[str], shape_of: ShapeOf) -> dict[str, dict[str, float]]:
    """Return the categories at the highest instant of each trial that ran out of memory, by trial."""
    rows = shape_of(ran_out) if ran_out else pd.DataFrame()
    if rows.empty:
        return {}
    place = ["trial_id", "instant"]
    highest = rows.groupby(place)["bytes"].sum().groupby(level="trial_id").idxmax()
    at_peak = rows[pd.MultiIndex.from_frame(rows[place]).isin(list(highest))]
    found: dict[str, dict[str, float]] = {}
    columns = (at_peak[name].tolist() for name in ("trial_id", "category", "bytes"))
    for trial_id, category, size in zip(*columns, strict=True):
        found.setdefault(str(trial_id), {})[str(category)] = size
    return found


def phase_rows(section: Section, phases: pd.DataFrame) -> tuple[PhaseRow, ...]:
    """Return the phases of each trial of a section, in its order, without trials whose phases are unknown."""
    peaks = _by_trial(section, phases, "phase", "peak_allocated_bytes")
    busy = _by_trial(section, phases, "phase", "mean_utilisation_percent")
    return tuple(
        PhaseRow(
            cell=cell,
            peaks={phase: int(size) for phase, size in _of_phases(peaks[cell.trial_id])},
            utilisation_percent=dict(_of_phases(busy.get(cell.trial_id, {}))),
        )
        for cell in section.in_order()
        if cell.trial_id in peaks
    )


def engine_peaks(section: Section, phases: pd.DataFrame) -> tuple[VllmPeaks, ...]:
    """Return the two peaks of the trials of a section that run vLLM on the GPU that trains, in its order.

    Memory of the device in a phase is what torch's allocator holds at most, and what a card has beyond it (CUDA's
    context and memory of libraries).
    """
    cells = [cell for cell in section.in_order() if _has_engine(cell)]
    reserved = _by_trial(section, phases, "phase", "peak_reserved_bytes") if cells else {}
    found = (_vllm_peaks(cell, reserved.get(cell.trial_id, {})) for cell in cells)
    return tuple(peaks for peaks in found if peaks is not None)


def _has_engine(cell: Cell) -> bool:
    return cell.keys.get("vllm_mode") == VllmMode.COLOCATE.value


def _vllm_peaks(cell: Cell, reserved: Mapping[str, float]) -> VllmPeaks | None:
    training = [int(size) for phase, size in _of_phases(reserved) if phase in _TRAINING]
    device, held, card = cell.peak_device_bytes, cell.peak_reserved_bytes, cell.setting.memory_bytes
    if not training or Phase.ROLLOUT.value not in reserved or device is None or held is None or card is None:
        return None
    beyond = device - held
    return VllmPeaks(
        cell=cell,
        rollout_bytes=int(reserved[Phase.ROLLOUT.value]) + beyond,
        training_bytes=max(training) + beyond,
        card_bytes=card,
    )


def _by_trial(section: Section, frame: pd.DataFrame, key: str, size: str) -> dict[str, dict[str, float]]:
    own = of_section(section, frame)
    known = own[~own[size].isna()]
    found: dict[str, dict[str, float]] = {}
    for trial_id, name, value in zip(*(known[column].tolist() for column in ("trial_id", key, size)), strict=True):
        found.setdefault(str(trial_id), {})[str(name)] = value
    return found


def of_section(section: Section, frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the trials of a section."""
    return frame[frame["trial_id"].isin([cell.trial_id for cell in section.cells.values()])]


def _of_phases(values: Mapping[str, float]) -> Iterable[tuple[Phase, float]]:
    return ((phase, values[phase.value]) for phase in Phase if phase.value in values)


@dataclass(frozen=True, kw_only=True)
class LargestGroup:
    """One of the largest tensors at a trial's peak, or a group of equal ones, with the texts of the table."""

    size_bytes: int
    tensors: int
    category: str
    shape: str
    dtype: str
    what: str
    """Name of the tensor, or of the module that made it; empty if both are unknown."""
    operation: str
    phase: str


@dataclass(frozen=True, kw_only=True)
class LargestRow:
    """The largest tensors of one trial."""

    cell: Cell
    groups: tuple[LargestGroup, ...]
    """Largest first."""


def largest_rows(section: Section, largest: pd.DataFrame) -> tuple[LargestRow, ...]:
    """Return the largest tensors of each trial of a section, in its order, without trials that have none."""
    groups: dict[str, list[LargestGroup]] = {}
    for row in records_of(of_section(section, largest).sort_values(["trial_id", "rank"])):
        groups.setdefault(str(row["trial_id"]), []).append(
            LargestGroup(
                size_bytes=int(str(row["bytes"])),
                tensors=int(str(row["tensors"])),
                category=str(row["category"]),
                shape=str(row["shape"]),
                dtype=str(row["dtype"]),
                what=str(row["name"] or row["module"]),
                operation=str(row["operation"]),
                phase=str(row["phase"]),
            )
        )
    return tuple(
        LargestRow(cell=cell, groups=tuple(groups[cell.trial_id]))
        for cell in section.in_order()
        if cell.trial_id in groups
    )
