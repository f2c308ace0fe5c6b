"""How a script uses the value of a column, and the shape that fits this use."""

from dataclasses import dataclass, field
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
    SOURCE = "name of a data set whose answers can be checked"


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
            return f"record of {', '.join(name for name, _ in shape.fields)}"
        case Classes():
            return f"one of {len(shape.names)} classes"
        case _:
            return str(shape)


class Hint(StrEnum):
    """What a use says about a value."""

    TEXT = "text"
    NUMBER = "number"
    IMAGE = "image"
    CONVERSATION = "conversation"
    CLASS = "class"
    JSON = "JSON"


_DEEPEST = 4
"""Values within values that are told apart."""


@dataclass
class Use:
    """Everything that a script does with one value."""

    hints: set[Hint] = field(default_factory=set)
    keys: dict[str, "Use"] = field(default_factory=dict)
    """Keys that are read from the value, with what is done with theirs."""
    element: "Use | None" = None
    """What is done with one value of it, where it is taken apart as a list."""
    last_index: int = 0
    """The largest number by which a value of it is taken."""
    depth: int = 0
    """How many values it is a part of."""

    def key(self, name: str) -> "Use":
        """Return the use of one key; below `_DEEPEST` it is its own."""
        return self if self.depth >= _DEEPEST else self.keys.setdefault(name, Use(depth=self.depth + 1))

    def one(self, index: int = 0) -> "Use":
        """Return the use of one value of a list, taken by `index`; below `_DEEPEST` it is its own.

        A loop that takes a name's value apart and gives it the same name has no end of its own.
        """
        self.last_index = max(self.last_index, index)
        if self.depth >= _DEEPEST:
            return self
        if self.element is None:
            self.element = Use(depth=self.depth + 1)
        return self.element


_TURN_KEYS, _MESSAGE_KEYS = {"from", "value"}, {"role", "content"}
_BY_HINT = {Hint.IMAGE: Column.IMAGE, Hint.JSON: Column.JSON, Hint.NUMBER: Column.NUMBER, Hint.CLASS: Column.NUMBER}
_CLASSES = numbered_classes(2)
_LONGEST_LIST = 64

_CONVERSATIONS = {"messages": Column.ANSWERED, "conversations": Column.TURNS, "conversation": Column.ANSWERED}
_PROMPTS = ("prompt", "question", "problem", "instruction", "input", "context", "query", "system", "caption")
_COMPLETIONS = ("completion", "answer", "response", "output", "solution", "chosen", "rejected", "summary", "target")
_NAMED = {**_CONVERSATIONS, "label": Column.FLAG, "labels": Column.FLAG}
_NUMBERS = ("score", "id", "idx", "rating", "margin", "year", "length")
_NUMBERED = ("_score", "_id", "_idx", "_rating", "_count", "_length", "score_chosen", "score_rejected")
_IMAGES = ("image", "img", "picture", "photo")


def kind_of(name: str) -> Column:
    """Return what a column of this name holds; a text where the name does not say."""
    lower = name.lower()
    if lower in _NAMED:
        return _NAMED[lower]
    if lower in _NUMBERS or lower.endswith(_NUMBERED):
        return Column.NUMBER
    if lower in _IMAGES or lower.endswith(tuple(f"_{name}" for name in _IMAGES)):
        return Column.IMAGE
    if any(part in lower for part in _COMPLETIONS):
        return Column.COMPLETION
    return Column.PROMPT if any(part in lower for part in _PROMPTS) else Column.TEXT


def shape_of(name: str, use: Use) -> Shape:
    """Return the shape of a column: that of its use, or that of its name where the use does not say."""
    for hint, kind in _BY_HINT.items():
        if hint in use.hints:
            return _CLASSES if hint is Hint.CLASS else kind
    if Hint.CONVERSATION in use.hints or _is_conversation(use):
        return _conversation(name, use)
    if use.keys:
        return _record(name, use)
    if use.element is not None and Hint.TEXT not in use.hints:
        return _list(name, use, use.element)
    return _text(name) if Hint.TEXT in use.hints else kind_of(name)


def _is_conversation(use: Use) -> bool:
    """Whether messages are read from the value. A list of records without a text is something else."""
    keys = set(use.element.keys) if use.element is not None else set()
    return bool(keys) and keys <= _TURN_KEYS | _MESSAGE_KEYS


def _conversation(name: str, use: Use) -> Column:
    keys = set(use.element.keys) if use.element is not None else set()
    if keys & _TURN_KEYS:
        return Column.TURNS
    if use.last_index > 1:
        return Column.GUIDED
    kind = kind_of(name)
    if kind is Column.TURNS:
        return Column.ANSWERED if keys else kind
    if kind is Column.PROMPT:
        return Column.ASKED
    return Column.REPLY if kind is Column.COMPLETION and name not in ("chosen", "rejected") else Column.ANSWERED


def _record(name: str, use: Use) -> Record:
    """Return a record with the keys that are read; a text in it is of the kind that the column's name says."""
    shapes = ((key, shape_of(key, inner)) for key, inner in use.keys.items())
    return Record(tuple((key, _text(name) if shape is Column.TEXT else shape) for key, shape in shapes))


def _list(name: str, use: Use, element: Use) -> Shape:
    kind = kind_of(name)
    if kind in (Column.ANSWERED, Column.TURNS):
        return kind
    if not (element.keys or element.hints or element.element):
        # A list or a text: texts are taken apart by numbers too, but seldom in a loop.
        return ListOf(Column.PROMPT if kind is Column.TEXT else kind, _count(use))
    return ListOf(shape_of(name, element), _count(use))


def _count(use: Use) -> int:
    return min(max(2, use.last_index + 1), _LONGEST_LIST)


def _text(name: str) -> Column:
    kind = kind_of(name)
    return kind if kind in (Column.PROMPT, Column.COMPLETION) else Column.TEXT
