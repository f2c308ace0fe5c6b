"""What a script declares, and what is given with it.

Functions, classes with fields, and values of its command line with defaults.
"""

import ast
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from profiler.config.files.own_sections import ANY_KEY, FileKeys
from profiler.config.foreign_text import NoLiteralError
from profiler.config.scripts.names import OWN, RECIPES, TRAINERS, ModuleReader, called_name, has_name
from profiler.config.scripts.variables import Guards, guarded

PARSERS = ("TrlParser", "HfArgumentParser", "H4ArgumentParser")
"""Parsers that fill dataclasses from the command line, the last of alignment-handbook."""

_PARSES = frozenset(
    """
    parse_args_and_config parse_args_into_dataclasses parse parse_yaml_file parse_json_file parse_dict
    """.split()  # noqa: SIM905
)

TRAINING_ARGUMENTS = "TrainingArguments"
"""The arguments of transformers, which `SFTTrainer` takes in place of trl's, and early trainers of trl do."""

TRL_CLASSES = (*RECIPES, "ModelConfig", "ScriptArguments", TRAINING_ARGUMENTS)
"""Classes of trl and transformers whose fields have the names of trl's keys."""

CONFIGS = tuple(RECIPES)
"""Arguments of trainers that have a recipe."""


@dataclass(frozen=True, kw_only=True)
class Fields:
    """A class with fields: of the script, or of trl, or of the script after one of trl."""

    name: str
    of_trl: str
    """The class of trl that it is or derives from; empty for the script's own."""
    defaults: dict[str, ast.expr]
    names: frozenset[str]
    """The fields that the script declares."""


@dataclass(frozen=True, kw_only=True)
class Namespace:
    """What `parse_args` of argparse returns."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance of a class with fields."""

    kind: Fields
    given: Mapping[str, object]


class Declared:
    """The declarations of one script."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions: dict[str, ast.FunctionDef] = {}
        self.called = {called_name(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        twice: set[str] = set()
        classes: list[ast.ClassDef] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                twice |= {node.name} & self.functions.keys()
                self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                classes.append(node)
        for name in twice:
            del self.functions[name]
        self.classes = {name: Fields(name=name, of_trl=name, defaults={}, names=frozenset()) for name in TRL_CLASSES}
        for each in classes:
            self._add_class(each)
        self.parsed: dict[str, Fields] = {}
        """Names that the script gives to a dataclass that a parser has filled."""
        self._several: dict[str, ast.Tuple | ast.Call] = {}
        self._add_parsed(tree)
        self.unseen: set[str] = set()
        """Classes of modules that are not here, taken as the arguments of a trainer of trl that gets them."""
        self._take_unseen(tree)
        self._made = list(_made(tree))

    def derived(self, *bases: str) -> dict[str, str]:
        """Return the classes of the script that derive from one of `bases`, each with that one."""
        found = {name: each.of_trl for name, each in self.classes.items() if each.of_trl in bases}
        return {name: of_trl for name, of_trl in found.items() if name != of_trl}

    def made_by(self, classes: Collection[str]) -> set[str]:
        """Return the names of the script for what a parser fills, or a call of one of `classes` makes."""
        parsed = {name for name, kind in self.parsed.items() if kind.of_trl}
        return parsed | {name for name, called in self._made if called in classes}

    @property
    def reads_trl(self) -> bool:
        """Whether a parser of the script fills the arguments of a trainer."""
        return any(each.of_trl in (*CONFIGS, TRAINING_ARGUMENTS) for each in self.parsed.values())

    @property
    def parsed_of_trl(self) -> str:
        """The arguments of a trainer that a parser fills; empty if none."""
        return next((each.of_trl for each in self.parsed.values() if each.of_trl in CONFIGS), "")

    def defaults_of_parsed(self) -> Iterator[tuple[str, ast.expr]]:
        """Return the fields with a default of the script's own classes after trl's that a parser fills."""
        for kind in {id(kind): kind for kind in self.parsed.values() if kind.of_trl}.values():
            yield from kind.defaults.items()

    @property
    def only_own(self) -> frozenset[str]:
        """The fields of filled classes that are none of trl's, nor after one."""
        trls = {name for kind in self.parsed.values() if kind.of_trl for name in kind.names}
        return frozenset(name for kind in self.parsed.values() for name in kind.names) - trls

    def _add_class(self, node: ast.ClassDef) -> None:
        bases = [base.id if isinstance(base, ast.Name) else base.attr for base in node.bases if has_name(base)]
        above = [self.classes[base] for base in bases if base in self.classes]
        own = dict(_fields(node))
        typed = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
        names = frozenset(each.id for each in typed if isinstance(each, ast.Name))
        of_trl = next((each.of_trl for each in above if each.of_trl), "")
        own.update({} if of_trl else _constants(node))
        inherited = {key: value for each in above for key, value in each.defaults.items()}
        self.classes[node.name] = Fields(
            name=node.name.removeprefix(OWN),
            of_trl=of_trl,
            defaults={**inherited, **own},
            names=names.union(*(each.names for each in above)),
        )

    def _take_unseen(self, tree: ast.Module) -> None:
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node) in TRAINERS]:
            for name in [ast.unparse(each.value) for each in call.keywords if each.arg == "args"]:
                kind = self.parsed.get(name)
                if kind is not None and not (kind.of_trl or kind.names or kind.defaults):
                    of_trl = f"{TRAINERS[called_name(call)].in_classes}Config"
                    self.parsed[name] = replace(kind, of_trl=of_trl)
                    self.unseen.add(kind.name)

    def _add_parsed(self, tree: ast.Module) -> None:
        parsers: dict[str, list[Fields]] = {}
        makers = {name: list(_parser_calls(function)) for name, function in self.functions.items()}
        for node in ast.walk(tree):
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple() | ast.Call() as several)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.Tuple() | ast.Call() as several)
                ):
                    self._several[name] = several
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                    calls = [call] if called_name(call) in PARSERS else makers.get(called_name(call), [])
                    if len(calls) == 1:
                        parsers[name] = list(self._types(calls[0]))
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Call() | ast.Name() as filled):
                    types = self._filled(filled, parsers)
                    for target, kind in zip(targets, types, strict=False):
                        if isinstance(target, ast.Name):
                            self.parsed[target.id] = kind
                case ast.Assign(
                    targets=[ast.Name(id=name)],
                    value=ast.Subscript(value=ast.Call() as call, slice=ast.Constant(value=int(at))),
                ):
                    types = self._filled(call, parsers)
                    if 0 <= at < len(types):
                        self.parsed[name] = types[at]
        for node in ast.walk(tree):
            match node:
                case ast.arg(arg=name, annotation=ast.Name(id=annotated)) if annotated in self.classes and self.parsed:
                    self.parsed.setdefault(name, self.classes[annotated])

    def _filled(self, call: ast.expr, parsers: dict[str, list[Fields]]) -> list[Fields]:
        call = self._several.get(call.id, call) if isinstance(call, ast.Name) else call
        match getattr(call, "func", None):
            case ast.Attribute(value=ast.Name(id=name), attr=method) if method in _PARSES:
                return parsers.get(name, [])
            case ast.Attribute(value=ast.Call() as inner, attr=method) if method in _PARSES:
                return list(self._types(inner)) if called_name(inner) in PARSERS else []
        return []

    def _types(self, call: ast.Call) -> Iterator[Fields]:
        given = [*call.args[:1], *[each.value for each in call.keywords if each.arg == "dataclass_types"]]
        for argument in given:
            if isinstance(argument, ast.Name):
                argument = self._several.get(argument.id, argument)
            each = argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument]
            for kind in each:
                name = kind.id if isinstance(kind, ast.Name) else kind.attr if isinstance(kind, ast.Attribute) else ""
                yield self.classes.get(name) or Fields(name=name, of_trl="", defaults={}, names=frozenset())


