"""The planted faults: each can still be planted, and names a test that exists; planting them is the tool's task."""

import ast
from dataclasses import replace

import pytest

from maintenance.planted_faults.faults import ROOT, planted, read_faults

FAULTS = read_faults()


def test_names_are_different():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 45


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_planted_and_names_a_test(fault):
    changed = planted(fault, (ROOT / fault.file).read_text())
    if fault.file.endswith(".py"):
        ast.parse(changed)  # a fault that is no Python would fail any test
    file, _, name = fault.test.partition("::")
    tests = {node.name for node in ast.walk(ast.parse((ROOT / file).read_text())) if isinstance(node, ast.FunctionDef)}
    assert not name or name in tests


def test_a_text_that_is_not_there_or_twice_is_refused():
    fault = replace(FAULTS[0], text="x")
    for whole in ("", "x x"):
        with pytest.raises(ValueError, match="not once"):
            planted(fault, whole)
