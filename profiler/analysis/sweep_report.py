"""Everything that is shown of a sweep, computed once, with its commands: pages and figures only lay it out."""

import re
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import pandas as pd

from profiler.analysis.compared.axes import Curve, Matrix, Surface, curves, matrix, surfaces
from profiler.analysis.compared.cells import Cell, KeyValue, records_of, trial_keys
from profiler.analysis.compared.comparison import Section, compare, only
from profiler.analysis.compared.published import PublishedFigure
from profiler.analysis.errors import Accuracy, Threshold, accuracies, pairs_among, thresholds
from profiler.analysis.findings.answers import (
    MOST_SURFACES,
    Answers,
    CardLimit,
    CardTable,
    answers,
    by_card,
    card_limits,
)
from profiler.analysis.findings.peaks import (
    LargestRow,
    PhaseRow,
    Shape,
    Stack,
    VllmPeaks,
    engine_peaks,
    largest_rows,
    phase_rows,
    shapes,
    stacks,
)
from profiler.analysis.times.durations import GpuTime, gpu_time_of
from profiler.domain.memory import Origin
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import SPEC_KEYS, key_named

MOST_WITH_DETAILS = 2_000
"""Number of trials up to which a report has the largest tensors and the command of each; parquet has them for all."""


class StoredTables(Protocol):
    """The tables of a sweep; columns as `profiler.storage.tables.schema` documents them."""

    @property
    def runs(self) -> pd.DataFrame:
        """One row per trial."""

    @property
    def phases(self) -> pd.DataFrame:
        """One row per trial and phase."""

    @property
    def breakdown(self) -> pd.DataFrame:
        """One row per trial and category."""

    @property
    def largest(self) -> pd.DataFrame:
        """One row per trial and group of tensors."""

    def shape_of(self, trial_ids: Collection[str], /) -> pd.DataFrame:
        """Return one row per instant and category of these trials."""

    @property
    def question(self) -> str:
        """What the grid asks; empty if unknown."""

    @property
    def command(self) -> str:
        """The command that repeats the sweep; empty if unknown."""


@dataclass(frozen=True, kw_only=True)
class SectionReport:
    """Everything that is shown of one section."""

    section: Section
    matrix: Matrix
    accuracies: tuple[Accuracy, ...]
    """Of the closed form and of the rule of thumb; without one that no trial allows to compute."""
    answers: Answers
    curves: tuple[Curve, ...]
    surfaces: tuple[Surface, ...]
    card_limits: tuple[tuple[CardLimit, ...], ...]
    """The limits of each of the first `MOST_SURFACES` surfaces."""
    stacks: tuple[Stack, ...]
    phases: tuple[PhaseRow, ...]
    engines: tuple[VllmPeaks, ...]
    """The two peaks of trials with vLLM."""
    largest: tuple[LargestRow, ...]
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """Everything that is shown of a sweep."""

    grid: str
    question: str
    """What the grid asks; empty if unknown."""
    command: str
    """The command that repeats the sweep."""
    sections: tuple[SectionReport, ...]
    cards: CardTable | None
    """The headroom of each card; None unless there are two cards."""
    thresholds: tuple[Threshold, ...]
    """How far the simulation may be from a real card, and is; empty if nothing is simulated."""
    gpu_time: GpuTime | None
    """None if no trial used a GPU."""
    trial_commands: Mapping[str, str] | None
    """The command that repeats a trial, by trial id; None if there are too many trials."""


def sweep_report(tables: StoredTables, published: Iterable[PublishedFigure] = (), *, grid: str) -> SweepReport:
    """Compute everything that is shown of a sweep.

    Args:
        tables: The stored tables.
        published: Published figures to compare with.
        grid: Name of the results, as a rule that of the grid.
    """
    sections = compare(tables.runs, published)
    has_details = len(tables.runs) <= MOST_WITH_DETAILS
    simulated = any(section.setting.origin is Origin.SIMULATED for section in sections)
    return SweepReport(
        grid=grid,
        question=tables.question,
        command=tables.command or sweep_command(tables.runs, grid=grid),
        sections=tuple(
            _section_report(
                section,
                stacks=stacks(section, tables.breakdown, tables.shape_of),
                phases=phase_rows(section, tables.phases),
                engines=engine_peaks(section, tables.phases),
                largest=largest_rows(section, tables.largest) if has_details else (),
                shapes=shapes(section, tables.shape_of),
            )
            for section in sections
        ),
        cards=by_card(sections),
        thresholds=thresholds(pairs_among(_cells(sections))) if simulated else (),
        gpu_time=gpu_time_of(tables.runs),
        trial_commands=repeat_commands(tables.runs) if has_details else None,
    )


