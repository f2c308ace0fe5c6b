"""Two sweeps side by side: what changed, trial by trial."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from profiler.analysis.cells import Cell, cells
from profiler.analysis.order import in_reading_order
from profiler.domain.trial import WORKLOAD_KEYS

NOISE_RATIO = 0.01
"""Changes up to this are not told apart from noise. A simulated peak repeats to the byte; ASSUMED of measured ones."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One trial in both sweeps."""

    before: Cell
    after: Cell

    @property
    def change_ratio(self) -> float | None:
        """(after - before) / before of the results; None where one is not known."""
        was, now = self.before.result_bytes, self.after.result_bytes
        return None if not was or now is None else (now - was) / was

    @property
    def verdict_changed(self) -> bool:
        """Whether the trials ended otherwise."""
        return self.before.status is not self.after.status

    @property
    def beyond_noise(self) -> bool:
        """Whether there is something to look at."""
        change = self.change_ratio
        return self.verdict_changed or (change is not None and abs(change) > NOISE_RATIO)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every trial of two sweeps."""

    both: tuple[Difference, ...]
    """Those that are in both, in reading order."""
    only_before: int
    only_after: int


def compare_sweeps(before: pd.DataFrame, after: pd.DataFrame) -> Comparison:
    """The `runs` tables of two sweeps, by what makes trials the same.

    A trial that is in one sweep several times (on several cards, under several versions) is compared with the trial of
    the same card where the other sweep has one, else with all of them.
    """
    first, second = _by_spec(before), _by_spec(after)
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


def _by_spec(runs: pd.DataFrame) -> dict[tuple[object, ...], list[Cell]]:
    if runs.empty:
        return {}
    ordered = in_reading_order(runs)
    found: dict[tuple[object, ...], list[Cell]] = {}
    keys = ordered[list(WORKLOAD_KEYS)].astype(str).itertuples(index=False, name=None)
    for key, cell in zip(keys, cells(ordered), strict=True):
        found.setdefault(tuple(key), []).append(cell)
    return found


def _partners(cell: Cell, others: Sequence[Cell]) -> Sequence[Cell]:
    same_card = [other for other in others if other.setting.card == cell.setting.card]
    return same_card or others
