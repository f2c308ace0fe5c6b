"""What a script declares, and what is given with it.

Functions, classes with fields, and values of its command line with defaults.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeGuard

from profiler.config.files.own_sections import FileKeys
from profiler.config.foreign_text import ModuleReader
from profiler.config.scripts.names import RECIPES, TRAINERS, called_name

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


class Declared:
    """The declarations of one script."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions: dict[str, ast.FunctionDef] = {}
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
        self._several: dict[str, ast.Tuple] = {}
        self._add_parsed(tree)
        self.unseen: set[str] = set()
        """Classes of modules that are not here, taken as the arguments of a trainer of trl that gets them."""
        self._take_unseen(tree)
        self._made = list(_made(tree))

    def derived(self, *bases: str) -> dict[str, str]:
        """Return the classes of the script that derive from one of `bases`, each with that one."""
        return {
            name: each.of_trl for name, each in self.classes.items() if each.of_trl in bases and name != each.of_trl
        }

    def made_by(self, classes: Collection[str]) -> set[str]:
        """Return the names of the script for what a parser fills, or a call of one of `classes` makes."""
        return {name for name, kind in self.parsed.items() if kind.of_trl} | {
            name for name, called in self._made if called in classes
        }

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
        bases = [base.id if isinstance(base, ast.Name) else base.attr for base in node.bases if _has_name(base)]
        above = [self.classes[base] for base in bases if base in self.classes]
        own = dict(_fields(node))
        names = frozenset(
            each.target.id
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        )
        of_trl = next((each.of_trl for each in above if each.of_trl), "")
        own.update({} if of_trl else _constants(node))
        inherited = {key: value for each in above for key, value in each.defaults.items()}
        self.classes[node.name] = Fields(
            name=node.name,
            of_trl=of_trl,
            defaults={**inherited, **own},
            names=names.union(*(each.names for each in above)),
        )

    def _add_parsed(self, tree: ast.Module) -> None:
        parsers: dict[str, list[Fields]] = {}
        makers = {name: list(_parser_calls(function)) for name, function in self.functions.items()}
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple() as several):
                    self._several[name] = several
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call):
                    calls = [call] if called_name(call) in PARSERS else makers.get(called_name(call), [])
                    if len(calls) == 1:
                        parsers[name] = list(self._types(calls[0]))
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Call() as call):
                    types = self._filled(call, parsers)
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

    def _take_unseen(self, tree: ast.Module) -> None:
        for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node) in TRAINERS]:
            for name in [ast.unparse(each.value) for each in call.keywords if each.arg == "args"]:
                kind = self.parsed.get(name)
                if kind is not None and not (kind.of_trl or kind.names or kind.defaults):
                    of_trl = f"{TRAINERS[called_name(call)].in_classes}Config"
                    self.parsed[name] = replace(kind, of_trl=of_trl)
                    self.unseen.add(kind.name)

    def _filled(self, call: ast.Call, parsers: dict[str, list[Fields]]) -> list[Fields]:
        match call.func:
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


