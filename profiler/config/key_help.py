"""The keys of a trial and the run options for `--help`: one entry per key, with its unit and its default."""

from collections.abc import Iterable
from dataclasses import fields
from pathlib import PurePath
from textwrap import wrap

from profiler.config.reading import show
from profiler.config.run_options import DECLARATIONS, RunOptions
from profiler.domain.keys import Key
from profiler.domain.trial import TRIAL_KEYS

_WIDTH = 100
_NAME = 30


def trial_keys_help(*, given: str = "") -> str:
    """Return one entry per key of a trial.

    Args:
        given: The default of `backend`, where the command resolves it.
    """
    defaults = {"backend": given} if given else {}
    return "".join(
        entry(key.name, key.meaning + _choices(key), _default(key, defaults), key.unit) for key in TRIAL_KEYS
    )


def run_options_help() -> str:
    """Return one entry per run option."""
    values = {option.name: option.default for option in fields(RunOptions)}
    return "".join(
        entry(name, option.meaning, _option_default(values[name], option.null), option.unit)
        for name, option in DECLARATIONS.items()
    )


def entry(name: str, meaning: str, default: str, unit: str = "") -> str:
    """Return ``"  name    meaning [default unit]"``; a long meaning continues below itself."""
    said = f"{name} {meaning}".replace("_", " ").split()
    is_known = not unit or any(len(word) > 1 and word in said for word in unit.split())
    shown = f"[{default}]" if is_known or not default[:1].isdigit() else f"[{default} {unit}]"
    lines = wrap(f"{meaning} {shown}", _WIDTH - _NAME - 2, break_on_hyphens=False)
    return "".join(f"  {head:<{_NAME}}{line}\n" for head, line in zip(_heads(name, lines), lines, strict=True))


def _choices(key: Key) -> str:
    """Return the allowed words in brackets, if they are few and the meaning does not have them."""
    listed = ", ".join(key.allowed)
    is_short = len(listed) <= _WIDTH - _NAME
    return f" ({listed})" if is_short and not all(word in key.meaning for word in key.allowed) else ""


def _heads(name: str, lines: Iterable[str]) -> Iterable[str]:
    return (name if number == 0 else "" for number, _ in enumerate(lines))


def _default(key: Key, defaults: dict[str, str]) -> str:
    if key.name in defaults:
        return defaults[key.name]
    if key.default is not None:
        return show(key.default) if key.default != "" else key.null_given or "none"
    if key.given_default is not None:
        return show(key.given_default)
    return key.null_given or "required"


def _option_default(value: object, null: str) -> str:
    if value is None:
        return null
    return str(value) if isinstance(value, PurePath) else f"{value:g}" if isinstance(value, float) else show(value)
