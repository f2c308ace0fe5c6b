"""What else has to change for a new card, family, column, sharding mode, recipe or command, in a scratch copy.

A card is one row of one file. A family is one row of one file; only where its layers differ, formulas follow. A column
of the tables is one field of an outcome, and what fills it. A sharding mode that `estimate`, `solve` and `advise`
answer is a new file with what differs from one GPU, and its name in three others; that it runs as well is a matter of
`training/arguments.py`. A recipe that all commands answer and that runs is a file for its trainer, one for its closed
form, an entry in each of their registries, and its name and facts, by which keys belong to it. A key of its own is a
field too, with its default in `sweeps/config.yaml`, and what the formulas read in `trial_keys.py`. A command is a
folder of four files and its line in the table of commands.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from changes import CARD, COLUMN, COMMAND, FAMILY, RECIPE, ROOT, SHARDING

from profiler.domain.architectures.families import FAMILIES
from profiler.domain.cards.gpu import KNOWN_GPUS


@pytest.mark.parametrize(
    ("change", "files"),
    [(CARD, 1), (FAMILY, 1), (COLUMN, 1), (SHARDING, 4), (RECIPE, 5), (COMMAND, 5)],
    ids=["card", "family", "column", "sharding", "recipe", "command"],
)
def test_a_change_needs_no_other_file(change, files, tmp_path):
    assert len({row.file for row in change.rows}) == files
    shutil.copytree(ROOT / "profiler", tmp_path / "profiler")
    for row in change.rows:
        file = tmp_path / row.file
        file.parent.mkdir(exist_ok=True)
        text = file.read_text(encoding="utf-8") if row.before else ""
        assert text.count(row.before) == 1
        file.write_text(text.replace(row.before, row.row + row.before), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-c", change.program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == (change.printed, 0), ran.stderr


@cache
def _words(path: Path) -> frozenset[str]:
    """Return the words of all strings of a module that are not docstrings."""
    return frozenset(_each_word(path))


def _each_word(path: Path) -> Iterator[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield from (node.value, *node.value.split())


def _other_files_that_name(names: set[str], own: set[str]) -> set[str]:
    files = {path.relative_to(ROOT / "profiler").as_posix(): path for path in (ROOT / "profiler").rglob("*.py")}
    return {name for name, path in files.items() if name not in own and names & _words(path)}


def test_other_files_name_cards_only_as_a_default_or_an_example():
    names = {text for gpu in KNOWN_GPUS.values() for text in (gpu.name, gpu.title, *gpu.other_names)}
    assert _other_files_that_name(names, {"domain/cards/gpu.py"}) == {
        "analysis/findings/answers.py",  # the cards whose memory is drawn as a line
        "analytical/formulas/vllm_memory.py",  # the default card
        "config/trials/specification.py",
        "domain/cards/capabilities.py",  # the cards on which trials were measured
        "domain/trials/trial.py",
        "emulation/main.py",
        "replay/command.py",  # a card in an example
    }


def test_other_files_name_families_only_in_models():
    models = {path.relative_to(ROOT / "profiler").as_posix() for path in (ROOT / "profiler/domain/models").glob("*.py")}
    own = {
        "domain/architectures/families.py",
        "domain/models/builtin_models.py",
        "substitutes/checkpoints/known_configs.py",
        *models,
    }
    # Also by how their names begin: "gemma3". "gpt" alone is who answers in a chat of a data set.
    names = set(FAMILIES) | {name.partition("_")[0] for name in FAMILIES} - {"gpt"}
    assert _other_files_that_name(names, own) == set()
