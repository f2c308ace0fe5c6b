"""The command that runs one stored trial again."""

import re
import shlex
from collections.abc import Mapping

import pandas as pd

from profiler.domain.trial import SPEC_KEYS

_PLAIN = re.compile(r"[A-Za-z0-9_./+-]+")


def repeat_commands(runs: pd.DataFrame) -> Mapping[str, str]:
    """Of each trial of the `runs` table the command that repeats it: every key is pinned, so one point is left."""
    known = runs[["trial_id", "grid", *SPEC_KEYS]].astype(object)
    rows = known.where(known.notna(), None).itertuples(index=False, name=None)
    return {str(row[0]): _command(str(row[1]), dict(zip(SPEC_KEYS, row[2:], strict=True))) for row in rows}


def _command(grid: str, values: Mapping[str, object]) -> str:
    words = [f"{key}={_value(key, value)}" for key, value in values.items() if _matters(key, value)]
    return shlex.join(["python", "-m", "profiler.sweep", f"+grid={grid}", *words])


def _matters(key: str, value: object) -> bool:
    # Without an adapter its keys have no meaning.
    return not (key.startswith("lora_") and value is None)


def _value(key: str, value: object) -> str:
    """As the command line takes it: ``null``, ``true``, ``[q_proj,v_proj]``, or a text, in quotes if it needs them."""
    if value is None:
        return "null"
    if isinstance(value, bool) or str(value) in ("True", "False"):
        return str(value).lower()
    text = str(value)
    if key == "lora_target_modules" and "," in text:
        return f"[{text}]"
    if isinstance(value, float) and value.is_integer() and key != "beta":
        return str(int(value))
    return text if _PLAIN.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
