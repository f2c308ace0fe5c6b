"""The declaration of an option: what it is, what is allowed, and how it is read.

A command declares its options once, as fields of a dataclass. The reader of its command line, its help text and the
pages of the documentation derive from them. A new kind of value is a `Kind`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from pathlib import PurePath
from typing import Any, Generic, TypeVar

from profiler.config.options.reading import MAX_NUMBER, NULL, FieldReader, show
from profiler.config.options.value_grammar import read_path, read_ratio, read_value
from profiler.domain.cards.gpu_names import name_known_card
from profiler.domain.errors import UsageError
from profiler.domain.memory import KIB
from profiler.domain.trials.keys import MAX_COUNT

Default = TypeVar("Default")
Value = TypeVar("Value", covariant=True)
Options = TypeVar("Options")
Word = TypeVar("Word", bound=StrEnum)

_METADATA = "option"

MAX_S = 1_000_000
"""Eleven days: the kernel waits for at most 2^31 milliseconds."""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The smallest and the largest number of an option."""

    minimum: int
    maximum: int
    is_minimum_allowed: bool = True

    def __str__(self) -> str:
        low = f"{self.minimum} to" if self.is_minimum_allowed else f"above {self.minimum}, at most"
        return f"{low} {self.maximum:,}"


@dataclass(frozen=True, kw_only=True)
class Kind(Generic[Value]):
    """The values that an option can have."""

    allowed: str
    """What is allowed, as the documentation says it."""
    shown: str
    """What stands for a value in a help text: ``"FOLDER"``."""
    read: Callable[[FieldReader, str], Value | None]
    """Returns the typed value of a key. For a wrong value the reader keeps a fault."""
    read_text: Callable[[str], object] = read_value
    """Reads the text of a command line."""
    bounds: Bounds | None = None
    words: tuple[str, ...] = ()
    """The allowed words, where they are few."""
    adds_up: bool = False
    """Whether each word of a command line counts, not only the last: then the untyped value is a list."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a command."""

    name: str
    kind: Kind[object]
    default: object
    meaning: str
    unit: str = ""
    null: str = ""
    """Meaning of null; empty where null is not allowed."""

    @property
    def allowed(self) -> str:
        """What is allowed, as the documentation says it."""
        return f"{self.kind.allowed}, or {NULL}" if self.null else self.kind.allowed

    @property
    def default_text(self) -> str:
        """The default as a user would type it."""
        return f"{self.default:g}" if isinstance(self.default, float) else show(self.default)

    def read(self, reader: FieldReader) -> object:
        """Return the typed value, or None for null; for a wrong value the reader keeps a fault."""
        return None if self.null and reader.value(self.name) is None else self.kind.read(reader, self.name)


def option(
    default: Default, kind: Kind[Value], meaning: str, *, name: str = "", unit: str = "", null: str = ""
) -> Default | Value:
    """Return the field of an option; arguments as in `Option`.

    Args:
        default: Its typed value where a user leaves it out.
        kind: Its values.
        meaning: A phrase for the documentation.
        name: What a user writes; the name of the field if it is empty.
        unit: Unit of a number.
        null: Meaning of null; empty where null is not allowed.
    """
    declared = Option(name=name, kind=kind, default=default, meaning=meaning, unit=unit, null=null)
    return field(default=default, metadata={_METADATA: declared})


def options_of(declared: type[Any]) -> Mapping[str, Option]:
    """Return the options that the fields of a dataclass declare, by name, in order."""
    return {each.name: each for each in _by_field(declared).values()}


def read_options(declared: type[Options], values: Mapping[str, object]) -> Options:
    """Return `declared` with the untyped `values` by name of an option; options that are left out have their defaults.

    Raises:
        UsageError: Carries every fault found.
    """
    reader = FieldReader(values)
    options = read_sound(declared, reader)
    if reader.faults:
        raise UsageError(reader.faults)
    return options


def read_sound(declared: type[Options], reader: FieldReader) -> Options:
    """Return `declared` with the values of `reader`, which keeps the faults; what has one has its default."""
    read = {
        attribute: (each.name, each.read(reader))
        for attribute, each in _by_field(declared).items()
        if reader.has(each.name)
    }
    return declared(**{attribute: value for attribute, (name, value) in read.items() if reader.sound(name)})


def _by_field(declared: type[Any]) -> Mapping[str, Option]:
    found = {each.name: each.metadata[_METADATA] for each in fields(declared)}
    return {attribute: replace(each, name=each.name or attribute) for attribute, each in found.items()}


# ---- kinds of values -------------------------------------------------------------------------------------------------

FLAG = Kind(allowed="true, false", shown="true|false", read=FieldReader.flag, words=("true", "false"))


