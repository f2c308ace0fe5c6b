"""The columns that a script reads from the rows of a data set, and where the rows go.

Where rows of data sets go in a script, and what is done with their columns: names are followed, values are not.

Every name, attribute and parameter of the sources has a set of origins (`row_origins.py`): rows of a data set, or the
value of a column. `RowReader` reads the scopes again and again and hands the origins on until nothing changes. Whether
rows are one or many (a batch, a split) decides whether the value of a column is one value or a list of them.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from profiler.substitutes.columns.row_origins import FlowNotes, NamedStrings, Rows, called_name, parameters_of
from profiler.substitutes.columns.row_reader import RowReader
from profiler.substitutes.columns.uses import Column, Shape, Use, kind_of, numbered_classes, shape_of

__all__ = ["Reads", "columns_read", "kind_of", "reads_of"]


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


_BY_TRAINER: Mapping[str, tuple[str, ...]] = {
    "DPOTrainer": ("prompt", "chosen", "rejected"),
    "ORPOTrainer": ("prompt", "chosen", "rejected"),
    "CPOTrainer": ("prompt", "chosen", "rejected"),
    "RewardTrainer": ("prompt", "chosen", "rejected"),
    "KTOTrainer": ("prompt", "completion", "label"),
    "GRPOTrainer": ("prompt",),
    "RLOOTrainer": ("prompt",),
}
"""Columns that trl's trainers read themselves."""

_NAMES_A_COLUMN = ("_column", "_column_name", "text_field", "_col")
"""Ends of the names of arguments whose value is the name of a column."""

_MODEL_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids", "pixel_values", "position_ids"})
"""What tokenizers and processors make: no data set of texts has it."""


@dataclass(frozen=True)
class Reads:
    """What a script reads from its data sets."""

    columns: Mapping[str, Shape]
    """Columns with their shapes, in the order in which they are read; `text` if none is known."""
    splits: tuple[str, ...] = ()
    """Splits that are taken by name."""
    uses: Mapping[str, Use] = field(default_factory=dict)
    """Uses of every column that was seen, also of those that the script makes itself."""
    has_flags: bool = False
    """Whether labels are true or false, as trl's KTO has them."""
    sampled: int = 0
    """The largest number of values that are sampled from a column."""

    def shape(self, name: str) -> Shape:
        """Return the shape of a column, whether it was seen or not."""
        return self.columns.get(name) or _shape(name, self.uses.get(name, Use()), has_flags=self.has_flags)


def reads_of(sources: Sequence[str], arguments: Sequence[str] = ()) -> Reads:
    """Return what the functions and statements of these sources read from rows, and what their trainer reads.

    Args:
        sources: The script, then the files next to it that it imports. One that is not Python is left out.
        arguments: The command line of the script, which may name columns.
    """
    trees = [tree for source in sources if (tree := _parsed(source)) is not None]
    strings = NamedStrings(trees, arguments)
    flow = RowFlow(trees, strings)
    names = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    has_flags = "KTOTrainer" in names
    wanted = [name for name in flow.uses if name not in flow.made and name not in _MODEL_INPUTS]
    wanted += [name for trainer, columns in _BY_TRAINER.items() if trainer in names for name in columns]
    wanted += _named_by_argument(trees, strings)
    columns = {name: _shape(name, flow.uses.get(name, Use()), has_flags=has_flags) for name in dict.fromkeys(wanted)}
    return Reads(columns or {"text": Column.TEXT}, flow.splits, flow.uses, has_flags, flow.sampled)


def columns_read(source: str, arguments: Sequence[str] = ()) -> dict[str, Shape]:
    """Return the columns of `reads_of` for one source."""
    return dict(reads_of([source], arguments).columns)


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return None


def _shape(name: str, use: Use, *, has_flags: bool) -> Shape:
    found = shape_of(name, use)
    return numbered_classes(2) if found is Column.FLAG and not has_flags else found


def _named_by_argument(trees: Sequence[ast.Module], strings: NamedStrings) -> list[str]:
    """Return the columns that an option of the command line or an argument of a call names."""
    found = [text for name, text in strings.options.items() if _names_a_column(name)]
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and _names_a_column(node.arg or ""):
                found += strings.texts_of(node.value)
    return [name for name in found if name.isidentifier()]


def _names_a_column(argument: str) -> bool:
    return argument.endswith(_NAMES_A_COLUMN) and not argument.startswith("new_")
