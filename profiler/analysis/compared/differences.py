"""What changed between two sweeps, trial by trial."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from profiler.analysis.compared.cells import Cell, cells
from profiler.analysis.compared.keys import KeyValue
from profiler.analysis.compared.order import in_reading_order
from profiler.domain.runs.outcome import Status

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
