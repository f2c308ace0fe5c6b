"""Rows and columns of a data set that is replaced, also those that nobody foresaw.

Columns of a replaced data set that nobody foresaw: answered when the script reads them.

The source of a script does not say every column that it reads, and a library may read one by a name of its own. A row
then answers with a value whose shape fits its use in the source, or its name.
"""

import io
import json
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import Any

from profiler.substitutes.columns.columns_read import Reads, reads_of
from profiler.substitutes.columns.row_origins import own_sources
from profiler.substitutes.columns.uses import Classes, Column, ListOf, Record, Shape, described, kind_of
from profiler.substitutes.options import Replaced, SubstituteOptions
from profiler.training.data.source_data import word

IMAGE_PIXELS = 512
"""Width and height of an image."""


def make_rows(columns: Mapping[str, Shape], options: SubstituteOptions, count: int) -> dict[str, list[Any]]:
    """Return `count` rows by column; every text differs from those of the rows around it."""
    return {name: [value(shape, row, options) for row in range(count)] for name, shape in columns.items()}


def value(shape: Shape, row: int, options: SubstituteOptions) -> Any:
    """Return the value of row number `row`; an image as datasets stores it, with the bytes of a file."""
    match shape:
        case ListOf():
            return [value(shape.of, row + place, options) for place in range(shape.count)]
        case Record():
            return {name: value(inner, row + place, options) for place, (name, inner) in enumerate(shape.fields)}
        case Classes():
            return row % len(shape.names)
        case Column.NUMBER:
            return row % 2
        case Column.FRACTION:
            return (row % 2) / 2 + 0.25
        case Column.FLAG:
            return row % 2 == 0
        case Column.WORD:
            return word(row)
        case Column.SOURCE:
            return "openai/gsm8k"
        case Column.IMAGE:
            return {"bytes": grey_png(IMAGE_PIXELS), "path": None}
        case Column.JSON:
            return json.dumps(value(Column.ANSWERED, row, options))
        case Column.SOLVED | Column.BOXED | Column.DIALOGUE:
            return _marked(shape, row, options)
        case Column.PROMPT | Column.COMPLETION | Column.TEXT:
            return _words(row, _tokens(shape, options))
        case _:
            return _conversation(shape, row, options)


def _marked(kind: Column, row: int, options: SubstituteOptions) -> str:
    """Return a text with the marks by which scripts take it apart."""
    if kind is Column.DIALOGUE:
        asked, replied = _words(row, options.prompt_tokens), _words(row + 1, options.completion_tokens)
        return f"\n\nHuman: {asked}\n\nAssistant: {replied}"
    answer = ("####", str(row)) if kind is Column.SOLVED else (f"\\boxed{{{row}}}",)
    return " ".join((_words(row, max(1, options.completion_tokens - len(answer))), *answer))


def _tokens(kind: Column, options: SubstituteOptions) -> int:
    return {
        Column.PROMPT: options.prompt_tokens,
        Column.COMPLETION: options.completion_tokens,
        Column.TEXT: options.text_tokens,
    }[kind]


def _conversation(kind: Column, row: int, options: SubstituteOptions) -> list[dict[str, str]]:
    asked, replied = _words(row, options.prompt_tokens), _words(row + 1, options.completion_tokens)
    prompt, reply = {"role": "user", "content": asked}, {"role": "assistant", "content": replied}
    match kind:
        case Column.ASKED:
            return [prompt]
        case Column.GUIDED:
            return [{"role": "system", "content": word(row)}, prompt, reply]
        case Column.REPLY:
            return [reply]
        case Column.TURNS:
            return [{"from": "human", "value": asked}, {"from": "gpt", "value": replied}]
        case _:
            return [prompt, reply]


def _words(first: int, count: int) -> str:
    return " ".join(word(first + position) for position in range(count))


@cache
def grey_png(pixels: int) -> bytes:
    """Return the file of a square image in one grey: a PNG of 8-bit RGB without interlacing, as its standard has it."""
    header = struct.pack(">IIBBBBB", pixels, pixels, 8, 2, 0, 0, 0)
    line = b"\0" + b"\x80" * (3 * pixels)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (_chunk(b"IHDR", header), _chunk(b"IDAT", zlib.compress(line * pixels)), _chunk(b"IEND", b""))
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


class Answers:
    """Values of columns by name."""

    def __init__(self, options: SubstituteOptions, replaced: Replaced) -> None:
        self._options = options
        self._replaced = replaced
        self._given: Counter[str] = Counter()

    @cached_property
    def reads(self) -> Reads:
        """What the script reads from rows."""
        if self._options.columns:
            return Reads({name: kind_of(name) for name in self._options.columns})
        return reads_of(own_sources(self._options.script), self._options.arguments)

    def shape(self, name: str) -> Shape:
        """Return the shape of a column, and note that it was asked for."""
        shape = self.reads.shape(name)
        self._replaced.add("column", name, f"{described(shape)}, as the script reads it")
        return shape

    def stored(self, name: str, count: int) -> tuple[Shape, list[Any]]:
        """Return the shape of a column, and `count` values as datasets stores them."""
        shape = self.shape(name)
        return shape, [value(shape, row, self._options) for row in range(count)]

    def one(self, name: str) -> Any:
        """Return the value of a column in a row that has none, as a script reads it."""
        shape = self.shape(name)
        self._given[name] += 1
        return decoded(shape, value(shape, self._given[name], self._options))


def decoded(shape: Shape, found: Any) -> Any:
    """Return a value as a script reads it: the file of an image becomes an image of pillow."""
    if isinstance(shape, ListOf):
        return [decoded(shape.of, each) for each in found]
    if shape is not Column.IMAGE:
        return found
    from PIL import Image

    return Image.open(io.BytesIO(found["bytes"]))


class AnsweringRow(dict[Any, Any]):
    """A row that answers any column that is read by ``row["name"]``; `in` and `get` know only those that it has."""

    def __init__(self, columns: Iterable[Any] = (), *, answers: Answers | None = None) -> None:
        super().__init__(columns)
        self._answers = answers

    def __missing__(self, name: Any) -> Any:
        """Make the value of a column that the row lacks, and keep it."""
        if self._answers is None or not isinstance(name, str):
            raise KeyError(name)
        self[name] = self._answers.one(name)
        return self[name]

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled as a plain row: what is sent to another process was read already."""
        return (dict, (dict(self),))


class AnsweringBatch(AnsweringRow):
    """Several rows by column, which answer any column with as many values as they have rows."""

    def __missing__(self, name: Any) -> Any:
        """Make the values of a column that the rows lack, and keep them."""
        if self._answers is None or not isinstance(name, str):
            raise KeyError(name)
        rows = len(next(iter(self.values()), ()))
        self[name] = [self._answers.one(name) for _ in range(rows)]
        return self[name]


class AnsweringFunction:
    """A function of a script that gets rows, or batches of them, that answer."""

    def __init__(self, function: Callable[..., Any], answers: Answers, *, batched: bool) -> None:
        self.function = function
        self.answers = answers
        self.row = AnsweringBatch if batched else AnsweringRow

    def __call__(self, row: Any, *rest: Any, **options: Any) -> Any:
        """Call the function with a row that answers."""
        answering = self.row(row, answers=self.answers) if isinstance(row, Mapping) else row
        return self.function(answering, *rest, **options)