def derived_trainers(tree: ast.Module, trainers: Collection[str]) -> dict[str, str]:
    """Return the classes of the script that derive from a trainer, each with that one."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            bases = [base.id if isinstance(base, ast.Name) else base.attr for base in node.bases if _has_name(base)]
            trainer = next((found.get(base, base) for base in bases if base in trainers or base in found), None)
            if trainer is not None:
                found[node.name] = trainer
    return found


def own_trainers(tree: ast.Module, trainers: Collection[str]) -> dict[str, int]:
    """Return the classes of the script with the name of a trainer of trl that derive from none, with their lines."""
    of_trl = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "trl"
        for alias in node.names
    }
    derived = derived_trainers(tree, of_trl.union(trainers))
    classes = {node.name: node.lineno for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return {name: line for name, line in classes.items() if name in trainers and name not in derived}


def _has_name(base: ast.expr) -> TypeGuard[ast.Name | ast.Attribute]:
    return isinstance(base, ast.Name | ast.Attribute)


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
class OutsideValue:
    """A value that the script takes from outside."""

    name: str
    """An option, ``--rows``, or an environment variable, ``$ROWS``."""
    default: ast.expr | None
    """None where the script states none."""
    keys: tuple[str, ...] = ()
    """The names of an option as arguments of a command line have them: ``max_rows``; none of a variable."""
    is_off: bool = False
    """Whether the option stands for false where it is passed."""


class OutsideValues:
    """The values that a script takes from outside, where each has one default."""

    def __init__(self, tree: ast.Module, functions: Mapping[str, ast.FunctionDef]) -> None:
        """Read the options of argparse in a script, with its functions by name."""
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        self._options: dict[str, OutsideValue | None] = {}
        for call in calls:
            for name, found in _option(call):
                self._options[name] = None if name in self._options else found
        self._namespaces = set(_namespaces(tree, functions))

    def options(self) -> Iterator[tuple[str, OutsideValue]]:
        """Return every option that is declared once, with the name of its attribute."""
        for name, found in self._options.items():
            if found is not None:
                yield name, found

    def is_namespace(self, name: str) -> bool:
        """Return whether a name stands for what argparse returns."""
        return name in self._namespaces

    def find(self, expression: ast.expr) -> OutsideValue | None:
        """Return what `expression` reads; None unless it is an option or a variable with a default."""
        match expression:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in self._namespaces:
                return self._options.get(name)
            case ast.Call(args=[ast.Constant(value=str(name)), default], keywords=[]) if _reads_environment(expression):
                return OutsideValue(name=f"${name}", default=default)
        return None


def _option(call: ast.Call) -> Iterator[tuple[str, OutsideValue]]:
    """Return the attribute of an `add_argument` call with its option."""
    match call.func:
        case ast.Attribute(attr="add_argument"):
            pass
        case _:
            return
    flags = [each.value for each in call.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    named = {each.arg: each.value for each in call.keywords if each.arg is not None}
    long = [flag for flag in flags if flag.startswith("--")]
    if not long:
        return
    stated = named.get("dest")
    name = stated.value if isinstance(stated, ast.Constant) else long[0].removeprefix("--").replace("-", "_")
    default = named.get("default", _of_switch(named.get("action")))
    yield (
        str(name),
        OutsideValue(
            name=long[0],
            default=None if default is None else _as_argparse_does(named.get("type"), default),
            keys=tuple(flag.lstrip("-").replace("-", "_") for flag in flags if flag.startswith("-")),
            is_off=_is_store_false(named.get("action")),
        ),
    )


def _is_store_false(action: ast.expr | None) -> bool:
    return isinstance(action, ast.Constant) and action.value == "store_false"


def _as_argparse_does(kind: ast.expr | None, default: ast.expr) -> ast.expr:
    """Return a default after the type of its option: argparse converts one that is text."""
    match kind, default:
        case ast.Name(id="int" | "float"), ast.Constant(value=str()):
            return ast.Call(func=kind, args=[default], keywords=[])
    return default


def _of_switch(action: ast.expr | None) -> ast.expr | None:
    """Return the default of a switch, which argparse knows."""
    known: Mapping[object, bool] = {"store_true": False, "store_false": True}
    value = action.value if isinstance(action, ast.Constant) else None
    return ast.Constant(value=known[value]) if value in known else None


def _parses(call: ast.expr, functions: Mapping[str, ast.FunctionDef]) -> bool:
    """Return whether a call is of `parse_args`, or of a function of the script that returns what this does."""
    match call:
        case ast.Call(func=ast.Attribute(attr="parse_args")):
            return True
        case ast.Call(func=ast.Name(id=name)) if name in functions:
            returned = [node.value for node in ast.walk(functions[name]) if isinstance(node, ast.Return)]
            parsed = [
                value for value in returned if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
            ]
            return len(returned) == 1 and len(parsed) == 1 and _parses(parsed[0], {})
    return False


def _namespaces(tree: ast.Module, functions: Mapping[str, ast.FunctionDef]) -> Iterator[str]:
    """Return the names of what `parse_args` returns, also as the parameter of a function that gets it."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _parses(value, functions):
                yield name
            case ast.Call(func=ast.Name(id=name), args=[first]) if name in functions and _parses(first, functions):
                yield from (each.arg for each in functions[name].args.args[:1])
            case ast.Assign(
                targets=[ast.Tuple(elts=[ast.Name(id=name), _])],
                value=ast.Call(func=ast.Attribute(attr="parse_known_args")),
            ):
                yield name


def _reads_environment(call: ast.Call) -> bool:
    return re.search(r"\b(?:environ\.get|getenv)$", ast.unparse(call.func)) is not None
