"""The import contracts name every package that they are about, so that a new one cannot be missed."""

import ast
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CONTRACTS = {
    contract["name"]: contract
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
}

TRAINING = {"torch", "trl", "transformers", "peft", "bitsandbytes", "accelerate"}

WORKERS = {
    "profiler.callback": "is in the user's process, which trains",
    "profiler.emulation": "its folder inside runs in the emulated process",
    "profiler.measurement": "reads torch's counters in a worker",
    "profiler.scripts": "runs in the process of a script",
    "profiler.simulation": "runs in a worker",
    "profiler.substitutes": "runs in the process of a script",
    "profiler.training": "runs in a worker",
    "profiler.worker": "is what runs there",
    "profiler.worker_imports": "is what a worker imports before it is forked",
}
"""Packages that may import torch, and why."""

OF_TRAINERS = {
    "profiler.callback": "is given to a trainer of transformers",
    "profiler.scripts": "watches trainers from outside",
    "profiler.simulation": "simulates what these libraries run",
    "profiler.substitutes": "replaces their models and data",
    "profiler.training": "is the trainer",
    "profiler.worker": "starts it",
    "profiler.worker_imports": "imports them before a worker is forked",
    "profiler.emulation": "its folder inside runs in the emulated process",
}

WITH_HYDRA = {"profiler.sweep": "is the entry point"}


def contract(start: str) -> dict:
    (found,) = [each for name, each in CONTRACTS.items() if name.startswith(start)]
    return found


def packages() -> set[str]:
    """All packages and modules of the top level, but those that only pass words on."""
    found = {path for path in (ROOT / "profiler").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    return {f"profiler.{path.stem}" for path in found} - {"profiler.__init__", "profiler.__main__"}


@cache
def third_party() -> frozenset[str]:
    """Each library that any module imports."""
    names: set[str] = set()
    for path in (*(ROOT / "profiler").rglob("*.py"), *(ROOT / "maintenance").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                names |= {each.value.partition(".")[0] for each in node.args[:1] if isinstance(each, ast.Constant)}
    return frozenset(names - set(sys.stdlib_module_names) - {"profiler", "maintenance"})


@pytest.mark.parametrize(
    ("start", "exempt"),
    [
        ("The parent process never imports torch", WORKERS),
        ("Only training and simulation know trl", OF_TRAINERS),
        ("Hydra ends at the sweep", WITH_HYDRA),
    ],
)
def test_every_package_is_in_a_contract_or_exempt_with_a_reason(start, exempt):
    listed = {name for name in contract(start)["source_modules"] if name.startswith("profiler")}
    assert listed == packages() - set(exempt)
    assert set(exempt) <= packages()


def test_no_package_of_trainers_is_missing():
    assert set(contract("The parent process never imports torch")["forbidden_modules"]) == TRAINING
    assert set(contract("Only training and simulation know trl")["forbidden_modules"]) == TRAINING - {"torch"}


def test_the_vocabulary_may_import_no_library_that_is_used_anywhere():
    assert set(contract("The vocabulary")["forbidden_modules"]) == third_party()


def test_the_pure_core_may_import_none_but_those_that_compute():
    allowed = {"numpy", "pandas", "yaml"}
    assert set(contract("The pure core")["forbidden_modules"]) == third_party() - allowed


def test_a_contract_that_misses_a_package_is_seen(monkeypatch):
    """The comparison of this file fails where a package is not listed."""
    monkeypatch.setitem(contract("Hydra ends"), "source_modules", ["profiler.config"])
    with pytest.raises(AssertionError):
        test_every_package_is_in_a_contract_or_exempt_with_a_reason("Hydra ends at the sweep", WITH_HYDRA)
