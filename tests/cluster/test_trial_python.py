"""Trials in another Python than that of their slot: each machine looks for it, and its warmed process stays."""

import os
import sys
from dataclasses import replace
from multiprocessing import forkserver
from pathlib import Path, PurePath

import builders
import pytest
from witness import BY_LABEL, VERSIONS, planned

from profiler.cluster import remote as module
from profiler.cluster.remote import RemoteTask, by_card, record_name, run_remote, trial_python
from profiler.cluster.slots import Slot
from profiler.config.options.run_options import RunOptions
from profiler.domain.trials.trial import Backend
from profiler.execution import Interpreter
from profiler.execution.pythons import SimulatedWorkers


@pytest.fixture(autouse=True)
def _no_warmed_process_yet():
    forkserver._forkserver._stop()
    yield
    forkserver._forkserver._stop()
    module._workers.cache_clear()


def test_a_warmed_process_of_the_other_python_stays_until_a_trial_needs_another(tmp_path, monkeypatch):
    def workers(options):
        program = tmp_path / str(options.python)
        program.symlink_to(sys.executable)
        own = Interpreter(executable=str(program), environment=dict(os.environ), search_path=tuple(sys.path))
        return SimulatedWorkers(versions=VERSIONS, interpreter=own)

    monkeypatch.setattr(module, "simulated_workers", workers)
    seen = []
    for python in ("a", "a", None):
        options = RunOptions(python=PurePath(python) if python else None)
        task = RemoteTask(trials=(planned("x"),), versions=VERSIONS, options=options, program=BY_LABEL)
        result = run_remote(task)
        assert (result.problem, record_name(planned("x")) in result.files) == ("", True)
        pid = forkserver._forkserver._forkserver_pid
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        seen.append((pid, Path(words[0]).name))
    assert [name for _, name in seen] == ["a", "a", Path(sys.executable).name]
    assert len({pid for pid, _ in seen}) == 2


def test_a_machine_without_the_python_says_so(monkeypatch):
    monkeypatch.setattr(Slot, "visible", staticmethod(lambda: None))
    python = trial_python(RunOptions(python=PurePath("/no/such/python")), [Backend.SIMULATED])
    (fault,) = Slot.machine(python).faults
    assert fault.sentence().startswith("python=/no/such/python: does not run (No such file or directory).")
    assert Slot(gpus=0).node(python).faults == (fault,)


def test_emulated_trials_run_one_card_after_the_other():
    plan = [
        replace(planned(f"{gpu}{seed}"), spec=builders.spec(backend=Backend.EMULATED, gpu=gpu, seed=seed))
        for seed in (1, 2)
        for gpu in ("t4-16gb", "h100-80gb")
    ]
    assert [trial.trial_id for trial in by_card(plan)] == ["t4-16gb1", "t4-16gb2", "h100-80gb1", "h100-80gb2"]
