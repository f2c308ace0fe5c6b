"""The columns that a script reads from the rows of a data set, from its source."""

import ast
from collections.abc import Iterator, Mapping

from profiler.substitutes.rows import Column

_CONVERSATIONS = {"messages": Column.ANSWERED, "conversations": Column.TURNS}
_PROMPTS = ("prompt", "question", "problem", "instruction", "input", "context", "query", "system")
_COMPLETIONS = ("completion", "answer", "response", "output", "solution", "chosen", "rejected", "summary", "target")
_FLAGS = ("label", "labels")
_NUMBERS = ("score", "id", "idx")

_BY_TRAINER: Mapping[str, tuple[str, ...]] = {
    "DPOTrainer": ("prompt", "chosen", "rejected"),
    "RewardTrainer": ("prompt", "chosen", "rejected"),
    "KTOTrainer": ("prompt", "completion", "label"),
    "GRPOTrainer": ("prompt",),
    "RLOOTrainer": ("prompt",),
}
"""Columns that trl's trainers read themselves."""


def columns_read(source: str) -> dict[str, Column]:
    """Return the columns that functions of the script read from their argument, and those of its trainer.

    A column whose value is indexed in turn, as in ``row["prompt"][0]["content"]``, is a conversation. If the script
    reads no column and names no trainer, the column is `text`.
    """
    tree = ast.parse(source)
    found: dict[str, Column] = {}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for function in ast.walk(tree):
        if isinstance(function, ast.Lambda | ast.FunctionDef):
            for name, is_indexed in _read_from_arguments(function):
                found[name] = Column.ASKED if is_indexed else found.get(name, kind_of(name))
    for trainer, columns in _BY_TRAINER.items():
        if trainer in names:
            found |= {name: kind_of(name) for name in columns if name not in found}
    return found or {"text": Column.TEXT}


def kind_of(name: str) -> Column:
    """Return what a column of this name holds; a text where the name does not say."""
    lower = name.lower()
    if lower in _CONVERSATIONS:
        return _CONVERSATIONS[lower]
    if lower in _FLAGS:
        return Column.FLAG
    if lower in _NUMBERS:
        return Column.NUMBER
    if any(part in lower for part in _COMPLETIONS):
        return Column.COMPLETION
    return Column.PROMPT if any(part in lower for part in _PROMPTS) else Column.TEXT


def _read_from_arguments(function: ast.Lambda | ast.FunctionDef) -> Iterator[tuple[str, bool]]:
    """Yield each string by which a function indexes its first argument, and whether the value is indexed in turn."""
    if not function.args.args:
        return
    row = function.args.args[0].arg
    nodes = list(ast.walk(function))
    indexed = {id(node.value) for node in nodes if isinstance(node, ast.Subscript)}
    for node in nodes:
        name = _column(node, row)
        if name is not None:
            yield name, id(node) in indexed and name not in _CONVERSATIONS


def _column(node: ast.AST, row: str) -> str | None:
    """Return the column of ``row["name"]`` or ``row.get("name")``."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and _is(node.value, row):
        return _text(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return _text(node.args[0]) if node.args and _is(node.func.value, row) else None
    return None


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _text(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
