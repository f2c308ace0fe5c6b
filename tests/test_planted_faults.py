"""The planted faults: each can still be planted, and names a test that exists; planting them is the tool's task."""

import ast
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from matrix import with_further

from maintenance.planted_faults.faults import ROOT, planted, read_faults

FAULTS = read_faults()


def test_names_are_different():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 45


@cache
def functions_of(file: str) -> set[str]:
    """Return the functions of a file; many faults name the same one."""
    return {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_names_a_test(fault):
    changed = planted(fault, (ROOT / fault.file).read_text())
    if fault.file.endswith(".py"):
        ast.parse(changed)  # a fault that is no Python would fail any test
    file, _, name = fault.test.partition("::")
    assert not name or name in functions_of(file)


def unknown_names(folder: Path) -> str:
    """Return what ruff says of names that the modules of a folder use and do not have."""
    words = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821", "--output-format=concise", folder]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout


def test_no_fault_uses_a_name_that_its_file_does_not_have(tmp_path):
    """Such a fault fails any test, by a NameError, and shows nothing of the one that it names."""
    for number, fault in enumerate(fault for fault in FAULTS if fault.file.endswith(".py")):
        (tmp_path / f"fault_{number}.py").write_text(planted(fault, (ROOT / fault.file).read_text()))
    assert "F821" not in unknown_names(tmp_path)
    (tmp_path / "planted.py").write_text("print(told)\n")
    assert "Undefined name `told`" in unknown_names(tmp_path)


def test_a_text_that_is_not_there_or_twice_is_refused():
    fault = replace(FAULTS[0], text="x")
    for whole in ("", "x x"):
        with pytest.raises(ValueError, match="not once"):
            planted(fault, whole)


def test_what_make_test_keeps_of_the_cases_is_among_them():
    """A name that no case has any more would leave a test to `make matrix` alone."""
    first, second = with_further(["a", "b"], ["a"])
    assert (first, second.values) == ("a", ("b",))
    for kept in (["c"], ["a", "c"], []):
        with pytest.raises(ValueError, match="not all among the cases"):
            with_further(["a", "b"], kept)
