"""Every private name of another library that the project uses is registered, with the file that uses it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiler.seams.libraries import SEAMS
from profiler.seams.seam import Seam, SeamUser, seams_of

PROFILER = Path(__file__).parents[2] / "profiler"
LIBRARIES = ("torch", "trl", "transformers", "peft", "bitsandbytes", "accelerate", "datasets", "huggingface_hub")
FOLDERS = ("training", "scripts", "simulation", "substitutes", "measurement", "worker", "callback")
FILES = sorted(path for folder in FOLDERS for path in (PROFILER / folder).rglob("*.py"))

OWN_ATTRIBUTES = {"_overwritten"}
"""Set by the project itself on objects of other libraries."""


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.Module) -> Iterator[str]:
    """Names with one underscore that the file imports from a library, or reads from an object that is not its own."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    own |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and of_self(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            yield from (alias.name for alias in node.names if private(alias.name))
            yield from filter(private, (node.module or "").split("."))
        elif isinstance(node, ast.Attribute) and private(node.attr) and not of_self(node) and node.attr not in own:
            yield node.attr


def of_self(node: ast.Attribute) -> bool:
    value = node.value
    return (isinstance(value, ast.Name) and value.id in ("self", "cls", "os", "_state")) or (
        isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id == "super"
    )


def overridden(tree: ast.Module) -> Iterator[str]:
    """Private methods that the file calls on `super()`: it overrides them."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and private(node.attr)
            and isinstance(node.value, ast.Call)
            and of_self(node)
        ):
            yield node.attr


def relied_on_by(path: Path) -> list[Seam]:
    return [seam for seam in SEAMS if path.relative_to(PROFILER).as_posix() in seam.used_by]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PROFILER).as_posix())
def test_private_names_are_registered(path: Path) -> None:
    tree = ast.parse(path.read_text())
    texts = [f"{seam.key} {seam.expected} {seam.why}" for seam in relied_on_by(path)]
    used = {*private_names(tree), *overridden(tree)} - OWN_ATTRIBUTES
    missing = sorted(name for name in used if not any(name in text for text in texts))
    assert not missing, f"add to profiler/seams/libraries/, with {path.relative_to(PROFILER)} in used_by: {missing}"


@pytest.mark.parametrize("file", sorted({file for seam in SEAMS for file in seam.used_by}))
def test_a_file_that_uses_a_seam_exists(file: str) -> None:
    assert (PROFILER / file).is_file()


def test_each_seam_belongs_to_a_part() -> None:
    assert set(seams_of(SEAMS, frozenset(SeamUser))) == set(SEAMS)
