"""Values that a script takes from its command line or environment, and the defaults that it has for them."""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


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
        """Read the options of argparse in `tree`.

        Args:
            tree: The script.
            functions: Its functions by name.
        """
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
    match action:
        case ast.Constant(value="store_true"):
            return ast.Constant(value=False)
        case ast.Constant(value="store_false"):
            return ast.Constant(value=True)
    return None


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
    match call.func:
        case ast.Attribute(value=ast.Attribute(attr="environ") | ast.Name(id="environ"), attr="get"):
            return True
        case ast.Attribute(attr="getenv") | ast.Name(id="getenv"):
            return True
    return False
