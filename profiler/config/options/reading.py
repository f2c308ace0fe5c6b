"""Reading of untyped values into typed ones: of a command line, of a file, and of what another Python prints.

Wrong values are faults. Any program can be named as a Python, so that its answer may be anything.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Any, TypeVar

from profiler.config.foreign_text import ForeignTextError, parse_json
from profiler.config.options.value_grammar import read_into, read_value
from profiler.domain.errors import Fault, nearest
from profiler.domain.trials.keys import MAX_COUNT

Choice = TypeVar("Choice", bound=StrEnum)

NULL = "null"

_NO_HINTS: Mapping[str, str] = {}

MAX_NUMBER = 1e15
"""Largest number of a key that has no bound of its own."""


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


_FEW_KEYS = 12
"""Most keys that the sentence about an unknown one lists."""


def unknown_key(key: str, value: object, known: Iterable[str], *, hint: str = "") -> Fault:
    """Return the fault of a key that does not exist, in every command.

    Its hint is the nearest of the known keys, else `hint`, else how to list them.
    """
    names = list(known)
    is_few = len(names) <= _FEW_KEYS
    listed = f"the keys are {', '.join(names)}" if len(names) > 1 else f"the only key is {names[0]}"
    hint = nearest(key, names) or hint or ("" if is_few else f"--help lists the {len(names)} keys.")
    return Fault(key=key, found=show(value), problem=f"is unknown; {listed}" if is_few else "is unknown", hint=hint)


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

    def has(self, key: str) -> bool:
        """Return whether there is an untyped value, which may be null."""
        return key in self._values

    def value(self, key: str) -> object:
        """Return the untyped value; None where the key is absent."""
        return self._values.get(key)

    def fail(self, key: str, problem: str, hint: str = "") -> None:
        """Keep a fault for `key`."""
        self._faults.append(Fault(key=key, found=show(self.value(key)), problem=problem, hint=hint))

    def choice(
        self, key: str, members: type[Choice], *, also: Sequence[str] = (), hints: Mapping[str, str] = _NO_HINTS
    ) -> Choice:
        """Return a member of a closed set.

        Args:
            key: The key.
            members: The closed set.
            also: Words that a user may write as well, which the caller has replaced already; only the fault names them.
            hints: What to do about other words, by word.
        """
        value = self.value(key)
        if isinstance(value, str):
            with suppress(ValueError):
                return members(value)
        self.one_of(key, [*also, *map(str, members)], hints)
        return next(iter(members))

    def word(self, key: str, allowed: Sequence[str]) -> str:
        """Return one of `allowed`, which is not empty."""
        value = self.value(key)
        if isinstance(value, str) and value in allowed:
            return value
        self.one_of(key, allowed)
        return allowed[0]

    def one_of(self, key: str, allowed: Sequence[str], hints: Mapping[str, str] = _NO_HINTS) -> None:
        """Keep a fault for `key` that lists `allowed`, with the hint for the word found or else the nearest of them."""
        found = show(self.value(key))
        self.fail(key, f"must be one of {', '.join(allowed)}", hints.get(found) or nearest(found, allowed))

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


_AS_VALUES: Mapping[str, Callable[[str], object]] = {}


class TextReader(FieldReader):
    """Reader of typed values from the texts of a command line. A text that is no value has one fault."""

    def __init__(self, texts: Mapping[str, str], readers: Mapping[str, Callable[[str], object]] = _AS_VALUES) -> None:
        """Read each of `texts`.

        Args:
            texts: What the user wrote after `key=`, by key.
            readers: How the text of a key is read, if not as a value.
        """
        faults: list[Fault] = []
        values: dict[str, object] = {}
        for key, text in texts.items():
            read_into(values, key, text, faults, readers.get(key, read_value))
        super().__init__(values)
        self._texts = values
        self._faults.extend(faults)
        self._unreadable = frozenset(fault.key for fault in faults)

    def put(self, key: str, value: object) -> None:
        """Set the untyped value of a key of which several words count."""
        self._texts[key] = value

    def fail(self, key: str, problem: str, hint: str = "") -> None:
        """Keep a fault for `key`, unless its text is no value."""
        if key not in self._unreadable:
            super().fail(key, problem, hint)


ZERO_STAGES = (0, 1, 2, 3)
"""`ZeroStageEnum` of DeepSpeed."""

DEVICES = ("none", "cpu", "nvme")
"""`OffloadDeviceEnum` of DeepSpeed."""

STRATEGIES: Mapping[str, bool] = {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "1": True, "2": False}
"""Strategies of FSDP 1 that have a formula, by name and number, and whether each reshards after the forward.

