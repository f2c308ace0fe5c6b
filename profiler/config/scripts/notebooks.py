"""Jupyter notebooks: the code of their cells, read as one script whose lines are named by cell."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate

from profiler.config.foreign_text import ForeignTextError
from profiler.config.scripts.evaluation import Given
from profiler.config.scripts.training_script import script_part
from profiler.config.trl.parts import JobFile

_MAGIC = re.compile(r"^(?P<indent>[ \t]*)(?:[!%?].*|[A-Za-z_][\w.]*\?{1,2}[ \t]*)$", re.MULTILINE)
"""A line for the shell or for IPython."""

_CELL_MAGIC = re.compile(r"\A\s*%%(?!time|capture)")
"""The first line of a cell that is no Python."""

_CONTINUES = re.compile(r"^([ \t]*[!%].*)\\\n", re.MULTILINE)


def notebook_part(name: str, values: Mapping[str, object], given: Given | None = None) -> JobFile:
    """Return what the cells with code of a notebook say.

    Args:
        name: The notebook, for sentences.
        values: Its content.
        given: What is given with it; None if nothing is.

    Raises:
        ForeignTextError: It has no code, or its code is not valid Python.
    """
    cells = list(_code(values))
    numbers, texts = [number for number, _ in cells], [_python(text) for _, text in cells]
    if not any(text.strip() for text in texts):
        raise ForeignTextError("is a notebook without code")
    starts = list(accumulate((text.count("\n") + 1 for text in texts), initial=0))

    def where(line: int) -> str:
        place = max(bisect_right(starts, line - 1) - 1, 0)
        return f"line {line - starts[place]} of cell {numbers[place]} of {name}"

    return script_part(name, "\n".join(texts), given, where=where)


def _python(text: str) -> str:
    """Return the code of a cell with as many lines, of which those for IPython are passed."""
    if _CELL_MAGIC.match(text):
        return "\n" * text.count("\n")
    while _CONTINUES.search(text):
        text = _CONTINUES.sub(lambda found: f"{found[1].rstrip()}; \n!", text, count=1)
    return _MAGIC.sub(lambda found: f"{found['indent']}pass", text)


def _code(values: Mapping[str, object]) -> Iterator[tuple[int, str]]:
    """Return the number of each cell with code, from 1, and its text; a line is a text or several."""
    cells = values.get("cells")
    for number, cell in enumerate(cells if isinstance(cells, list) else [], 1):
        source = cell.get("source") if isinstance(cell, Mapping) and cell.get("cell_type") == "code" else None
        if isinstance(source, str):
            yield number, source
        elif isinstance(source, list):
            yield number, "".join(line for line in source if isinstance(line, str))
