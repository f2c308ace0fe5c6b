"""Rows of a data set that is replaced: values of the right shape, with texts of a given number of words."""

import json
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any

from profiler.substitutes.columns.shapes import Classes, Column, ListOf, Record, Shape
from profiler.substitutes.options import SubstituteOptions
from profiler.training.data.tokenizer import word

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
