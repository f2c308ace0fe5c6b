"""Quantities of stored trials, found by their specification."""

from collections.abc import Mapping, Sequence

import pandas as pd

from profiler.analysis.compared.cells import is_null, records_of, trial_keys
from profiler.analysis.verdicts import Figure
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.claims import End, Quantity
from profiler.domain.memory import Category, Origin, Phase
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import TRIAL_KEYS, Backend, TrialSpec

_OWN = ("backend", "gpu", "weights")
"""Keys in which a stored trial may differ from what a claim states: where it ran."""

_WORKLOAD = tuple(key for key in TRIAL_KEYS if key.name not in _OWN)

_PEAKS: Mapping[Quantity, tuple[str, str]] = {
    Quantity.PEAK_ALLOCATED: ("peak_allocated_bytes", "required_allocated_bytes"),
    Quantity.PEAK_RESERVED: ("peak_reserved_bytes", "required_reserved_bytes"),
    Quantity.PEAK_DEVICE: ("peak_reserved_bytes", "required_reserved_bytes"),
}
"""The columns of a peak: of a trial that ended well, and of one that ran out of memory, on a card without limit."""

_CATEGORIES = (
    Quantity.WEIGHTS,
    Quantity.REFERENCE,
    Quantity.GRADIENTS,
    Quantity.OPTIMIZER_STATE,
    Quantity.ACTIVATIONS,
)


_UNKNOWN: Mapping[Status, str] = {
    Status.OK: "its trial has no figure for it",
    Status.OOM: "its trial ran out of memory, and what it needs is unknown",
}


class StoredTrials:
    """The trials of stored tables."""

    def __init__(self, runs: pd.DataFrame, shape: pd.DataFrame) -> None:
        """Take the tables `runs` and `shape` of one folder."""
        self._by_keys: dict[tuple[object, ...], list[Mapping[str, object]]] = {}
        for row in records_of(runs):
            self._by_keys.setdefault(_workload(row), []).append(row)
        self._largest = _largest(shape)
        self._at_step = _largest(shape[shape["phase"] == Phase.OPTIMIZER.value])

    def figure(self, spec: TrialSpec, quantity: Quantity) -> Figure | None:
        """Return a quantity of the stored trial of `spec`, that of the strongest origin; None if none is stored."""
        rows = self._by_keys.get(tuple(getattr(spec, key.name) for key in _WORKLOAD), [])
        rows = [row for row in rows if _is_on(row, spec.gpu) and _origin(row) is not None]
        if not rows:
            return None
        row = min(rows, key=lambda each: _ORDER.index(_origin(each)))
        status = Status(str(row["status"]))
        if status not in (Status.OK, Status.OOM):
            return Figure(value=None, end=None, origin=None, problem=f"its trial ended with status {status}")
        value = self._value(row, quantity, has_run_out=status is Status.OOM)
        return Figure(
            value=value,
            end=End.FITS if status is Status.OK else End.OOM,
            origin=_origin(row),
            parameters=_count(row, "parameters"),
            problem="" if value is not None else _UNKNOWN[status],
        )

    def _value(self, row: Mapping[str, object], quantity: Quantity, *, has_run_out: bool) -> int | None:
        if quantity in _PEAKS:
            peak = _count(row, _PEAKS[quantity][has_run_out])
            context = _count(row, "context_bytes") if quantity is Quantity.PEAK_DEVICE else 0
            return None if peak is None or context is None else peak + context
        if quantity in _CATEGORIES and not has_run_out:
            return _size(self._largest, row, Category(quantity.value))
        if quantity is Quantity.KEPT_GRADIENTS and not has_run_out:
            return _size(self._at_step, row, Category.GRADIENTS)
        return _count(row, "parameters") if quantity is Quantity.PARAMETERS else None


_Sizes = Mapping[str, Mapping[Category, int]]


def _largest(shape: pd.DataFrame) -> _Sizes:
    """Return the largest size of each category of each trial."""
    found: dict[str, dict[Category, int]] = {}
    largest = shape.groupby(["trial_id", "category"], observed=True)["bytes"].max()
    for (trial_id, category), size in zip(largest.index, largest.tolist(), strict=True):
        found.setdefault(str(trial_id), {})[Category(str(category))] = int(size)
    return found


def _size(sizes: _Sizes, row: Mapping[str, object], category: Category) -> int | None:
    """Return 0 where the trial has a shape without the category."""
    found = sizes.get(str(row["trial_id"]))
    return None if found is None else found.get(category, 0)


_ORDER: Sequence[Origin | None] = tuple(Origin)


def _origin(row: Mapping[str, object]) -> Origin | None:
    return Backend(str(row["backend"])).origin


def _workload(row: Mapping[str, object]) -> tuple[object, ...]:
    """Return the keys of a stored trial; a key that is younger than its table has the value of earlier trials."""
    stored = trial_keys(row)
    return tuple(_stored(key.name, stored[key.name], key.earlier if key.since else None) for key in _WORKLOAD)


def _stored(name: str, value: object, earlier: object) -> object:
    if value is None:
        # An empty text is stored as null.
        return "" if name == "alloc_conf" else earlier
    return value


def _is_on(row: Mapping[str, object], gpu: str | None) -> bool:
    if not is_null(row.get("gpu")):
        return row["gpu"] == gpu
    return gpu is not None and row.get("gpu_name") == KNOWN_GPUS[gpu].title


def _count(row: Mapping[str, object], column: str) -> int | None:
    value = row.get(column)
    return None if is_null(value) else int(str(value).removesuffix(".0"))
