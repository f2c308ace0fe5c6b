"""The order in which trials are shown."""

from enum import StrEnum

import pandas as pd

from profiler.analysis.compared.keys import is_null
from profiler.domain.trials.trial import SHOWN_KEYS, key_named


def in_reading_order(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `runs` sorted by specification: members of an enumeration in their own order, numbers by size."""
    keys = pd.DataFrame({name: _ranks(runs[name], key_named(name).choices) for name in SHOWN_KEYS}, index=runs.index)
    keys["model"] = runs["model"].astype(str)
    keys["trial_id"] = runs["trial_id"].astype(str)
    return runs.loc[keys.sort_values([*SHOWN_KEYS, "model", "trial_id"]).index]


def _ranks(values: pd.Series, choices: type[StrEnum] | None) -> list[int]:
    # Ranks instead of values: a column has values of several types, and null comes first in all of them.
    known = [None if is_null(value) else value for value in values.tolist()]
    if choices is not None:
        ordered = [str(member) for member in choices]
    else:
        ordered = sorted({value for value in known if value is not None})
    rank = {value: position for position, value in enumerate(ordered)}
    return [-1 if value is None else rank[value] for value in known]