def _cells(sections: Iterable[Section]) -> Iterable[Cell]:
    return (cell for section in sections for cell in section.cells.values())


def only_trials(report: SweepReport, trial_ids: Collection[str]) -> SweepReport:
    """Return the report with these trials in its sections and cards; labels, thresholds and GPU time stay."""
    wanted = frozenset(trial_ids)
    parts = [(part, section) for part in report.sections if (section := only(part.section, wanted))]
    return replace(
        report,
        sections=tuple(
            _section_report(
                section,
                stacks=tuple(each for each in part.stacks if each.cell.trial_id in wanted),
                phases=tuple(each for each in part.phases if each.cell.trial_id in wanted),
                engines=tuple(each for each in part.engines if each.cell.trial_id in wanted),
                largest=tuple(each for each in part.largest if each.cell.trial_id in wanted),
                shapes=tuple(each for each in part.shapes if each.cell.trial_id in wanted),
            )
            for part, section in parts
        ),
        cards=by_card(section for _, section in parts),
    )


def _section_report(
    section: Section,
    *,
    stacks: tuple[Stack, ...],
    phases: tuple[PhaseRow, ...],
    engines: tuple[VllmPeaks, ...],
    largest: tuple[LargestRow, ...],
    shapes: tuple[Shape, ...],
) -> SectionReport:
    along, over = curves(section), surfaces(section)
    table = matrix(section, over)
    return SectionReport(
        section=section,
        matrix=table,
        accuracies=accuracies(section.in_order()),
        answers=answers(section, table=table, curves=along, surfaces=over),
        curves=along,
        surfaces=over,
        card_limits=tuple(card_limits(section, surface) for surface in over[:MOST_SURFACES]),
        stacks=stacks,
        phases=phases,
        engines=engines,
        largest=largest,
        shapes=shapes,
    )


_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")


def sweep_command(runs: pd.DataFrame, *, grid: str) -> str:
    """Return the command of a sweep that stored none; `grid` is used if the trials are of several grids."""
    grids = sorted({str(name) for name in runs["grid"]})
    return f"python -m profiler.sweep +grid={grids[0] if len(grids) == 1 else grid}"


def repeat_commands(runs: pd.DataFrame) -> Mapping[str, str]:
    """Return the command that repeats each trial of the `runs` table.

    It sets every key of the trial's recipe, so one point of the grid is left.
    """
    columns = [name for name in ("trial_id", "grid", *SPEC_KEYS) if name in runs]
    rows = records_of(runs[columns])
    return {str(row["trial_id"]): _command(str(row["grid"]), trial_keys(row)) for row in rows}


def _command(grid: str, values: Mapping[str, KeyValue]) -> str:
    recipe = Recipe(str(values["recipe"]))
    words = [f"{key}={_value(value)}" for key, value in values.items() if _matters(key, value, recipe)]
    return shlex.join(["python", "-m", "profiler.sweep", f"+grid={grid}", *words])


def _matters(key: str, value: KeyValue, recipe: Recipe) -> bool:
    # Without an adapter its keys have no meaning.
    return recipe in key_named(key).recipes and not (key.startswith("lora_") and value is None)


def _value(value: KeyValue) -> str:
    """Return a value as the command line takes it: ``null``, ``true``, ``[q_proj,v_proj]``, or text."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple) and len(value) > 1:
        return f"[{','.join(value)}]"
    text = value[0] if isinstance(value, tuple) else str(value)
    return text if _PLAIN.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
