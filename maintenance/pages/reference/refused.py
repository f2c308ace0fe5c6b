"""The page of the combinations of keys that commands refuse, made from the table of constraints."""

import inspect
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum

from maintenance.pages.members import marked, table
from profiler.config.options.reading import show
from profiler.constraints.constraint import Constraint, Text, Where, anything, stated
from profiler.constraints.table import CONSTRAINTS

_HEAD = """\
# Refused combinations

Each row is one combination of keys that a command refuses, with exit code 2 and a sentence that ends with what to do.
Words in braces are values of the trial. A key without a value is refused with some values; with `any` it depends on
the values of several keys. Some combinations are refused because nobody has built or compared them yet, and not because
they are impossible: the sentence says which."""

_TITLES: Mapping[Where, str] = {
    Where.EVERYWHERE: "By every command",
    Where.SWEEP: "By a sweep",
    Where.CLOSED_FORM: "By `estimate`, `solve` and `advise`: no closed form",
    Where.CARD: "By `solve` of a key, and `advise`",
}

_FIELD = re.compile(r"\{(?:spec|model)\.(\w+)\}")


def refused_page() -> str:
    """Return the whole page."""
    blocks = [_HEAD]
    for where, title in _TITLES.items():
        rows = [_row(each) for each in CONSTRAINTS if each.where is where]
        blocks += [f"## {title}", table(("keys", "sentence", "what to do"), list(dict.fromkeys(rows)))]
    return "\n\n".join(blocks) + "\n"


def _row(constraint: Constraint) -> tuple[str, str, str]:
    return ", ".join(_keys(constraint)), _text(constraint.problem), _text(constraint.hint)


def _keys(constraint: Constraint) -> Iterator[str]:
    for key, value in constraint.values.items():
        yield f"`{key}={shown}`" if (shown := _value(value)) else f"`{key}`"


def _value(value: object) -> str:
    if value is anything:
        return "any"
    if value is stated:
        return "given"
    if callable(value) and not isinstance(value, StrEnum):
        return ""
    return show(value)


def _text(text: Text) -> str:
    """Return the text, with the names of values in braces; for a text that is computed, what it is."""
    if isinstance(text, str):
        return marked(_FIELD.sub(r"{\1}", text))
    return marked((inspect.getdoc(text) or "").removeprefix("Return "))
