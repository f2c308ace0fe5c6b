"""The peaks of the GPUs of trials on several of them: one line per trial, and a table for the pages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.units import gib_text
from profiler.rendering.document import MOST_ROWS
from profiler.rendering.sweep.words import more_rows, short_model

RankedTrials: TypeAlias = Sequence[tuple[TrialRecord, Sequence[int | None]]]
"""The record of each trial, and the peaks of its ranks; None where a rank has no record or no peak."""

RANKS = "Ranks"
"""Title of the table."""

RANKS_NOTE = "Peak of allocated memory of each GPU, by rank"

_MOST_LINES = 20


@dataclass(frozen=True, kw_only=True)
class RankTable:
    """The peaks of ranks, as the texts of a table."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: str
    """The sentence about rows that are not shown; empty if all are."""


def rank_table(trials: RankedTrials) -> RankTable | None:
    """Return a row per trial with the peak of each rank, in order; None if no trial has records of ranks."""
    if not trials:
        return None
    ranks = max(len(sizes) for _, sizes in trials)
    return RankTable(
        header=("trial", *(f"rank {rank}" for rank in range(ranks))),
        rows=tuple(
            (_name(record), *map(_size, sizes), *[""] * (ranks - len(sizes))) for record, sizes in trials[:MOST_ROWS]
        ),
        more=more_rows(len(trials), "their records are in ranks/"),
    )


def rank_lines(trials: RankedTrials) -> list[str]:
    """Return a line per trial with the peak of allocated memory of each rank, in order; the last counts the others."""
    lines = [f"  {_name(record)}: {', '.join(map(_size, sizes))}" for record, sizes in trials[:_MOST_LINES]]
    if len(trials) > _MOST_LINES:
        lines.append(f"  {len(trials) - _MOST_LINES} more trials have records of ranks.")
    return [f"{RANKS_NOTE}:", *lines] if lines else []


def _name(record: TrialRecord) -> str:
    return f"{short_model(record.spec.model)}, {record.label}"


def _size(size: int | None) -> str:
    return gib_text(size) if size is not None else "no record"
