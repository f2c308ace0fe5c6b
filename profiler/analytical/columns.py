"""A table of trials as columns: per key its values, and per trial the index of its value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiler.analytical.formulas.quantities import Coded
from profiler.domain.architecture import Architecture
from profiler.domain.trial import SPEC_KEYS, TrialSpec


@dataclass(frozen=True, kw_only=True)
class TrialTable:
    """Trials as columns."""

    keys: Mapping[str, Coded[Any]]
    """One column per key of `TrialSpec`."""
    architectures: Mapping[str, Architecture]
    """The architecture of each model in the column `model`."""
    rows: int


def table_of(specs: Sequence[TrialSpec], architectures: Mapping[str, Architecture]) -> TrialTable:
    """Return `specs` as columns, in order."""
    columns = {key: _coded([getattr(spec, key) for spec in specs]) for key in SPEC_KEYS}
    return TrialTable(keys=columns, architectures=architectures, rows=len(specs))


def product_table(
    base: TrialSpec,
    axes: Mapping[str, Sequence[object]],
    architectures: Mapping[str, Architecture],
    *,
    tied: Mapping[str, tuple[str, Sequence[object]]] | None = None,
) -> TrialTable:
    """Return all combinations of the values of `axes`, the other keys as in `base`; the first axis varies slowest.

    No specification is built per row, and values are not checked or normalised as `profiler.config` does.

    Args:
        base: The values of all other keys.
        axes: The values of each key that varies.
        architectures: The architecture of each model.
        tied: Keys that vary with an axis: its name, and a value for each of its values.
    """
    shape = tuple(len(values) for values in axes.values())
    rows = int(np.prod(shape, dtype=np.int64))
    indices = np.indices(shape, dtype=np.int32).reshape(len(shape), rows)
    of_axis = dict(zip(axes, indices, strict=True))
    varying = {**{key: (key, values) for key, values in axes.items()}, **(tied or {})}
    columns: dict[str, Coded[Any]] = {}
    for key in SPEC_KEYS:
        if key in varying:
            axis, values = varying[key]
            columns[key] = Coded(values=tuple(values), codes=of_axis[axis])
        else:
            columns[key] = Coded(values=(getattr(base, key),), codes=np.zeros(rows, dtype=np.int32))
    return TrialTable(keys=columns, architectures=architectures, rows=rows)


def _coded(values: Sequence[Any]) -> Coded[Any]:
    numbers: dict[Any, int] = {}
    codes: NDArray[Any] = np.fromiter(
        (numbers.setdefault(value, len(numbers)) for value in values), dtype=np.int32, count=len(values)
    )
    return Coded(values=tuple(numbers), codes=codes)
