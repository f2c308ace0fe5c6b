"""What the members of an enumeration mean, in the words of the docstrings below them."""

import ast
import inspect
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from textwrap import dedent

from profiler.rendering.document import Align
from profiler.rendering.layouts.markdown import escaped, markdown_table


def meanings_of(words: type[StrEnum]) -> Mapping[str, str]:
    """Return the docstring of each member by its value; empty where it has none."""
    (declared,) = ast.parse(dedent(inspect.getsource(words))).body
    assert isinstance(declared, ast.ClassDef)
    found = dict.fromkeys(map(str, words), "")
    for statement, following in zip(declared.body, declared.body[1:], strict=False):
        if isinstance(statement, ast.Assign) and (text := _text(following)):
            (target,) = statement.targets
            assert isinstance(target, ast.Name)
            found[str(words[target.id])] = text
    return found


def table_of(words: type[StrEnum], name: str = "value") -> str:
    """Return the table of the members that have a meaning beyond their name; a list of the words if none has."""
    meanings = meanings_of(words)
    if not any(meanings.values()):
        return ", ".join(f"`{word}`" for word in words)
    return table((name, "meaning"), [(f"`{word}`", marked(text)) for word, text in meanings.items()])


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose columns all begin on the left."""
    return markdown_table(header, rows, align=Align.LEFT)


def marked(text: str) -> str:
    """Return `text` on one line as Markdown; what stands between backticks stays code."""
    parts = " ".join(text.replace("``", "`").split()).split("`")
    return "".join(
        f"`{part}`".replace("|", "\\|") if number % 2 else escaped_part(part) for number, part in enumerate(parts)
    )


def escaped_part(part: str) -> str:
    """Return the escaped words of a part of a line, with the spaces around them."""
    words = part.strip()
    return part.replace(words, escaped(words)) if words else part


def _text(statement: ast.stmt) -> str:
    """Return the text of a statement that is only a text; empty for others."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return str(statement.value.value)
    return ""
