"""The declaration of a stored value, as metadata of a field of a dataclass.

The flat form of an outcome, the rows and columns of all tables and docs/columns.md derive from these declarations.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints

_METADATA = "stored"

_UNITS = {"_bytes": "bytes", "_s": "s", "_percent": "percent", "_watts": "W", "_mhz": "MHz"}
"""Units by the ending of the name of a field."""


@dataclass(frozen=True, kw_only=True)
class ColumnDeclaration:
    """Everything about a column that the name, the type and the default of its field do not say."""

    meaning: str
    """A phrase for the documentation of tables."""
    null: str
    """What null means; empty where a value is never null."""
    name: str
    """Name of the column, and key of an outcome; that of the field if empty."""
    unit: str
    """Such as ``"tokens"``; if empty, that of the ending of the field's name, and none for texts."""
    is_signed: bool
    """Whether a number can be negative."""
    identifies: bool
    """Whether the column is one of those that together differ in any two rows."""
    sums_to: str
    """The column of `runs` that the values of one trial sum to; empty if there is none."""
    peaks_at: str
    """The column of `runs` that is the largest value of one trial; empty if there is none."""
    as_text: Callable[[Any], str] | None
    """Makes the text of a value that is none; None for texts and numbers."""


@dataclass(frozen=True, kw_only=True)
class _Spread:
    prefix: str


@dataclass(frozen=True, kw_only=True)
class _StoredAs:
    key: str


def column(
    meaning: str,
    null: str = "",
    *,
    name: str = "",
    unit: str = "",
    is_signed: bool = False,
    identifies: bool = False,
    sums_to: str = "",
    peaks_at: str = "",
    as_text: Callable[[Any], str] | None = None,
) -> Mapping[str, ColumnDeclaration]:
    """Return the `metadata` of a field that is a column; arguments as in `ColumnDeclaration`."""
    return {
        _METADATA: ColumnDeclaration(
            meaning=meaning,
            null=null,
            name=name,
            unit=unit,
            is_signed=is_signed,
            identifies=identifies,
            sums_to=sums_to,
            peaks_at=peaks_at,
            as_text=as_text,
        )
    }


def spread(prefix: str = "") -> Mapping[str, _Spread]:
    """Return the `metadata` of a field whose own fields are columns of the same row; `prefix` precedes their names."""
    return {_METADATA: _Spread(prefix=prefix)}


def stored_as(key: str) -> Mapping[str, _StoredAs]:
    """Return the `metadata` of a field of an outcome that is stored as `key` and is no column of its row."""
    return {_METADATA: _StoredAs(key=key)}


@dataclass(frozen=True, kw_only=True)
class ColumnField(ColumnDeclaration):
    """One column, as it follows from a field."""

    place: tuple[str, ...]
    """Names of fields, from the outermost to that of the value."""
    kind: type
    """The type of a value that is not null: `bool`, `int`, `float`, `str`, an enumeration, or of `as_text`."""
    empty_is_null: bool
    """Whether an empty value is stored as null, because the field itself is never None."""


def columns_of(holder: type, prefix: str = "") -> tuple[ColumnField, ...]:
    """Return the columns that the fields of a dataclass declare, in order; `prefix` precedes their names."""
    return _columns_once(cast("Hashable", holder), prefix)


@cache
def _columns_once(holder: type, prefix: str) -> tuple[ColumnField, ...]:
    return tuple(_columns(holder, (), prefix))


def _columns(holder: type, place: tuple[str, ...], prefix: str) -> Iterator[ColumnField]:
    hints = get_type_hints(holder)
    for field in _fields(holder):
        declared, inner = field.metadata.get(_METADATA), (*place, field.name)
        if isinstance(declared, _Spread):
            yield from _columns(_without_none(hints[field.name]), inner, prefix + declared.prefix)
        elif isinstance(declared, ColumnDeclaration):
            yield _column(declared, hints[field.name], inner, prefix)


def _column(declared: ColumnDeclaration, hint: object, place: tuple[str, ...], prefix: str) -> ColumnField:
    kind, name = _without_none(hint), place[-1]
    unit = next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")
    is_text = declared.as_text is not None or issubclass(kind, str)
    return ColumnField(
        **{
            **vars(declared),
            "name": prefix + (declared.name or name),
            "unit": declared.unit or ("" if is_text else unit),
        },
        place=place,
        kind=str if declared.as_text is not None else kind,
        empty_is_null=bool(declared.null) and is_text and NoneType not in get_args(hint),
    )


def keys_of_outcome(outcome: type) -> Mapping[str, tuple[str, str]]:
    """Return the key of each stored field of an outcome's parts, with the part and the attribute.

    Raises:
        TypeError: A field declares no key, so that it would be lost.
    """
    found: dict[str, tuple[str, str]] = {}
    for part, kind in parts_of(outcome).items():
        for field in _fields(kind):
            found.setdefault(_key(field), (part, field.name))
    return found


def parts_of(outcome: type) -> Mapping[str, type]:
    """Return the classes of an outcome's parts, by name."""
    return {name: _without_none(hint) for name, hint in get_type_hints(outcome).items()}


def default_of(holder: type, attribute: str) -> object:
    """Return the default of a field; None if it has none."""
    (field,) = (each for each in _fields(holder) if each.name == attribute)
    return None if field.default is MISSING else field.default


def _key(field: Field[Any]) -> str:
    declared = field.metadata.get(_METADATA)
    if isinstance(declared, _StoredAs):
        return declared.key
    if isinstance(declared, ColumnDeclaration):
        return declared.name or field.name
    if isinstance(declared, _Spread):
        return field.name
    raise TypeError(f"{field.name} declares neither a column nor a key")


def _fields(holder: type) -> tuple[Field[Any], ...]:
    return fields(holder) if is_dataclass(holder) else ()


def _without_none(hint: Any) -> type:  # noqa: ANN401  a type, or one that may be None
    if NoneType in get_args(hint):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    found: type = get_origin(hint) or hint
    return found
