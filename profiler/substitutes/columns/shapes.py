"""What a column of a data set holds: a plain kind, a list, a record with keys, or one of several classes."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Column(StrEnum):
    """What a column holds."""

    PROMPT = "prompt"
    COMPLETION = "completion"
    TEXT = "text"
    """A prompt and its completion in one."""
    WORD = "one word"
    NUMBER = "number"
    FRACTION = "number between 0 and 1"
    FLAG = "true or false"
    ASKED = "conversation that ends with the user"
    ANSWERED = "conversation that ends with the assistant"
    GUIDED = "conversation of system, user and assistant"
    REPLY = "one message of the assistant"
    TURNS = "conversation with the keys 'from' and 'value'"
    IMAGE = "image"
    JSON = "JSON text"
    SOLVED = "completion that ends with #### and a number"
    BOXED = "completion that ends with a boxed number"
    DIALOGUE = "text of Human and Assistant"


@dataclass(frozen=True)
class ListOf:
    """A list of values of one shape."""

    of: "Shape"
    count: int = 2
    """Number of values."""


@dataclass(frozen=True)
class Record:
    """A value with keys."""

    fields: tuple[tuple[str, "Shape"], ...]


@dataclass(frozen=True)
class Classes:
    """A number that stands for one of several names."""

    names: tuple[str, ...]


Shape = Column | ListOf | Record | Classes


def record(**fields: Shape) -> Record:
    """Return the record with these keys."""
    return Record(tuple(fields.items()))


def numbered_classes(count: int) -> Classes:
    """Return `count` classes whose names are their numbers."""
    return Classes(tuple(str(number) for number in range(count)))


def described(shape: Shape) -> str:
    """Return the shape as a report names it, such as ``"list of prompt"``."""
    match shape:
        case ListOf():
            return f"list of {described(shape.of)}"
        case Record():
            return f"record of {_joined(name for name, _ in shape.fields)}"
        case Classes():
            return f"one of {len(shape.names)} classes"
        case _:
            return str(shape)


def _joined(names: Iterable[str]) -> str:
    return ", ".join(names)
