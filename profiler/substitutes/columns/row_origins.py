"""What names in a script stand for: texts, rows of a data set, or values of a column."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.substitutes.columns.uses import Use

_MOST_FILES = 24
_MOST_BYTES = 1 << 20


def own_sources(script: Path | None) -> list[str]:
    """Return the text of the script, then those of files that it imports from its own folder or the current one."""
    if script is None:
        return []
    texts: dict[Path, str] = {}
    waiting = [script]
    while waiting and len(texts) < _MOST_FILES:
        path = waiting.pop(0)
        if path not in texts and path.stat().st_size <= _MOST_BYTES:
            texts[path] = path.read_text(errors="replace")
            waiting += _imported(texts[path], (path.parent, script.parent, Path.cwd()))
    return list(texts.values())


def _imported(text: str, folders: tuple[Path, ...]) -> Iterator[Path]:
    for name in _names(text):
        parts = name.split(".")
        found = (folder.joinpath(*parts) for folder in folders)
        candidates = (path for base in found for path in (base.with_suffix(".py"), base / "__init__.py"))
        path = next((path for path in candidates if path.is_file()), None)
        if path is not None:
            yield path


def _names(text: str) -> Iterator[str]:
    """Yield the modules that a source imports; of ``from a import b`` also ``a.b``, which may be one."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names]
            yield from (*([node.module] if node.module else []), *inner)


def text_of(node: ast.AST | None) -> str | None:
    """Return the text of a constant; None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


class NamedStrings:
    """The texts of names, options and parameters of several sources."""

    def __init__(self, trees: Sequence[ast.Module], arguments: Sequence[str] = ()) -> None:
        self._names: dict[str, str] = {}
        self.options: dict[str, str] = {}
        """Options of the command line with their text: what was given, or else the default."""
        for tree in trees:
            for node in ast.walk(tree):
                self._take(node)
        self.options |= dict(_given(arguments))

    def texts_of(self, node: ast.AST | None) -> tuple[str, ...]:
        """Return every text that an expression may have, as far as it is known here."""
        match node:
            case ast.Constant():
                text = text_of(node)
                return () if text is None else (text,)
            case ast.Name():
                return _one(self._names.get(node.id))
            case ast.Attribute():
                return _one(self.options.get(node.attr))
            case ast.IfExp():
                return (*self.texts_of(node.body), *self.texts_of(node.orelse))
            case ast.BoolOp():
                return tuple(text for value in node.values for text in self.texts_of(value))
            case ast.List() | ast.Tuple():
                return tuple(text for value in node.elts for text in self.texts_of(value))
            case _:
                return ()

    def _take(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]):
                self._names |= self._found(name, node.value)
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                found = self._found(name, _default_of(value))
                self._names |= found
                self.options |= found
            case ast.FunctionDef():
                defaults = zip(reversed(node.args.args), reversed(node.args.defaults), strict=False)
                keyword = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                for argument, default in (*defaults, *keyword):
                    self._names |= self._found(argument.arg, default)
            case ast.Call(func=ast.Attribute(attr="add_argument")) if node.args:
                self._take_option(node)

    def _take_option(self, call: ast.Call) -> None:
        names = [text.lstrip("-").replace("-", "_") for each in call.args if (text := text_of(each)) is not None]
        default = next((keyword.value for keyword in call.keywords if keyword.arg == "default"), None)
        for name in names:
            self.options |= self._found(name, default)

    def _found(self, name: str, value: ast.AST | None) -> dict[str, str]:
        texts = self.texts_of(value)
        return {name: texts[0]} if texts and not isinstance(value, ast.List | ast.Tuple) else {}


def _default_of(value: ast.expr) -> ast.AST | None:
    """Return the default of a field of a dataclass, in ``field(default=...)`` as well."""
    if isinstance(value, ast.Call):
        return next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    return value


def _given(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a command line: ``--name value``, ``--name=value`` and ``name=value``."""
    for place, word in enumerate(arguments):
        name, has_value, value = word.lstrip("-").partition("=")
        if has_value:
            yield name.replace("-", "_"), value
        elif word.startswith("--") and place + 1 < len(arguments) and not arguments[place + 1].startswith("--"):
            yield name.replace("-", "_"), arguments[place + 1]


