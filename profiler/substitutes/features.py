"""The types by which datasets stores the columns of a data set that is replaced."""

from collections.abc import Mapping
from typing import Any

from datasets import ClassLabel, Features, Image, Value

from profiler.substitutes.shapes import Classes, Column, ListOf, Record, Shape

_VALUES = {Column.NUMBER: "int64", Column.FRACTION: "float64", Column.FLAG: "bool"}
_MESSAGE = (("role", "content"), ("from", "value"))


def features_of(columns: Mapping[str, Shape]) -> Features:
    """Return the types of several columns."""
    return Features({name: feature_of(shape) for name, shape in columns.items()})


def feature_of(shape: Shape) -> Any:
    """Return the type of a column."""
    match shape:
        case ListOf():
            return [feature_of(shape.of)]
        case Record():
            return {name: feature_of(inner) for name, inner in shape.fields}
        case Classes():
            return ClassLabel(names=list(shape.names))
        case Column.IMAGE:
            return Image()
        case Column.ASKED | Column.ANSWERED | Column.GUIDED | Column.REPLY | Column.TURNS:
            keys = _MESSAGE[shape is Column.TURNS]
            return [{key: Value("string") for key in keys}]
        case _:
            return Value(_VALUES.get(shape, "string"))
