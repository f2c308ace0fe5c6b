"""Where rows of data sets go in a script, and what is done with their columns: names are followed, values are not.

Every name, attribute and parameter of the sources has a set of origins (`row_origins.py`): rows of a data set, or the
value of a column. `RowReader` reads the scopes again and again and hands the origins on until nothing changes. Whether
rows are one or many (a batch, a split) decides whether the value of a column is one value or a list of them.
"""

import ast
from collections.abc import Sequence

from profiler.substitutes.columns.flow_notes import FlowNotes, called_name, parameters_of
from profiler.substitutes.columns.named_strings import NamedStrings
from profiler.substitutes.columns.row_origins import Rows
from profiler.substitutes.columns.row_reader import RowReader
from profiler.substitutes.columns.uses import Use

_MOST_ROUNDS = 8
"""How often the sources are read again; each round hands origins on by one call."""

_MANY = ("examples", "samples", "batch", "rows", "batched", "instances", "elements")
"""Names of parameters that hold several rows, where no call says so."""


class RowFlow:
    """What several sources do with the columns of their data sets."""

    def __init__(self, trees: Sequence[ast.Module], strings: NamedStrings) -> None:
        self._trees = trees
        self._notes = FlowNotes(trees, strings)
        self._called = {called_name(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for _ in range(_MOST_ROUNDS):
            if not self._notes.has_changed:
                break
            self._notes.has_changed = False
            self._read_all()
        self.uses: dict[str, Use] = self._with_first_parameters()
        """Columns with their uses, in the order in which they are read."""
        self.made: set[str] = (self._notes.written - self._notes.reading) | self._notes.renamed
        """Columns that the sources make and nobody reads from the same rows before."""
        self.splits: tuple[str, ...] = tuple(self._notes.splits)
        """Splits that are taken by name."""
        self.sampled = self._notes.sampled
        """The largest number of values that are sampled from a column."""

    def _read_all(self) -> None:
        for tree in self._trees:
            RowReader(self._notes, tree, ()).read(tree.body)

    def _with_first_parameters(self) -> dict[str, Use]:
        """Take the first parameter of each function that no source calls for a row, or for several by its name."""
        before = list(self._notes.uses)
        for node in (node for tree in self._trees for node in ast.walk(tree)):
            if isinstance(node, ast.Lambda | ast.FunctionDef) and (names := parameters_of(node)):
                if _is_reward(node):
                    for name in _of_reward(node):
                        self._notes.column(name)
                elif not self._is_explained(node, names[0]):
                    self._notes.add(id(node), names[0], frozenset({Rows(many=names[0] in _MANY)}))
        self._read_all()
        return {name: self._notes.uses[name] for name in dict.fromkeys((*before, *self._notes.uses))}

    def _is_explained(self, function: ast.Lambda | ast.FunctionDef, parameter: str) -> bool:
        """Return whether it is known what a function gets: rows, or what those hand to it who call it by name."""
        if self._notes.origins((id(function),), parameter):
            return True
        return isinstance(function, ast.FunctionDef) and function.name in self._called


def _of_reward(function: ast.Lambda | ast.FunctionDef) -> list[str]:
    """Return the columns that trl hands to a reward function by the names of its parameters."""
    names = parameters_of(function)
    optional = len(function.args.defaults)
    required = names[: len(names) - optional] if optional else names
    known = {"prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"}
    return [name for name in required if name not in known]


def _is_reward(function: ast.Lambda | ast.FunctionDef) -> bool:
    return "completions" in parameters_of(function)
