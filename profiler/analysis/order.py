"""The order in which trials are shown: as a reader would list the methods, not as hashes fall."""

from enum import StrEnum

import pandas as pd

from profiler.domain.trial import SHOWN_KEYS, key_named


def in_reading_order(runs: pd.DataFrame) -> pd.DataFrame:
    """The rows of `runs` sorted by their specification: closed sets in their own order, numbers by size."""
    keys = pd.DataFrame({name: _ranks(runs[name], _choices(name)) for name in SHOWN_KEYS}, index=runs.index)
    keys["model"] = runs["model"].astype(str)
    keys["trial_id"] = runs["trial_id"].astype(str)
    return runs.loc[keys.sort_values([*SHOWN_KEYS, "model", "trial_id"]).index]


def _choices(name: str) -> type[StrEnum] | None:
    return key_named(name).choices


def _ranks(values: pd.Series, kind: type[StrEnum] | None) -> list[int]:
    # Ranks instead of values: columns mix kinds, and null has to come first in all of them.
    known = [None if value is pd.NA or value != value else value for value in values.tolist()]
    ordered = [str(member) for member in kind] if kind else sorted({value for value in known if value is not None})
    rank = {value: position for position, value in enumerate(ordered)}
    return [-1 if value is None else rank[value] for value in known]
