"""Jupyter notebooks, which are named and not read."""

import re
from collections.abc import Iterator, Mapping

from profiler.config.files.foreign_formats import foreign_module
from profiler.domain.errors import Fault

_IMPORTED = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_][\w.]*)", re.MULTILINE)


def notebook_fault(name: str, values: Mapping[str, object]) -> Fault:
    """Return the fault of a notebook, which names the program that it trains with."""
    other = foreign_module(set(_IMPORTED.findall("\n".join(_code(values)))))
    if other is not None:
        problem = f"is a notebook that imports {other.name}, and that is not read"
        return Fault(key="config", found=name, problem=problem, hint=other.hint)
    problem = "is a notebook, and notebooks are not read"
    hint = f"Convert it (jupyter nbconvert --to script {name}) and give the .py file."
    return Fault(key="config", found=name, problem=problem, hint=hint)


def _code(values: Mapping[str, object]) -> Iterator[str]:
    """Return the text of each cell with code; a line is a text or several."""
    cells = values.get("cells")
    for cell in cells if isinstance(cells, list) else []:
        source = cell.get("source") if isinstance(cell, Mapping) and cell.get("cell_type") == "code" else None
        if isinstance(source, str):
            yield source
        elif isinstance(source, list):
            yield "".join(line for line in source if isinstance(line, str))
