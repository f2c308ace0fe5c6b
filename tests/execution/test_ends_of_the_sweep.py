"""A sweep in its own process: killed, interrupted, and two sweeps in one folder."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from witness import LIMIT_S, is_gone, noted_pids, wait_until

from profiler.storage.stores.record_store import RecordStore

_SWEEP = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from witness import BY_LABEL, VERSIONS, Witness, planned
from profiler.config.options.run_options import RunOptions
from profiler.execution import run_trials
from profiler.storage.stores.record_store import RecordStore

{before}

class Printer(Witness):
    def started(self, trial):
        print("started", trial.trial_id, flush=True)

    def finished(self, trial, record):
        print("finished", trial.trial_id, record.outcome.peaks.allocated_bytes, flush=True)

run_trials(
    [planned(name, label) for name, label in {plan!r}], options=RunOptions(jobs={jobs}, timeout_s=300),
    store=RecordStore(Path({folder!r})), versions=VERSIONS, observer=Printer(), program=BY_LABEL,
)
"""


def _sweep(folder: Path, plan: list[tuple[str, str]], jobs: int = 1, before: str = "") -> subprocess.Popen[str]:
    program = _SWEEP.format(tests=str(Path(__file__).parent), plan=plan, folder=str(folder), jobs=jobs, before=before)
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _pids_when_written(folder: Path) -> list[int]:
    wait_until(lambda: bool(noted_pids(folder)))
    return noted_pids(folder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_sweep_leaves_neither_worker_nor_grandchild(store, number, tmp_path):
    sweep = _sweep(tmp_path, [("a", "ok"), ("b", "hangs_with_grandchildren")])
    pids = _pids_when_written(tmp_path)

    os.kill(sweep.pid, number)
    sweep.wait(timeout=LIMIT_S)

    assert all(is_gone(pid) for pid in pids)
    assert store.find("a") is not None
    assert store.find("b") is None


def test_after_a_killed_sweep_the_same_command_continues(store, tmp_path):
    sweep = _sweep(tmp_path, [("a", "ok"), ("b", "hangs_with_grandchildren")])
    _pids_when_written(tmp_path)
    sweep.kill()
    sweep.wait(timeout=LIMIT_S)

    again = _sweep(tmp_path, [("a", "ok"), ("b", "ok")])
    printed, _ = again.communicate(timeout=LIMIT_S)

    assert [line.split()[:2] for line in printed.splitlines()] == [
        ["finished", "a"],
        ["started", "b"],
        ["finished", "b"],
    ]


def test_ctrl_c_ends_the_workers_and_the_sweep(store, tmp_path):
    sweep = _sweep(tmp_path, [("a", "hangs_with_grandchildren")])
    pids = _pids_when_written(tmp_path)

    os.kill(sweep.pid, signal.SIGINT)
    code = sweep.wait(timeout=LIMIT_S)

    assert code == -signal.SIGINT
    assert all(is_gone(pid) for pid in pids)


_INTERRUPTED_AFTER_THE_FORK = """
import os, signal
from witness import is_gone, noted_pids, wait_until
from profiler.storage.files.trial_files import Lock
from profiler.execution.processes.warm import WarmProcess

folder = Path(FOLDER)
fork, release = WarmProcess.fork, Lock.release

def fork_and_interrupt(self, job):
    process = fork(self, job)
    wait_until(lambda: noted_pids(folder))
    os.kill(os.getpid(), signal.SIGINT)
    return process

def say_and_release(self):
    print("released when all are gone:", all(is_gone(pid, within_s=20) for pid in noted_pids(folder)), flush=True)
    release(self)

WarmProcess.fork, Lock.release = fork_and_interrupt, say_and_release
"""


def test_a_signal_right_after_the_fork_does_not_release_the_lock_of_a_running_trial(tmp_path):
    """Otherwise another sweep would run the trial at the same time."""
    before = _INTERRUPTED_AFTER_THE_FORK.replace("FOLDER", repr(str(tmp_path)))
    sweep = _sweep(tmp_path, [("a", "hangs_with_grandchildren")], before=before)
    printed, errors = sweep.communicate(timeout=LIMIT_S)

    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert printed.splitlines() == ["released when all are gone: True"]


def test_two_sweeps_in_one_folder_run_each_trial_once(store, tmp_path):
    plan = [(name, "slow_ok") for name in "abcd"]
    sweeps = [_sweep(tmp_path, plan), _sweep(tmp_path, plan)]
    printed = [sweep.communicate(timeout=LIMIT_S)[0] for sweep in sweeps]

    ran = [line.split()[1] for line in (tmp_path / "notes.txt").read_text().splitlines() if line.startswith("ran")]
    assert sorted(ran) == list("abcd")
    for text in printed:
        finished = {line.split()[1]: line.split()[2] for line in text.splitlines() if line.startswith("finished")}
        stored = {name: str(RecordStore(tmp_path).find(name).outcome.peaks.allocated_bytes) for name in "abcd"}
        assert finished == stored
    assert not list(tmp_path.glob("*.lock"))


def test_a_full_disk_is_an_error_and_afterwards_the_same_command_continues(store, tmp_path):
    plan = [("a", "ok"), ("b", "ok")]
    full = _sweep(tmp_path, plan, before="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))")
    _, errors = full.communicate(timeout=LIMIT_S)

    assert full.returncode == 1
    assert "could not be written (File too large)" in errors.splitlines()[-1]
    assert store.read_all() == ()
    assert not list(tmp_path.rglob("*.part"))
    again = _sweep(tmp_path, plan)
    printed, _ = again.communicate(timeout=LIMIT_S)
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("finished")] == ["a", "b"]
