"""Workers in another Python: its program, its variables and its packages, and those of the sweep as before."""

import os
import sys
from dataclasses import replace
from multiprocessing import forkserver, spawn
from pathlib import Path

import pytest
from witness import Witness, planned

from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import Interpreter
from profiler.execution.processes.warm import WarmProcessError
from profiler.execution.pythons import starting_with


@pytest.fixture(autouse=True)
def _no_warmed_process_yet():
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()


def other_python(folder: Path, name: str, **variables: str) -> Interpreter:
    """This Python under another name, with a variable and a folder of packages of its own."""
    program = folder / f"python-{name}"
    program.symlink_to(sys.executable)
    packages = folder / f"packages-{name}"
    packages.mkdir()
    return Interpreter(
        executable=str(program),
        environment={**os.environ, "WHICH": name, **variables},
        search_path=(*sys.path, str(packages)),
    )


def test_while_processes_start_everything_is_the_other_pythons_and_afterwards_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("ONLY_HERE", "1")
    before = (spawn.get_executable(), dict(os.environ), list(sys.path))
    other = Interpreter(executable="/other/python", environment={"WHICH": "other"}, search_path=("/a", "/b"))
    with pytest.raises(RuntimeError, match="inside"), starting_with(other):
        assert os.fsdecode(spawn.get_executable()) == "/other/python"
        assert (dict(os.environ), sys.path) == ({"WHICH": "other"}, ["/a", "/b"])
        raise RuntimeError("inside")
    assert (spawn.get_executable(), dict(os.environ), list(sys.path)) == before
    with starting_with(None):
        assert (spawn.get_executable(), dict(os.environ), list(sys.path)) == before


@pytest.mark.slow
def test_each_trial_runs_in_its_python_one_python_after_the_other(run, tmp_path):
    pythons = {1: other_python(tmp_path, "first"), 2: other_python(tmp_path, "second"), 3: None}

    def trial(name: str, seed: int) -> PlannedTrial:
        made = planned(name, "notes_its_python")
        return replace(made, spec=replace(made.spec, seed=seed))

    witness, meanwhile = Witness(), []
    run(
        [trial("a", 1), trial("b", 2), trial("c", 1), trial("d", 3)],
        witness=witness,
        jobs=2,
        interpreter_of=lambda spec: pythons[spec.seed],
        meanwhile=lambda: meanwhile.append(len(witness.calls)),
    )

    assert meanwhile == [0]  # once, and before the first trial starts
    assert {record.outcome.status for record in witness.records.values()} == {Status.OK}
    noted = {line.split()[0]: line.split()[1:] for line in (tmp_path / "pythons.txt").read_text().splitlines()}
    assert noted["a"] == noted["c"] == ["python-first", "first", "packages-first"]
    assert noted["b"] == ["python-second", "second", "packages-second"]
    assert noted["d"] == [Path(sys.executable).name, "none", "none"]
    assert [name for what, name in witness.calls if what == "finished"][2:] == ["b", "d"]


@pytest.mark.slow
def test_a_python_that_ends_at_once_ends_the_sweep_and_the_next_one_has_its_own(run, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\nexit 7\n")
    broken.chmod(0o755)
    other = Interpreter(executable=str(broken), environment=dict(os.environ), search_path=tuple(sys.path))

    with pytest.raises(WarmProcessError, match="was restarted 2 times"):
        run([planned("a")], interpreter_of=lambda _: other)
    run([planned("b")])
