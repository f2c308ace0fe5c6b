"""A command line against a made-up world."""

import pytest
from sweep_fakes import FakeWorld

from profiler.sweep import main


@pytest.fixture
def world():
    return FakeWorld()


@pytest.fixture
def sweep(world, tmp_path, capsys):
    """Runs a command line; gives exit code, standard output and standard error."""

    def run(*words, results_dir=tmp_path / "results"):
        where = [] if results_dir is None else [f"results_dir={results_dir}"]
        code = main([*words, *where], parts=world.parts())
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