def _constants(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Return what a class binds without a type; a field of trl's classes keeps its default then."""
    for each in node.body:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                yield name, value


def _parser_calls(function: ast.FunctionDef) -> Iterator[ast.Call]:
    """Return the calls that make a parser in a function, such as `make_parser` of trl's scripts."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and called_name(node) in PARSERS:
            yield node


def _made(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Return the names that stand for what a call returns, with what is called."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                yield name, called_name(call)


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, ast.expr]]:
    """Return the fields of a class with their defaults."""
    for each in node.body:
        match each:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() as call) if called_name(call) == "field":
                for keyword in call.keywords:
                    if keyword.arg == "default":
                        yield name, keyword.value
                    elif keyword.arg == "default_factory" and isinstance(keyword.value, ast.Lambda):
                        yield name, keyword.value.body
            case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
                yield name, value


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a command line passes to the script, and what else is given with it."""

    arguments: Mapping[str, object] = field(default_factory=dict)
    """Options of the line."""
    undecided: Mapping[str, str] = field(default_factory=dict)
    """Arguments that are passed without a value that is known."""
    recipe: Mapping[str, object] = field(default_factory=dict)
    """Keys of the file that ``--config`` names."""
    own_file: FileKeys | None = None
    """Keys of a file that is given with the script, from which the script may take values."""
    line: str = ""
    """What states them; empty if none is given."""
    trainer: str = ""
    """The recipe that counts in a script of several."""
    module: ModuleReader | None = None
    """Reads a module of the script's own; None if none is read."""

    @property
    def parsed(self) -> Mapping[str, object]:
        """What a parser of dataclasses gets, which reads the file itself: the line wins."""
        inner = {key: value for key, value in self.recipe.items() if key not in self.undecided}
        return {**inner, **self.arguments}


@dataclass(frozen=True, kw_only=True)
class Open:
    """An entry of a mapping whose value is not in the file."""

    expression: ast.expr


@dataclass(frozen=True, kw_only=True)
class ItemSet:
    """A statement that sets an entry of a mapping, or several."""

    key: ast.expr | None
    """None where the value is a mapping whose entries are set."""
    value: ast.expr
    """A slice where the entry is removed, or becomes what is not followed."""
    guards: Guards
    line: int


def items_set(tree: ast.Module) -> dict[str, list[ItemSet]]:
    """Return what statements set in each mapping or on each object, by the text of its expression, in their order."""
    found: dict[str, list[ItemSet]] = {}
    for node, guards in guarded(tree):
        for owner, key, value in _sets_item(node):
            each = ItemSet(key=key, value=value, guards=guards, line=getattr(node, "lineno", 0))
            found.setdefault(ast.unparse(owner), []).append(each)
    return found


def _sets_item(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None, ast.expr]]:
    """Yield each mapping in which a statement sets entries, with the key and the value."""
    match node:
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=key)], value=value):
            yield owner, key, value
        case ast.Assign(targets=[ast.Attribute(value=ast.Name() as on, attr=key)], value=value) if on.id != "self":
            yield on, ast.Constant(value=key), value
        case ast.AugAssign(target=ast.Subscript(value=owner, slice=key)):
            yield owner, key, ast.Slice()
        case ast.Delete(targets=targets):
            yield from ((each.value, each.slice, ast.Slice()) for each in targets if isinstance(each, ast.Subscript))
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr="update"), args=args, keywords=keywords)):
            named = [(ast.Constant(value=each.arg) if each.arg else None, each.value) for each in keywords]
            pairs = [*((None, each) for each in args), *named]
            yield owner, None, ast.Dict(keys=[key for key, _ in pairs], values=[value for _, value in pairs])
        case ast.Call(func=ast.Attribute(value=owner, attr="pop" | "setdefault"), args=[key, *_]):
            yield owner, key, ast.Slice()


