"""Parse YAML, JSON, TOML and Python that others wrote, and calculate with its values, within limits.

No text can exhaust the memory or hang.
All limits are declared here. `profiler.storage.files.foreign_files` reads files up to the size that belongs to their
format.
"""

import ast
import json
import operator
import re
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import yaml

from profiler.domain.memory import MIB

MOST_YAML_BYTES = 1 * MIB
MOST_JSON_BYTES = 10 * MIB
MOST_SCRIPT_BYTES = 1 * MIB

MOST_DEPTH = 64
"""Most containers inside each other."""

MOST_NODES = 100_000
"""Most values of a YAML text, each counted as often as aliases repeat it."""

_MOST_DIGITS = 1000
"""Longest number: Python needs quadratic time to convert longer ones."""

_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_JSON_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_TOML_STRING_OR_COMMENT = re.compile(
    rb'"""(?:[^\\]|\\.)*?"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*+"|' rb"'[^'\n]*+'|#[^\n]*+", re.DOTALL
)

_TOO_DEEP = f"has values that are nested more than {MOST_DEPTH} deep"


class ForeignTextError(ValueError):
    """A text that cannot be used; the message is the end of a sentence about it: "is not valid YAML (...)"."""


def parse_yaml(text: str) -> object:
    """Return the value of a YAML text with one document.

    Raises:
        ForeignTextError: It is not valid YAML, or exceeds a limit.
    """
    check_yaml(text)
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise _not_yaml(error) from error


def check_yaml(text: str) -> None:
    """Check the limits of a YAML text without building its values.

    Raises:
        ForeignTextError: It is not valid YAML, contains itself, or exceeds a limit.
    """
    _check_size(len(text.encode(errors="surrogatepass")), MOST_YAML_BYTES)
    size = _Size()
    try:
        for event in yaml.parse(text, Loader=_Loader):
            size.add(event)
    except (yaml.YAMLError, UnicodeError) as error:
        raise _not_yaml(error) from error


def parse_json(text: bytes, *, most_bytes: int = MOST_JSON_BYTES) -> Any:  # noqa: ANN401  any JSON
    """Return the value of a JSON text.

    Raises:
        ForeignTextError: It is not valid JSON, or exceeds a limit.
    """
    _check_size(len(text), most_bytes)
    _check_brackets(text, _JSON_STRING)
    try:
        value = json.loads(text, object_pairs_hook=_each_key_once)
    except ForeignTextError:
        raise
    except ValueError as error:
        raise ForeignTextError(f"cannot be read as JSON ({_one_line(error)})") from error
    _check_depth(value)
    return value


def parse_toml(text: str) -> dict[str, Any]:
    """Return the value of a TOML text.

    Raises:
        ForeignTextError: It is not valid TOML, or exceeds a limit.
    """
    content = text.encode(errors="surrogatepass")
    _check_size(len(content), MOST_YAML_BYTES)
    _check_brackets(content, _TOML_STRING_OR_COMMENT)
    try:
        value = tomllib.loads(text)
    except ValueError as error:
        raise ForeignTextError(f"is not valid TOML ({_one_line(error)})") from error
    _check_depth(value)
    return value


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of `pairs`; of a key that is there twice, each reader would take another value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise ForeignTextError(f"has the key '{twice}' twice")
    return found


def parse_python(text: str) -> ast.Module:
    """Return the syntax tree of a Python script, which is not run.

    Raises:
        ForeignTextError: It is not valid Python, or exceeds a limit.
    """
    _check_size(len(text.encode(errors="surrogatepass")), MOST_SCRIPT_BYTES)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes of a string of others
            return ast.parse(text)
    except (RecursionError, MemoryError) as error:
        raise ForeignTextError("has expressions that are nested too deep") from error
    except (SyntaxError, ValueError) as error:
        raise ForeignTextError(f"is not valid Python ({_one_line(error)})") from error


