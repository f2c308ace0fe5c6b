"""Reading of untyped values, from a command line or a file, into typed ones; wrong values become faults."""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from profiler.config.value_grammar import read_into, read_path, read_ratio, read_value
from profiler.domain.errors import Fault, UsageError, nearest
from profiler.domain.keys import MAX_COUNT

Choice = TypeVar("Choice", bound=StrEnum)

NULL = "null"

MAX_NUMBER = 1e15
"""Largest number of a key that has no bound of its own."""

MAX_INCREASE = "max_increase"
"""Key: by how much a peak may grow between two sweeps."""
_MOST_INCREASE = 1000.0


def show(value: object) -> str:
    """Return `value` as a user would type it."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{','.join(show(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{show(item)}' for key, item in value.items())}}}"
    return str(value) if str(value).strip() else f"'{value}'"


def read_increase(key: str, text: str) -> float:
    """Return an increase such as ``"2%"`` or ``"0.02"`` as a ratio.

    Raises:
        UsageError: It is neither.
    """
    reader = TextReader({key: text}, ratios=(key,))
    ratio = reader.number(key, maximum=_MOST_INCREASE)
    if reader.faults:
        raise UsageError([Fault(key=key, found=text, problem="must be an increase of at least 0, such as 2% or 0.02")])
    return ratio


class FieldReader:
    """Reader of typed values from an untyped mapping.

    Each method returns the value of its key. For a wrong value it keeps a fault and returns an allowed value instead,
    so that one pass finds every fault. Check `sound` before relying on a value.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self._faults: list[Fault] = []

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Every fault so far."""
        return tuple(self._faults)

    def sound(self, *keys: str) -> bool:
        """Return whether none of `keys` has a fault."""
        return not {fault.key for fault in self._faults} & set(keys)

    def value(self, key: str) -> object:
        """Return the untyped value; None where the key is absent."""
        return self._values.get(key)

    def fail(self, key: str, problem: str, hint: str = "") -> None:
        """Keep a fault for `key`."""
        self._faults.append(Fault(key=key, found=show(self.value(key)), problem=problem, hint=hint))

    def choice(self, key: str, members: type[Choice], *, also: Sequence[str] = ()) -> Choice:
        """Return a member of a closed set.

        Args:
            key: The key.
            members: The closed set.
            also: Words that a user may write as well, which the caller has replaced already; only the fault names them.
        """
        value = self.value(key)
        if isinstance(value, str) and value in [str(member) for member in members]:
            return members(value)
        self.one_of(key, [*also, *map(str, members)])
        return next(iter(members))

    def word(self, key: str, allowed: Sequence[str]) -> str:
        """Return one of `allowed`, which is not empty."""
        value = self.value(key)
        if isinstance(value, str) and value in allowed:
            return value
        self.one_of(key, allowed)
        return allowed[0]

    def one_of(self, key: str, allowed: Sequence[str]) -> None:
        """Keep a fault for `key` that lists `allowed` and suggests the nearest of them."""
        self.fail(key, f"must be one of {', '.join(allowed)}", nearest(show(self.value(key)), allowed))

    def count(self, key: str, *, minimum: int = 1, maximum: int | None = MAX_COUNT, why: str = "") -> int:
        """Return a whole number from `minimum` to `maximum`; None is no upper bound."""
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
        """Return a whole number of at least 1, or None for null."""
        return None if self.value(key) is None else self.count(key, maximum=maximum)

    def number(self, key: str, *, maximum: float = MAX_NUMBER) -> float:
        """Return a number from 0 to `maximum`."""
        value = self.value(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
            self.fail(key, "must be a number of at least 0")
            return 0.0
        # Python has no largest whole number, and a float can be infinite.
        if value > maximum:
            self.fail(key, f"must be a number of at most {maximum:g}")
            return 0.0
        return abs(float(value))  # -0.0 is 0.0

    def flag(self, key: str) -> bool:
        """Return true or false."""
        value = self.value(key)
        if isinstance(value, bool):
            return value
        self.fail(key, "must be true or false")
        return False

    def text(self, key: str, meaning: str) -> str:
        """Return a text that is not empty; the fault says that the value must be `meaning`."""
        value = self.value(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
        self.fail(key, f"must be {meaning}", f"Add {key}=NAME." if value is None else "")
        return ""

    def names(self, key: str) -> tuple[str, ...]:
        """Return a list of one or more names."""
        value = self.value(key)
        if isinstance(value, list | tuple) and value and all(isinstance(name, str) and name.strip() for name in value):
            return tuple(value)
        self.fail(key, "must be a list of names")
        return ("",)


class TextReader(FieldReader):
    """Reader of typed values from the texts of a command line. A text that is no value has one fault."""

    def __init__(self, texts: Mapping[str, str], *, paths: Sequence[str] = (), ratios: Sequence[str] = ()) -> None:
        """Read each of `texts`.

        Args:
            texts: What the user wrote after `key=`, by key.
            paths: Keys that take a text as it stands.
            ratios: Keys that take a number or a percentage.
        """
        readers: dict[str, Callable[[str], object]] = dict.fromkeys(paths, read_path) | dict.fromkeys(
            ratios, read_ratio
        )
        faults: list[Fault] = []
        values: dict[str, object] = {}
        for key, text in texts.items():
            read_into(values, key, text, faults, readers.get(key, read_value))
        super().__init__(values)
        self._faults.extend(faults)
        self._unreadable = frozenset(fault.key for fault in faults)

    def fail(self, key: str, problem: str, hint: str = "") -> None:
        """Keep a fault for `key`, unless its text is no value."""
        if key not in self._unreadable:
            super().fail(key, problem, hint)
