"""The columns that a script reads from the rows of a data set, and what it does with them, from its source."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from profiler.substitutes.columns.named_strings import NamedStrings
from profiler.substitutes.columns.row_flow import RowFlow
from profiler.substitutes.columns.shapes import Column, Shape, numbered_classes
from profiler.substitutes.columns.uses import Use, kind_of, shape_of

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


__all__ = ["Reads", "columns_read", "kind_of", "reads_of"]