def entries_of(value: object) -> dict[str, object]:
    """Return the entries of a mapping.

    Raises:
        NoLiteralError: It is none.
    """
    match value:
        case FileKeys(is_open=False):
            return dict(value.all())
        case dict():
            return value
    raise NoLiteralError


NOTHING_SET = object()
"""What is set where no statement sets anything: None is a value as well."""


class SetItems:
    """The entries that statements of a script set in mappings after these are made."""

    def __init__(
        self, tree: ast.Module, read: Callable[[ast.expr, int], object], met: Callable[[ast.expr, int], bool]
    ) -> None:
        """Find the statements.

        Args:
            tree: The script.
            read: Returns the value of an expression at a depth, or `Open`.
            met: Returns whether a condition holds, or raises `NoLiteralError`.
        """
        self._items, self._read, self._met = items_set(tree), read, met

    def added(self, name: str, value: object, depth: int) -> object:
        """Return a mapping of the script with what is set in it; any other value as it is."""
        if type(value) is not dict or name not in self._items:
            return value
        items, found = self._items.pop(name), dict(value)  # what is set may be made of what was there
        try:
            for each in items:
                if (holds := self._holds(each, depth)) is not False:
                    found.update(self._entries(each, depth, is_certain=holds is True))
        finally:
            self._items[name] = items
        return found

    def found(self, name: str, key: str, depth: int, *, is_once: bool = False) -> tuple[object, list[int]]:
        """Return what is set in a mapping by a key, or `NOTHING_SET`, and the lines that may set it.

        Args:
            name: The text of the mapping or object.
            key: The key or attribute.
            depth: How deep the expression is.
            is_once: Whether only what one statement alone sets is known.
        """
        items = self._items.pop(name, [])
        lines: list[int] = []
        try:
            same = [each for each in reversed(items) if each.key is not None and self._read(each.key, depth + 1) == key]
            able = [(each, holds) for each in same if (holds := self._holds(each, depth)) is not False]
            for each, holds in able:
                value = self._read(each.value, depth + 1)
                if holds and not (is_once and (len(able) > 1 or isinstance(value, Open))):
                    return value, lines
                lines.append(each.line)
        finally:
            self._items.update({name: items} if items else {})
        return NOTHING_SET, lines[:1] if is_once else lines

    def _entries(self, each: ItemSet, depth: int, *, is_certain: bool) -> dict[str, object]:
        key = ast.Constant(value=ANY_KEY) if each.key is None else each.key
        name, value = self._read(key, depth), self._read(each.value, depth)
        if each.key is None:
            pairs = value if type(value) is dict else {ANY_KEY: Open(expression=each.value)}
        else:
            pairs = {str(name): value} if not isinstance(name, Open) else {ANY_KEY: Open(expression=key)}
        if is_certain:
            return pairs
        return {key: Open(expression=ast.copy_location(ast.Slice(), each.value)) for key in pairs}

    def _holds(self, each: ItemSet, depth: int) -> bool | None:
        """Return whether the conditions above a statement hold; None where that is not in the file."""
        is_known = True
        for test, wanted in each.guards:
            try:
                if test is not None and self._met(test, depth + 1) is not wanted:
                    return False
                is_known = is_known and test is not None
            except NoLiteralError:
                is_known = False
        return True if is_known else None
