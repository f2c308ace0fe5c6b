"""What is known thus far of the names and columns of a script whose rows are followed."""

import ast
from collections.abc import Iterable, Sequence

from profiler.substitutes.columns.named_strings import NamedStrings
from profiler.substitutes.columns.row_origins import NOTHING, Origins
from profiler.substitutes.columns.uses import Use


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
