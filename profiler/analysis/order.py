"""The order in which trials are shown."""

from enum import StrEnum

import pandas as pd

from profiler.analysis.keys import CONFIGURATION_KEYS, is_null, type_of

_LAST = ("weights", "dataset", "seed")
"""Keys on which memory does not depend."""

SHOWN_KEYS = (*(key for key in CONFIGURATION_KEYS if key not in ("model", *_LAST)), *_LAST)
"""Keys that a row of a table can stand for, the most significant first. Models are columns, cards are sections."""


def in_reading_order(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `runs` sorted by specification: members of an enumeration in their own order, numbers by size."""
    keys = pd.DataFrame({name: _ranks(runs[name], type_of(name)) for name in SHOWN_KEYS}, index=runs.index)
    keys["model"] = runs["model"].astype(str)
    keys["trial_id"] = runs["trial_id"].astype(str)
    return runs.loc[keys.sort_values([*SHOWN_KEYS, "model", "trial_id"]).index]


def _ranks(values: pd.Series, kind: type) -> list[int]:
    # Ranks instead of values: a column has values of several types, and null comes first in all of them.
    known = [None if is_null(value) else value for value in values.tolist()]
    if issubclass(kind, StrEnum):
        ordered = [str(member) for member in kind]
    else:
        ordered = sorted({value for value in known if value is not None})
    rank = {value: position for position, value in enumerate(ordered)}
    return [-1 if value is None else rank[value] for value in known]
