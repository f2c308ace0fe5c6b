"""The commands that run a stored sweep, or one of its trials, again."""

import re
import shlex
from collections.abc import Mapping

import pandas as pd

from profiler.analysis.compared.cells import KeyValue, records_of, trial_keys
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import SPEC_KEYS, key_named

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
