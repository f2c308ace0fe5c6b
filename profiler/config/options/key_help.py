"""The keys of a trial and the run options for `--help`: one entry per key, with its unit and its default."""

from collections.abc import Iterable
from textwrap import wrap

from profiler.config.options.option import Option
from profiler.config.options.reading import NULL, show
from profiler.config.options.run_options import RUN_OPTIONS
from profiler.domain.trials.keys import Key
from profiler.domain.trials.trial import TRIAL_KEYS

_WIDTH = 100
_NAME = 30
_OPTION_WIDTH = 80


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
    return "".join(
        entry(name, option.meaning, option.default_text if option.default is not None else option.null, option.unit)
        for name, option in RUN_OPTIONS.items()
    )


def option_lines(options: Iterable[Option], *, indent: int) -> str:
    """Return ``"  name=VALUE    meaning (default: value)"`` of each option.

    Args:
        options: The options.
        indent: Columns before a meaning. A longer name has a line of its own.
    """
    return "".join(_option_line(option, indent) for option in options)


def _option_line(option: Option, indent: int) -> str:
    head, meaning = f"  {option.name}={option.kind.shown}", option.meaning
    default = f"{option.default_text} {option.unit}".rstrip()
    if option.default is None:
        default = option.null
    elif option.null:
        head, meaning = f"{head}|{NULL}", f"{meaning}; {NULL}: {option.null}"
    first, *others = wrap(f"{meaning} (default: {default})", _OPTION_WIDTH - indent)
    lines = [head.ljust(indent) + first] if len(head) < indent else [head, " " * indent + first]
    return "\n".join([*lines, *(" " * indent + line for line in others)]) + "\n"


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
