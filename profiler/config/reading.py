"""Untyped values, as they come from a command line or a file, read into typed ones; what is wrong is kept as faults."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from profiler.domain.errors import Fault, nearest

Choice = TypeVar("Choice", bound=StrEnum)

NULL = "null"

MAX_COUNT = 2**31 - 1
"""The largest count that is taken: a size in a table's column has 64 bits."""

MAX_NUMBER = 1e15
"""The largest number that is taken where a key has no bound of its own."""


def show(value: object) -> str:
    """`value` as a user would have typed it."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{','.join(show(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{show(item)}' for key, item in value.items())}}}"
    return str(value) if str(value).strip() else f"'{value}'"


class FieldReader:
    """Reads typed values out of an untyped mapping.

    Each method returns the value of its key, or a stand-in when the value is wrong and a fault was kept for it, so that
    one pass finds every fault. Ask `sound` before relying on what was read.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self._faults: list[Fault] = []

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Everything found wrong so far."""
        return tuple(self._faults)

    def sound(self, *keys: str) -> bool:
        """Whether none of `keys` has a fault."""
        return not {fault.key for fault in self._faults} & set(keys)

    def value(self, key: str) -> object:
        """The raw value; None where the key is absent."""
        return self._values.get(key)

    def fail(self, key: str, problem: str, hint: str = "") -> None:
        """Keep a fault for `key`."""
        self._faults.append(Fault(key=key, found=show(self.value(key)), problem=problem, hint=hint))

    def choice(self, key: str, members: type[Choice], *, also: Sequence[str] = ()) -> Choice:
        """One of a closed set. `also` are words that are allowed to the user but were dealt with before."""
        value = self.value(key)
        if isinstance(value, str) and value in [str(member) for member in members]:
            return members(value)
        self.one_of(key, [*also, *map(str, members)])
        return next(iter(members))

    def optional_choice(self, key: str, members: type[Choice]) -> Choice | None:
        """One of a closed set, or null."""
        return None if self.value(key) is None else self.choice(key, members)

    def one_of(self, key: str, allowed: Sequence[str]) -> None:
        """Keep a fault for `key` that names `allowed` and the nearest of them."""
        self.fail(key, f"must be one of {', '.join(allowed)}", nearest(show(self.value(key)), allowed))

    def count(self, key: str, *, minimum: int = 1, maximum: int | None = MAX_COUNT, why: str = "") -> int:
        """A whole number of at least `minimum` and, if there is one, at most `maximum`."""
        value = self.value(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            reason = f" ({why})" if why else ""
            self.fail(key, f"must be a whole number of at least {minimum}{reason}")
            return minimum
        if maximum is not None and value > maximum:
            self.fail(key, f"must be a whole number of at most {maximum}")
            return minimum
        return value

    def optional_count(self, key: str, *, maximum: int | None = MAX_COUNT) -> int | None:
        """A whole number of at least 1, or null."""
        return None if self.value(key) is None else self.count(key, maximum=maximum)

    def number(self, key: str, *, maximum: float = MAX_NUMBER) -> float:
        """A number of at least 0 and at most `maximum`."""
        value = self.value(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            self.fail(key, "must be a number of at least 0")
            return 0.0
        # Whole numbers have no upper end in Python, and floats have infinity.
        if value > maximum:
            self.fail(key, f"must be a number of at most {maximum:g}")
            return 0.0
        return abs(float(value))  # -0.0 is 0.0

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.value(key)
        if isinstance(value, bool):
            return value
        self.fail(key, "must be true or false")
        return False

    def text(self, key: str, meaning: str) -> str:
        """A text that is not empty; `meaning` says of what, for the fault."""
        value = self.value(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
        self.fail(key, f"must be {meaning}")
        return ""

    def optional_text(self, key: str, meaning: str) -> str | None:
        """A text that is not empty, or null."""
        return None if self.value(key) is None else self.text(key, f"{meaning}, or null")
