"""Docstrings of modules and packages: what opens them, and their sections of bullets."""

import ast
import re
from collections.abc import Mapping
from pathlib import Path

_SECTION = re.compile(r"\n\n([A-Z][^\n:]*):\n(?=    - )")


PROFILER = Path(__file__).parents[2] / "profiler"


def limits_of(package: str) -> Mapping[str, tuple[str, ...]]:
    """Return the sections of bullets of a package's docstring, by title."""
    return sections(docstring_of(PROFILER / package / "__init__.py"))


def docstring_of(path: Path) -> str:
    """Return the docstring of a file; empty if it has none."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def opening(docstring: str) -> str:
    """Return what comes before the first section."""
    return _SECTION.split(docstring)[0]


def sections(docstring: str) -> Mapping[str, tuple[str, ...]]:
    """Return the bullets of each section by its title, each on one line."""
    _, *found = _SECTION.split(docstring)
    return {title: _bullets(text) for title, text in zip(found[::2], found[1::2], strict=True)}


def _bullets(text: str) -> tuple[str, ...]:
    bullets = (" ".join(bullet.split()) for bullet in re.split(r"^    - ", text, flags=re.MULTILINE))
    return tuple(f"{bullet[0].upper()}{bullet[1:]}" for bullet in bullets if bullet)
