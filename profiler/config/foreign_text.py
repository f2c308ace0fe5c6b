"""Parse YAML, JSON, TOML and Python that others wrote, within limits: no text can exhaust the memory or hang.

All limits are declared here. `profiler.storage.files.foreign_files` reads files up to the size that belongs to their
format.
"""

import ast
import json
import re
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable
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


ModuleReader = Callable[[str], str | None]
"""Returns the text of a module of the user by its path, ``a/b.py``; None if there is none."""


def add_modules(tree: ast.Module, read: ModuleReader | None, where: Callable[[int], str]) -> Callable[[int], str]:
    """Add to a script what it takes from modules of its own, and return how sentences name a line of both.

    Then what fire passes to a function, and what a function passes on as ``**kwargs``, is spelled out.

    Args:
        tree: The script. Names that are found in a module are no longer imported.
        read: Returns the text of a module; None if none is read.
        where: How sentences name a line of the script.
    """
    modules: dict[str, dict[str, list[ast.stmt]]] = {}
    asked = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    while asked and len(modules) < _MOST_MODULES:
        node = asked.pop(0)
        path = f"{(node.module or '').replace('.', '/')}.py"
        if path.partition("/")[0].removesuffix(".py") in _LIBRARIES:
            continue
        if path not in modules:
            text = read(path) if read is not None else None
            modules[path] = _defined(text, len(modules) + 1) if text is not None else {}
        left = [each.name for each in node.names if each.asname is None and each.name in modules[path]]
        node.names = [each for each in node.names if each.name not in left]
        while left:
            for statement in modules[path].pop(left.pop(), ()):
                tree.body.append(statement)
                asked += [statement] if isinstance(statement, ast.ImportFrom) else []
                left += [each.id for each in ast.walk(statement) if isinstance(each, ast.Name)]
    names = list(modules)
    _spell_out(tree)

    def said(line: int) -> str:
        return where(line) if line < _APART else f"line {line % _APART} of {names[line // _APART - 1]}"

    return said


_APART, _MOST_MODULES = 1_000_000, 20
"""Lines by which those of each module are moved, and how many modules are read."""

_LIBRARIES = (
    *("", "trl", "transformers", "peft", "torch", "datasets", "accelerate", "unsloth", "vllm", "bitsandbytes"),
    *sys.stdlib_module_names,
)


def _defined(text: str, number: int) -> dict[str, list[ast.stmt]]:
    """Return the statements of a module that bind each name, their lines moved; none if it is not valid Python."""
    found: dict[str, list[ast.stmt]] = {}
    try:
        body = parse_python(text).body
    except ForeignTextError:
        return found
    for each in body:
        ast.increment_lineno(each, number * _APART)
        names = [alias.asname or alias.name for alias in each.names] if isinstance(each, ast.ImportFrom) else []
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            names = [each.name]
        elif isinstance(each, ast.Assign | ast.AnnAssign):
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        for name in names:
            found.setdefault(name, []).append(each)
    return found


_OPTIONS = "_options_of_fire"


def _spell_out(tree: ast.Module) -> None:
    """Replace what a script leaves to fire or to ``**kwargs`` by what it stands for.

    By hand: ``def main(rows=4): f(batch=rows)`` with ``fire.Fire(main)`` is ``f(batch=options.rows)`` with an option of
    argparse. If that is the only call of ``f``, its ``GRPOConfig(**kwargs)`` is ``GRPOConfig(batch=options.rows)``.
    """
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    calls: dict[str, list[ast.Call]] = {}
    for node in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        calls.setdefault(name, []).append(node)
    for call in calls.get("Fire", ())[:1]:
        if call.args and isinstance(call.args[0], ast.Name) and call.args[0].id in functions:
            _take_options(tree, functions[call.args[0].id])
    left = MOST_NODES
    for name, function in functions.items():
        rest, given = function.args.kwarg and function.args.kwarg.arg, calls.get(name, ())
        own = {each.arg for each in (*function.args.args, *function.args.kwonlyargs)}
        passed = [each for each in given[0].keywords if each.arg not in own] if given else []
        for inner in ast.walk(function) if rest is not None and len(given) == 1 else ():
            if not isinstance(inner, ast.Call) or left < 0:
                continue
            several = [
                passed if (each.arg, getattr(each.value, "id", "")) == (None, rest) else [each]
                for each in inner.keywords
            ]
            inner.keywords = [each for some in several for each in some]
            left -= len(inner.keywords)


def _take_options(tree: ast.Module, function: ast.FunctionDef) -> None:
    """Make the parameters of a function options of argparse, up to where it binds their names again."""
    given, first = function.args, [*function.args.posonlyargs, *function.args.args]
    names = [each.arg for each in (*first, *given.kwonlyargs)]
    defaults = [*[None] * (len(first) - len(given.defaults)), *given.defaults, *given.kw_defaults]
    lines = ["_fire = argparse.ArgumentParser()"]
    for name, default in zip(names, defaults, strict=True):
        stated = f", default={ast.unparse(default)}" if default is not None else ""
        lines.append(f"_fire.add_argument('--{name}'{stated})")
    lines += [f"{_OPTIONS} = _fire.parse_args()", *(f"{_OPTIONS}_{name} = {_OPTIONS}.{name}" for name in names)]
    made = ast.parse("\n".join(lines)).body
    tree.body += [ast.increment_lineno(statement, function.lineno) for statement in made]
    last = dict.fromkeys(names, function.end_lineno or 0)
    for statement in [node for node in ast.walk(function) if isinstance(node, ast.stmt) and node is not function]:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in last:
                last[node.id] = min(last[node.id], statement.end_lineno or 0)
    function.args = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno <= last.get(node.id, 0):
            node.id = f"{_OPTIONS}_{node.id}"


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


@dataclass(kw_only=True)
class _Container:
    """A list or mapping of a YAML text that has not ended yet."""

    anchor: str | None
    nodes_before: int
    is_mapping: bool
    keys: set[tuple[str, bool]] = field(default_factory=set)
    """Keys so far: text, and whether it has no quotes."""
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
        if mapping.awaits_key and isinstance(event, yaml.ScalarEvent) and event.value != _MERGE:
            key = (event.value, bool(event.implicit[0]))
            if key in mapping.keys and event.start_mark is not None:
                raise ForeignTextError(f"has the key '{event.value}' twice, again in line {event.start_mark.line + 1}")
            mapping.keys.add(key)
        mapping.awaits_key = not mapping.awaits_key

    def _repeated(self, anchor: str | None) -> int:
        if any(container.anchor == anchor for container in self._open):
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
