"""What another Python prints about itself: any program can be named, so that its answer may be anything."""

from collections.abc import Callable, Mapping
from typing import Any

from profiler.config.foreign_text import ForeignTextError, parse_json

Check = Callable[[object], bool]
"""Whether a value has its form."""

_MOST_BYTES = 1 << 20


def is_text(value: object) -> bool:
    """Return whether a value is text."""
    return isinstance(value, str)


def is_text_or_none(value: object) -> bool:
    """Return whether a value is text, or None."""
    return value is None or isinstance(value, str)


def is_flag(value: object) -> bool:
    """Return whether a value is true or false."""
    return isinstance(value, bool)


def is_texts(value: object) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def is_version(value: object) -> bool:
    """Return whether a value is major and minor version."""
    return isinstance(value, list) and [type(each) for each in value] == [int, int]


def versions_of(*packages: str) -> Check:
    """Return the check of the versions of all these packages, and of no other."""
    return lambda value: (
        isinstance(value, dict) and set(value) == set(packages) and all(map(is_text_or_none, value.values()))
    )


def read_answer(text: str, form: Mapping[str, Check]) -> dict[str, Any]:
    """Return what a Python printed, with a value of each key of `form`.

    Raises:
        ForeignTextError: It is something else; the message is the end of a sentence about the program.
    """
    value = parse_json(text.encode(errors="replace"), most_bytes=_MOST_BYTES)
    if not isinstance(value, dict):
        raise ForeignTextError("prints something else than what a Python is asked for")
    if wrong := [key for key, check in form.items() if key not in value or not check(value[key])]:
        raise ForeignTextError(f"prints something else than what a Python is asked for: {', '.join(wrong)}")
    return value