def _one(text: str | None) -> tuple[str, ...]:
    return () if text is None else (text,)


@dataclass(frozen=True)
class Rows:
    """One row, or several."""

    many: bool


@dataclass(frozen=True, eq=False)
class Value:
    """The value of a column, or of each of several rows."""

    use: Use
    many: bool

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Value) and other.use is self.use and other.many == self.many

    def __hash__(self) -> int:
        return hash((id(self.use), self.many))


Origin = Rows | Value
Origins = frozenset[Origin]
NOTHING: Origins = frozenset()


def elements_of(origins: Origins, index: int = 0) -> Origins:
    """Return the origins of one of several values."""
    return frozenset(element_of(origin, index) for origin in origins)


def element_of(origin: Origin, index: int) -> Origin:
    """Return the origin of one of several values, taken by `index`."""
    if isinstance(origin, Rows):
        return Rows(many=False)
    return Value(origin.use, many=False) if origin.many else Value(origin.use.one(index), many=False)


def several_of(origin: Origin) -> Origin:
    """Return the origin of a list of such values."""
    return Rows(many=True) if isinstance(origin, Rows) else Value(origin.use, many=True)


def all_of(several: Iterable[Origins]) -> Origins:
    """Return the origins of several expressions together."""
    return frozenset(origin for each in several for origin in each)


class FlowNotes:
    """The origins of all names of several sources, and the uses of columns that were seen."""

    def __init__(self, trees: Sequence[ast.Module], strings: NamedStrings) -> None:
        self.uses: dict[str, Use] = {}
        """Columns with their uses, in the order in which they are read."""
        self.written: set[str] = set()
        """Columns that the sources make."""
        self.renamed: set[str] = set()
        """Columns that other columns are renamed to."""
        self.reading: set[str] = set()
        """Columns that are read where others, or they themselves, are made."""
        self.splits: dict[str, None] = {}
        self.sampled = 0
        """The largest number of values that are sampled from a column."""
        self.functions = {
            node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        self.has_changed = True
        """Whether a name has got origins since this was last set to False."""
        self._strings = strings
        self._origins: dict[tuple[int, str], Origins] = {}

    def column(self, name: str) -> Use:
        """Return the use of a column."""
        return self.uses.setdefault(name, Use())

    def origins(self, scopes: Sequence[int], name: str) -> Origins:
        """Return the origins of a name in the innermost scope that has some."""
        return next((found for scope in scopes if (found := self._origins.get((scope, name)))), NOTHING)

    def add(self, scope: int, name: str, origins: Origins) -> None:
        """Add origins of a name."""
        known = self._origins.get((scope, name), NOTHING)
        if not origins <= known:
            self._origins[scope, name] = known | origins
            self.has_changed = True

    def bind(self, function: ast.AST | None, arguments: Sequence[Origins]) -> None:
        """Hand origins on to the parameters of a function of the sources."""
        if isinstance(function, ast.Name):
            function = self.functions.get(function.id)
        elif isinstance(function, ast.Attribute):
            function = self.functions.get(function.attr)
        if isinstance(function, ast.Lambda | ast.FunctionDef):
            for parameter, origins in zip(parameters_of(function), arguments, strict=False):
                self.add(id(function), parameter, origins)

    def texts(self, node: ast.AST | None) -> tuple[str, ...]:
        """Return the texts that an expression may have."""
        return self._strings.texts_of(node)

    def wrote(self, names: Iterable[str]) -> None:
        """Take note of columns that a function of the sources makes."""
        self.written |= set(names)

    def read_there(self, names: Iterable[str]) -> None:
        """Take note of columns that are read where others, or they themselves, are made."""
        self.reading |= set(names)


def parameters_of(function: ast.Lambda | ast.FunctionDef) -> list[str]:
    """Return the names of the parameters that a caller gives by place; a method's own object is left out."""
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def called_name(node: ast.AST) -> str:
    """Return the last name of a function that is called; empty if it has none."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