Source: `FSDP_SHARDING_STRATEGY` of accelerate 1.15, whose numbers begin at 1.
"""

_WITHOUT_FORMULA = ("NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "3", "4", "5")

_TRUE = ("y", "yes", "t", "true", "on", "1")
_FALSE = ("n", "no", "f", "false", "off", "0")


def read_flag(value: object) -> bool | None:
    """Return the value of a flag as accelerate's and trl's parsers read it, also from a text; None if it is no flag.

    Source: `str_to_bool` of accelerate 1.15 and `string_to_bool` of trl 1.16, which has fewer words.
    """
    if isinstance(value, bool):
        return value
    word = str(value).lower() if isinstance(value, str | int) else ""
    return True if word in _TRUE else False if word in _FALSE else None


class FileValues:
    """Reader of values of closed sets, which keeps a fault per value that is not in its set.

    A key is a path, as ``section.key``. Each method returns what an absent key means, also after a fault.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self._faults: dict[str, Fault] = {}

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Every fault so far, one per key."""
        return tuple(self._faults.values())

    def fail(self, key: str, problem: str, hint: str = "") -> None:
        """Keep a fault for `key`."""
        self._faults.setdefault(key, Fault(key=key, found=show(self.value(key)), problem=problem, hint=hint))

    def value(self, key: str) -> object:
        """Return the untyped value; None where the key or its section is absent."""
        section, _, last = key.rpartition(".")
        return (self.section(section) if section else self._values).get(last)

    def section(self, key: str) -> Mapping[str, object]:
        """Return the keys in a section; none where it is absent, null, false or empty."""
        value = self.value(key)
        if isinstance(value, Mapping):
            return value
        if value is not None and value is not False and value not in ("", []):
            self.fail(key, "must be a section of keys")
        return {}

    def one_of(self, key: str, allowed: Sequence[int | str]) -> int | str | None:
        """Return one of `allowed`, words in any case; None where the key is absent."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, bool) and value is False and "no" in allowed:
            return "no"  # YAML 1.1 reads `no` as false
        for each in allowed:
            same = value == each if isinstance(each, int) else str(value).lower() == each.lower()
            if same and not isinstance(value, bool) and isinstance(value, type(each)):
                return each
        words = list(map(str, allowed))
        quoted = isinstance(value, str) and value.strip() in words
        hint = "Write it without quotes." if quoted else nearest(show(value), words)
        self.fail(key, f"must be one of {', '.join(words)}", hint)
        return None

    def flag(self, key: str, *, default: bool = False) -> bool:
        """Return true or false, also from a text; `default` where the key is absent."""
        value = self.value(key)
        found = default if value is None else read_flag(value)
        if found is None:
            self.fail(key, "must be true or false")
            return default
        return found

    def reshards(self, key: str, *, default: bool) -> bool:
        """Return whether FSDP frees a layer after its forward, by a flag or a strategy; `default` where it is not."""
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        word = show(value).upper()
        if word in STRATEGIES:
            return STRATEGIES[word]
        if word in ("TRUE", "FALSE"):
            return word == "TRUE"
        strategies = [each for each in STRATEGIES if not each.isdecimal()]
        if word in _WITHOUT_FORMULA:
            self.fail(key, f"has no formula here; only {' or '.join(strategies)}")
        else:
            self.fail(key, f"must be true, false, {' or '.join(strategies)}", nearest(word, strategies))
        return default


# ---- what another Python prints --------------------------------------------------------------------------------------

Check = Callable[[object], bool]
"""Whether a value has its form."""

_MOST_ANSWER_BYTES = 1 << 20


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
    value = parse_json(text.encode(errors="replace"), most_bytes=_MOST_ANSWER_BYTES)
    if not isinstance(value, dict):
        raise ForeignTextError("prints something else than what a Python is asked for")
    if wrong := [key for key, check in form.items() if key not in value or not check(value[key])]:
        raise ForeignTextError(f"prints something else than what a Python is asked for: {', '.join(wrong)}")
    return value
