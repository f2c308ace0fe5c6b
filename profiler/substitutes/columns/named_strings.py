"""Texts that a script's expressions stand for: constants, defaults of its options, and words of its command line."""

import ast
from collections.abc import Iterator, Sequence


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