def choice(members: type[Word], *some: Word) -> Kind[Word]:
    """Return the kind of a word of `members`, or of `some` of them."""
    words = some or tuple(members)
    return Kind(
        allowed=", ".join(words),
        shown="|".join(words),
        read=lambda reader, key: members(reader.word(key, words)),
        words=words,
    )


def count(*, minimum: int = 1, maximum: int = MAX_COUNT) -> Kind[int]:
    """Return the kind of a whole number."""
    bounds = Bounds(minimum=minimum, maximum=maximum)
    return Kind(
        allowed=str(bounds),
        shown="N",
        read=lambda reader, key: reader.count(key, minimum=minimum, maximum=maximum),
        bounds=bounds,
    )


def _seconds(reader: FieldReader, key: str) -> float:
    value = reader.number(key, maximum=MAX_S)
    if value == 0 and reader.sound(key):
        reader.fail(key, "must be more than 0 seconds")
    return value


_OF_SECONDS = Bounds(minimum=0, maximum=MAX_S, is_minimum_allowed=False)
SECONDS = Kind(allowed=str(_OF_SECONDS), shown="SECONDS", read=_seconds, bounds=_OF_SECONDS)

_OF_NUMBER = Bounds(minimum=0, maximum=int(MAX_NUMBER))
NUMBER = Kind(allowed=str(_OF_NUMBER), shown="NUMBER", read=FieldReader.number, bounds=_OF_NUMBER)


_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([GT])(i?)B?", re.IGNORECASE)
"""``64GiB``, ``256GB`` or ``1.5TiB``: without the i, a power of ten."""


def _size(reader: FieldReader, key: str) -> int:
    found = _SIZE.fullmatch(show(reader.value(key)).strip())
    if found is None or not float(found[1]):
        reader.fail(key, "must be a size above 0 such as 64GiB, 256GB or 1.5TiB")
        return 0
    power = 3 if found[2] in "Gg" else 4
    return int(float(found[1]) * (KIB if found[3] else 1000) ** power)


SIZE = Kind(allowed="a size such as 64GiB, 256GB or 1.5TiB", shown="SIZE", read=_size, read_text=read_path)


def ratio(*, maximum: float) -> Kind[float]:
    """Return the kind of a part of 1, which may be written as a percentage."""
    return Kind(
        allowed=f"0 to {maximum:g}, or a percentage",
        shown="PART",
        read=lambda reader, key: reader.number(key, maximum=maximum),
        read_text=read_ratio,
    )


MAX_INCREASE = "max_increase"
"""Name of the option: by how much a peak may grow between two sweeps."""
_MOST_INCREASE = 1000.0


def _increase(reader: FieldReader, key: str) -> float:
    value = reader.value(key)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= float(show(value)) <= _MOST_INCREASE:
        reader.fail(key, "must be an increase of at least 0, such as 2% or 0.02")
        return 0.0
    return abs(float(show(value)))


INCREASE = Kind(allowed="an increase of at least 0, such as 2%", shown="PART", read=_increase, read_text=read_ratio)


def text(meaning: str, shown: str = "TEXT") -> Kind[str]:
    """Return the kind of a text that must be `meaning`: ``"host:port"``."""
    return Kind(allowed=meaning, shown=shown, read=lambda reader, key: reader.text(key, meaning))


def name(meaning: str, shown: str) -> Kind[str]:
    """Return the kind of a text that is taken as it stands, also with commas, and must be `meaning`: ``"a file"``."""
    return replace(text(meaning, shown), read_text=read_path)


def path(meaning: str, shown: str) -> Kind[PurePath]:
    """Return the kind of a path that must be `meaning`: ``"a folder"``. Its text is taken as it stands."""
    return Kind(
        allowed="a path",
        shown=shown,
        read=lambda reader, key: PurePath(reader.text(key, meaning)),
        read_text=read_path,
    )


def _known_card(reader: FieldReader, key: str) -> str | None:
    card = name_known_card(show(reader.value(key)))
    if not card.name:
        reader.fail(key, card.problem, card.hint)
    return card.name or None


KNOWN_CARD = Kind(allowed="the name of a card", shown="NAME", read=_known_card)


# ---- the format of the output ----------------------------------------------------------------------------------------

FORMAT = "format"
"""Name of the option."""


class OutputFormat(StrEnum):
    """Formats of what a command prints. A command has one for people, and JSON for programs."""

    TABLE = "table"
    TEXT = "text"
    JSON = "json"


def format_option(for_people: OutputFormat = OutputFormat.TABLE) -> OutputFormat:
    """Return the field of the option: the format of the command for people, or JSON."""
    return option(for_people, choice(OutputFormat, for_people, OutputFormat.JSON), "json: for programs", name=FORMAT)
