"""Frozen dataclasses to JSON and back, strictly: a missing key, an unknown key or a wrong type is refused."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from types import NoneType, UnionType
from typing import NamedTuple, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
Reader: TypeAlias = Callable[[dict[str, JSON]], object]

T = TypeVar("T")


class JsonMismatchError(ValueError):
    """The JSON is not of the wanted shape; the message says where."""


def to_json(value: object) -> JSON:
    """A dataclass, StrEnum, tuple or plain value as JSON; keys are the names of the fields."""
    if isinstance(value, StrEnum):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [to_json(part) for part in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"no JSON for {type(value).__name__}")


def from_json(kind: type[T], value: JSON, *, readers: Mapping[type, Reader] | None = None, defaults: bool = False) -> T:
    """`value` as a `kind`, a dataclass.

    Args:
        kind: The dataclass wanted.
        value: Parsed JSON.
        readers: For classes that have their own way from a mapping.
        defaults: Whether keys of fields with a default may be missing, as in what an earlier version wrote.

    Raises:
        JsonMismatchError: `value` is not what `to_json` makes of a `kind`.
    """
    return cast("T", _read(kind, value, where=kind.__name__, how=_How(readers or {}, defaults)))


class _How(NamedTuple):
    readers: Mapping[type, Reader]
    defaults: bool


def _read(kind: object, value: JSON, *, where: str, how: _How) -> object:
    if get_origin(kind) is UnionType:
        return _read_optional(kind, value, where=where, how=how)
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise JsonMismatchError(f"{where}: a list is wanted")
        part_kind = get_args(kind)[0]
        return tuple(_read(part_kind, part, where=f"{where}[{i}]", how=how) for i, part in enumerate(value))
    if not isinstance(kind, type):
        raise TypeError(f"{where}: no reader for {kind}")
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where=where, how=how)
    if issubclass(kind, StrEnum):
        if not isinstance(value, str) or value not in set(kind):
            raise JsonMismatchError(f"{where}: {value!r} is not one of {', '.join(kind)}")
        return kind(value)
    return _read_plain(kind, value, where=where)


def _read_optional(kind: object, value: JSON, *, where: str, how: _How) -> object:
    if value is None:
        return None
    (wanted,) = [part for part in get_args(kind) if part is not NoneType]
    return _read(wanted, value, where=where, how=how)


def _read_dataclass(kind: type, value: JSON, *, where: str, how: _How) -> object:
    if not isinstance(value, dict):
        raise JsonMismatchError(f"{where}: an object is wanted")
    if kind in how.readers:
        return how.readers[kind](value)
    hints = get_type_hints(kind)
    optional = {field.name for field in fields(kind) if how.defaults and _has_default(field)}
    odd = sorted((set(hints) ^ set(value)) - optional | set(value) - set(hints))
    if odd:
        raise JsonMismatchError(f"{where}: keys missing or unknown: {', '.join(odd)}")
    return kind(
        **{name: _read(hints[name], value[name], where=f"{where}.{name}", how=how) for name in hints if name in value}
    )


def _has_default(field: Field[object]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _read_plain(kind: type, value: JSON, *, where: str) -> object:
    if kind is float and type(value) is int:
        return float(value)
    # `type` and not isinstance: True is an int to Python and not to us.
    if type(value) is not kind:
        raise JsonMismatchError(f"{where}: {value!r} is not {kind.__name__}")
    return value
