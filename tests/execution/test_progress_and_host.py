"""Trials without progress, and a host without memory."""

import signal
from pathlib import Path

import pytest
from witness import LIMIT_S, is_gone, planned

from profiler.domain.runs.outcome import Status
from profiler.execution import local_slots
from profiler.execution.processes import worker_process as worker_process_module
from profiler.execution.processes.child import judge, oom_kills

# ---- stalled (row 8) -------------------------------------------------------------------------------------------------


def test_a_worker_without_progress_is_ended_as_stalled(run, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_process_module, "GRACE_S", 0.3)
    witness = run([planned("a", "beats_and_hangs"), planned("b")], stall_s=0.8, timeout_s=LIMIT_S)

    record = witness.records["a"]
    assert record.outcome.status is Status.STALLED
    assert "made no progress for 0.8 s" in record.outcome.message
    assert is_gone(int((tmp_path / "pids.txt").read_text()))
    assert witness.records["b"].outcome.status is Status.OK
    assert not list(tmp_path.rglob("*.beat"))


@pytest.mark.parametrize(("label", "stall_s"), [("beats_on", 8.0), ("never_beats", 0.5)])
def test_a_worker_with_progress_or_without_any_heartbeat_is_not_ended(run, label, stall_s):
    assert run([planned("a", label)], stall_s=stall_s).records["a"].outcome.status is Status.OK


def test_a_time_out_is_not_a_stall(run, monkeypatch):
    monkeypatch.setattr(worker_process_module, "GRACE_S", 0.3)
    assert run([planned("a", "beats_and_hangs")], stall_s=LIMIT_S, timeout_s=1.5).records["a"].outcome.status is (
        Status.TIMEOUT
    )


# ---- the host's OOM killer (row 4) -----------------------------------------------------------------------------------


def test_a_killed_worker_is_the_host_out_of_memory_if_the_kernel_counted_a_kill(run, monkeypatch):
    before_and_after = iter((3, 4))
    monkeypatch.setattr(local_slots, "oom_kills", lambda: next(before_and_after))
    record = run([planned("a", "killed")]).records["a"]
    assert record.outcome.status is Status.HOST_OOM
    assert "the kernel killed the worker" in record.outcome.message


def test_a_killed_worker_without_such_a_count_is_killed(run, monkeypatch):
    monkeypatch.setattr(local_slots, "oom_kills", lambda: 3)
    assert run([planned("a", "killed")]).records["a"].outcome.status is Status.KILLED


def test_another_signal_is_not_the_oom_killer(tmp_path):
    outcome = judge(
        exit_code=-signal.SIGSEGV,
        timed_out=False,
        timeout_s=1,
        wall_s=1,
        stderr_path=tmp_path / "none",
        oom_killed=True,
    )
    assert outcome.status is Status.FAILED


def test_the_kernel_would_kill_a_worker_before_the_sweep(run, tmp_path):
    run([planned("a", "notes_oom_score")])
    assert int((tmp_path / "score.txt").read_text()) > int(Path("/proc/self/oom_score_adj").read_text())


VERSION_2 = {"proc/self/cgroup": "0::/jobs/a\n"}
VERSION_1 = {"proc/self/cgroup": "9:cpu:/x\n4:memory:/docker/1\n"}
EVENTS = "low 0\nhigh 0\nmax 7\noom 3\noom_kill 2\n"


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({**VERSION_2, "groups/jobs/a/memory.events": EVENTS}, 2),
        ({**VERSION_2, "groups/memory.events": EVENTS, "proc/vmstat": "oom_kill 9\n"}, 2),
        ({**VERSION_2, "proc/vmstat": "nr_free 1\noom_kill 9\n"}, 9),
        ({**VERSION_1, "groups/memory/docker/1/memory.oom_control": "under_oom 0\noom_kill 5\n"}, 5),
        ({**VERSION_1, "groups/memory/memory.oom_control": "under_oom 0\noom_kill 6\n"}, 6),
        ({"proc/vmstat": "oom_kill 1\n"}, 1),
        ({"proc/vmstat": "nr_free 1\n"}, None),
        ({}, None),
    ],
)
def test_the_counters_of_the_kernel_are_found(tmp_path, files, count):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert oom_kills(proc=tmp_path / "proc", cgroups=tmp_path / "groups") == count
