"""Rows of a data set that is replaced: columns of the right kind, with texts of a given number of words."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from profiler.substitutes.options import SubstituteOptions
from profiler.training.tokenizer import word


class Column(StrEnum):
    """What a column holds."""

    PROMPT = "prompt"
    COMPLETION = "completion"
    TEXT = "text"
    """A prompt and its completion in one."""
    NUMBER = "number"
    FLAG = "true or false"
    ASKED = "conversation that ends with the user"
    ANSWERED = "conversation that ends with the assistant"
    REPLY = "one message of the assistant"
    TURNS = "conversation with the keys 'from' and 'value'"


def make_rows(columns: Mapping[str, Column], options: SubstituteOptions, count: int) -> dict[str, list[Any]]:
    """Return `count` rows by column; every text differs from those of the rows around it."""
    return {name: [_value(kind, row, options) for row in range(count)] for name, kind in columns.items()}


def _value(kind: Column, row: int, options: SubstituteOptions) -> Any:
    prompt = {"role": "user", "content": _words(row, options.prompt_tokens)}
    reply = {"role": "assistant", "content": _words(row + 1, options.completion_tokens)}
    match kind:
        case Column.PROMPT:
            return prompt["content"]
        case Column.COMPLETION:
            return reply["content"]
        case Column.TEXT:
            return _words(row, options.text_tokens)
        case Column.NUMBER:
            return row % 2
        case Column.FLAG:
            return row % 2 == 0
        case Column.ASKED:
            return [prompt]
        case Column.ANSWERED:
            return [prompt, reply]
        case Column.REPLY:
            return [reply]
        case Column.TURNS:
            return [{"from": "human", "value": prompt["content"]}, {"from": "gpt", "value": reply["content"]}]


def _words(first: int, count: int) -> str:
    return " ".join(word(first + position) for position in range(count))
