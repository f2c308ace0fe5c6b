"""Run the command line of a sweep against fakes."""

import logging
import sys
from pathlib import Path

import pytest
from sweep_fakes import FakeWorld

from profiler.sweep.main import main

sys.path.insert(0, str(Path(__file__).parents[1] / "execution"))  # where `witness` is


@pytest.fixture
def world():
    return FakeWorld()


@pytest.fixture(autouse=True)
def logging_as_before():
    """Restore logging: Hydra's `--info` turns on its log until the process ends."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def sweep(world, tmp_path, capsys):
    """Return a function that runs a command line and returns exit code, standard output and standard error."""

    def run(*words, results_dir=tmp_path / "results", parts=None):
        where = [] if results_dir is None else [f"results_dir={results_dir}"]
        code = main([*words, *where], parts=parts or world.parts())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