def entries(expression: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Return the entries of ``{"key": value}`` and of ``dict(key=value)`` whose keys are literals."""
    match expression:
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    yield key.value, value
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            yield from ((each.arg, each.value) for each in keywords if each.arg is not None)


def _check_size(size_bytes: int, most_bytes: int) -> None:
    if size_bytes > most_bytes:
        raise ForeignTextError(f"has more than {most_bytes // MIB} MiB")


def _check_brackets(text: bytes, without: re.Pattern[bytes]) -> None:
    """Refuse a text whose brackets are nested too deep, before a parser follows them.

    Parsers of JSON and TOML call themselves for each bracket: how deep they come depends on the recursion limit, which
    any other library may have raised.
    """
    if text.count(b"[") + text.count(b"{") <= MOST_DEPTH:
        return
    brackets = without.sub(b"", text).translate(None, _NO_BRACKETS)
    if max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets), default=0) > MOST_DEPTH:
        raise ForeignTextError(_TOO_DEEP)


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(MOST_DEPTH):
        level = [child for each in level for child in _children(each)]
        if not level:
            return
    if any(isinstance(each, dict | list) for each in level):
        raise ForeignTextError(_TOO_DEEP)


def _children(value: object) -> list[object]:
    """Return the containers in a container, and nothing else: most values are no containers."""
    if isinstance(value, dict):
        value = list(value.values())
    return [each for each in value if isinstance(each, dict | list)] if isinstance(value, list) else []


_Plain = tuple[str, bool]
"""A text, and whether it has no quotes."""


@dataclass(kw_only=True)
class _Container:
    """A list or mapping of a YAML text that has not ended yet."""

    anchor: str | None
    nodes_before: int
    is_mapping: bool
    values: dict[_Plain, tuple[int, _Plain | None]] = field(default_factory=dict)
    """Values so far, by key, with their lines; None for a list, a mapping or an alias."""
    key: _Plain | None = None
    """The key whose value comes next; None if it is no plain text."""
    awaits_key: bool = True


class _Size:
    """Depth and number of values of a YAML text, counted from its events."""

    def __init__(self) -> None:
        self._open: list[_Container] = []
        self._anchored: dict[str, int] = {}
        self._nodes = 0
        self._documents = 0

    def add(self, event: yaml.Event) -> None:
        """Count one event."""
        if isinstance(event, yaml.NodeEvent) and self._open and self._open[-1].is_mapping:
            self._read_key(self._open[-1], event)
        if isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise ForeignTextError("has several YAML documents, and one is allowed")
        elif isinstance(event, yaml.AliasEvent):
            self._count(self._repeated(event.anchor))
        elif isinstance(event, yaml.ScalarEvent):
            self._count(1)
            if event.anchor is not None:
                self._anchored[event.anchor] = 1
        elif isinstance(event, yaml.CollectionStartEvent):
            self._begin(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = self._open.pop()
            if ended.anchor is not None:
                self._anchored[ended.anchor] = self._nodes - ended.nodes_before

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._open.append(_Container(anchor=event.anchor, nodes_before=self._nodes, is_mapping=is_mapping))
        self._count(1)
        if len(self._open) > MOST_DEPTH:
            raise ForeignTextError(_TOO_DEEP)

    def _read_key(self, mapping: _Container, event: yaml.NodeEvent) -> None:
        """Read a key, or its value; a key may come again with the value that it has."""
        plain = (event.value, bool(event.implicit[0])) if isinstance(event, yaml.ScalarEvent) else None
        if mapping.awaits_key:
            mapping.key = plain if plain is not None and plain[0] != _MERGE else None
        elif mapping.key is not None:
            (first, before), at = mapping.values.get(mapping.key, (0, plain)), getattr(event.start_mark, "line", 0)
            if first and (plain is None or before != plain):
                raise ForeignTextError(f"has the key '{mapping.key[0]}' twice, in lines {first} and {at + 1}")
            mapping.values[mapping.key] = at + 1, plain
        mapping.awaits_key = not mapping.awaits_key

    def _repeated(self, anchor: str | None) -> int:
        if any(each.anchor == anchor for each in self._open):
            raise ForeignTextError(f"contains itself, by its alias *{anchor}")
        return self._anchored.get(anchor or "", 1)

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MOST_NODES:
            raise ForeignTextError(f"has more than {MOST_NODES:,} values")


_MERGE = "<<"


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # by libyaml where it is installed
    """A safe loader that refuses numbers that take long to convert."""


def _limit_numbers(kind: str) -> None:
    construct = yaml.constructor.SafeConstructor.yaml_constructors[f"tag:yaml.org,2002:{kind}"]

    def limited(loader: _Loader, node: yaml.ScalarNode) -> object:
        if len(node.value) > _MOST_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, f"a number has more than {_MOST_DIGITS} digits", None)
        return construct(loader, node)

    _Loader.add_constructor(f"tag:yaml.org,2002:{kind}", limited)


for _kind in ("int", "float"):
    _limit_numbers(_kind)


def _not_yaml(error: Exception) -> ForeignTextError:
    if isinstance(error, yaml.YAMLError | UnicodeError):
        return ForeignTextError(f"is not valid YAML ({_one_line(error)})")
    # PyYAML lets errors of conversions pass: a month 13, a text tagged as a number.
    details = f": {_one_line(error)}" if isinstance(error, ValueError) else ""
    return ForeignTextError(f"is not valid YAML (a value is not what its form or its tag says{details})")


def _one_line(error: Exception) -> str:
    said = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())[:300].rstrip(".")
    return said or type(error).__name__


MOST_DIGITS = 15
"""Longest number that arithmetic may make."""


class NoLiteralError(ValueError):
    """An expression whose value is not in the file."""


_ARITHMETIC = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}


def calculated(kind: type[ast.operator], left: object, right: object) -> int | str:
    """Return what arithmetic of whole numbers, a sum of texts or a path returns.

    The part of a path that is not in the file is its folder: ``here / "models" / "Qwen3-8B"`` is ./models/Qwen3-8B.

    Raises:
        NoLiteralError: It is none of these.
    """
    if kind is ast.Div and isinstance(right, str):
        return f"{left}/{right}" if isinstance(left, str) else f"./{right}"
    if kind is ast.Add and isinstance(left, str) and isinstance(right, str):
        return left + right
    if kind not in _ARITHMETIC or not isinstance(left, int) or not isinstance(right, int):
        raise NoLiteralError
    if (kind is ast.FloorDiv and right == 0) or max(abs(left), abs(right)) >= 10**MOST_DIGITS:
        raise NoLiteralError
    return int(_ARITHMETIC[kind](left, right))


_Table = Mapping[type[ast.AST], Callable[..., Any]]
_COMPARISONS: _Table = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not}
_ORDERS: _Table = {ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le}


def compared(kind: type[ast.cmpop], left: object, right: object) -> bool:
    """Return what a comparison of two values returns.

    Raises:
        NoLiteralError: It is another one.
    """
    orders = _ORDERS if isinstance(left, int | float) and isinstance(right, int | float) else {}
    if (compare := {**_COMPARISONS, **orders}.get(kind)) is None:
        raise NoLiteralError
    return bool(compare(left, right))


def extreme_of(name: str, values: list[object]) -> object:
    """Return what `min` or `max` returns for whole numbers."""
    numbers = [each for each in values if isinstance(each, int)]
    if len(numbers) < len(values):
        raise NoLiteralError
    return min(numbers) if name == "min" else max(numbers)


def number_of(kind: str, value: object) -> int | float:
    """Return what `int` or `float` returns.

    Raises:
        NoLiteralError: It fails, or the number is long.
    """
    if not isinstance(value, int | float | str) or len(str(value)) > MOST_DIGITS:
        raise NoLiteralError
    try:
        return int(value) if kind == "int" else float(value)
    except ValueError as error:
        raise NoLiteralError from error


def text_of(method: str, text: str, given: list[object]) -> object:
    """Return what a method of a text returns; of `split` the parts that are not empty, without spaces around them."""
    word = next((each for each in given if isinstance(each, str) and each), None)
    parts = [each.strip() for each in text.split(word)] if method == "split" else []
    return [each for each in parts if each] if parts else text.lower() if method == "lower" else text.strip(word)


class Element(ast.expr):
    """One element of what an assignment to several names takes apart."""

    def __init__(self, whole: ast.expr, element: int) -> None:
        super().__init__()
        self.whole, self.element = whole, element


def bindings_of(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Return the names and attributes of `self` that `node` assigns, with their values."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _targets(target, value)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield from _targets(target, value)
        case ast.NamedExpr(target=target, value=value):
            yield from _targets(target, value)


def _targets(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    match target:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self"), attr=name):
            yield name, value
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            for number, each in enumerate(elements):
                yield from _targets(each, Element(value, number))
