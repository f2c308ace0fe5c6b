"""A command with all its processes: how it ends, and that nothing of it stays."""

import mmap
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from profiler.domain.errors import UsageError
from profiler.measurement.samples.host_usage import process_tree
from profiler.run import job
from profiler.run.job import _removed_at_the_end, end_descendants, run_to_the_end

ESCAPES = """
import os, signal, sys, time
for _ in range(2):  # a daemon: a session of its own, and a parent that has ended
    if os.fork(): os._exit(0) if _ else os.wait()
    else:
        os.setsid()
        continue
    break
else:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    open(sys.argv[1], "w").write(str(os.getpid()))
    time.sleep(600)
"""


def command(text: str, *words: object) -> list[str]:
    return [sys.executable, "-c", text, *map(str, words)]


def environment() -> dict[str, str]:
    return dict(os.environ)


def run(text: str, *words: object, timeout_s: float = 60):
    return run_to_the_end(command(text, *words), environment(), timeout_s=timeout_s)


def is_there(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


@pytest.mark.parametrize(("ends", "code"), [("sys.exit(0)", 0), ("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", -9)])
def test_a_command_ends_as_it_does(ends, code):
    end = run(f"import os, sys; {ends}")
    assert (end.exit_code, end.timed_out, end.left) == (code, False, ())


def test_a_command_that_cannot_be_started_is_one_sentence():
    with pytest.raises(UsageError) as refused:
        run_to_the_end(["no-such-program"], environment(), timeout_s=5)
    (fault,) = refused.value.faults
    assert (fault.key, fault.found) == ("command", "no-such-program")
    assert fault.problem == "cannot be started (No such file or directory)"


def test_a_command_that_takes_too_long_is_ended(monkeypatch):
    monkeypatch.setattr(job, "_GRACE_S", 0.2)
    end = run("import time; time.sleep(600)", timeout_s=0.1)
    assert (end.timed_out, end.exit_code) == (True, -signal.SIGKILL)


def test_processes_have_time_for_their_finally_blocks(tmp_path):
    text = "import sys, time\ntry: print('ready', flush=True); time.sleep(600)\nfinally: open(sys.argv[1], 'w')"
    before = process_tree()
    with subprocess.Popen(
        command(text, tmp_path / "ended"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        end_descendants(grace_s=60, except_for=before)
    assert (tmp_path / "ended").exists()


def test_a_process_that_left_its_group_is_ended(tmp_path, monkeypatch):
    """A daemon that ignores interruptions: the command has ended long before it."""
    monkeypatch.setattr(job, "_GRACE_S", 0.2)
    before = process_tree()
    note = tmp_path / "pid"
    end = run(ESCAPES + "\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n", note)
    assert end.exit_code == 0
    assert not is_there(int(note.read_text()))
    assert process_tree() <= before


def test_processes_of_ours_are_not_ended():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        run("")
        assert other.poll() is None
        other.communicate(b"\n")
    assert other.returncode == 0


CALLS = """
import os, sys
from profiler.run import job
job._GRACE_S = 0.2
job.run_to_the_end([sys.executable, "-c", *sys.argv[1:]], dict(os.environ), timeout_s=600)
"""


KILLED_AT_THE_START = """
import os, signal, sys
from pathlib import Path
from profiler.run import job
own, caller = Path(sys.argv[1]), os.getpid()
def fill():
    own.mkdir()
    os.kill(caller, signal.SIGKILL)
    (own / "written").touch()
job.run_to_the_end([sys.executable, "-c", ""], dict(os.environ), timeout_s=600, own_folder=own, fill=fill)
"""


def test_a_caller_that_is_killed_at_the_start_leaves_no_folder(tmp_path):
    (place := tmp_path / "temporary").mkdir()
    own = tmp_path / "own"
    killed = command(KILLED_AT_THE_START, own)
    assert subprocess.run(killed, env={**os.environ, "TMPDIR": str(place)}).returncode == -signal.SIGKILL
    ends_s = time.monotonic() + 60
    while (own.exists() or any(place.iterdir())) and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert not own.exists()
    assert list(place.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    own = tmp_path / "file" / "own"
    own.parent.touch()
    with pytest.raises(NotADirectoryError, match=re.escape(str(own))):
        run_to_the_end(command(""), environment(), timeout_s=5, own_folder=own, fill=own.mkdir)


def test_a_command_without_a_record_leaves_no_folder(tmp_path):
    for kept in ((), ("job.json",)):
        processes = tmp_path / "run" / "processes-1"
        processes.mkdir(parents=True)
        for name in kept:
            (processes.parent / name).touch()
        with suppress(KeyboardInterrupt), _removed_at_the_end(processes, with_empty_parent=True):
            raise KeyboardInterrupt
        assert processes.parent.exists() == bool(kept)
        assert not processes.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("victim", ["caller", "keeper"])
def test_whichever_of_both_is_killed_the_other_one_ends_the_job(tmp_path, number, victim):
    note = tmp_path / "pid"
    with subprocess.Popen(command(CALLS, ESCAPES + "\ntime.sleep(600)", note), stderr=subprocess.DEVNULL) as caller:
        while not note.exists() or not note.read_text():
            time.sleep(0.01)
        daemon = int(note.read_text())
        (keeper,) = (int(pid) for pid in Path(f"/proc/{caller.pid}/task/{caller.pid}/children").read_text().split())
        os.kill(caller.pid if victim == "caller" else keeper, number)
        if victim == "keeper":
            caller.wait(60)
    ends_s = time.monotonic() + 60
    while (is_there(daemon) or is_there(keeper)) and time.monotonic() < ends_s:
        time.sleep(0.01)
    assert not is_there(daemon)
    assert not is_there(keeper)


def test_what_another_job_uses_or_had_before_is_not_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(job, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "psm_before").touch()
    files = job.Files.now()
    for name in ("psm_left", "psm_used", "psm_open", "other"):
        (tmp_path / name).write_bytes(b"x")
    with (
        socket.socket(socket.AF_UNIX) as bound,
        socket.socket(socket.AF_UNIX) as dead,
        (tmp_path / "psm_open").open() as _,
        (tmp_path / "psm_used").open("r+b") as file,
        mmap.mmap(file.fileno(), 1),
    ):
        bound.bind(str(tmp_path / "bound"))
        dead.bind(str(tmp_path / "dead"))
        dead.close()
        file.close()
        removed = files.removed_since()
        kept = sorted(path.name for path in tmp_path.iterdir())
    assert sorted(removed) == [str(tmp_path / "dead"), str(tmp_path / "psm_left")]
    assert kept == ["bound", "other", "psm_before", "psm_open", "psm_used"]


LEAVES = """
import os, socket, sys, tempfile
from multiprocessing import resource_tracker, shared_memory
made = shared_memory.SharedMemory(create=True, size=100); resource_tracker.unregister(made._name, "shared_memory")
bound = socket.socket(socket.AF_UNIX); bound.bind(sys.argv[1])
own = tempfile.mkdtemp()
open(sys.argv[2], "w").write(f"{made.name} {own}"); os._exit(0)
"""


def test_shared_memory_and_sockets_that_are_left_are_removed(tmp_path):
    folder = Path("/dev/shm")
    if not folder.is_dir():
        pytest.skip("no /dev/shm")
    ours, theirs = Path(f"/tmp/grpo-vram-test-{os.getpid()}"), Path(f"/tmp/grpo-vram-other-{os.getpid()}")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(theirs))
        try:
            end = run(LEAVES, ours, tmp_path / "names")
            assert theirs.exists()
        finally:
            theirs.unlink()
    name, own = (tmp_path / "names").read_text().split()
    assert {str(folder / name), str(ours)} <= set(end.left)
    assert not (folder / name).exists()
    assert not ours.exists()
    assert not Path(own).exists()


@pytest.mark.parametrize(
    ("gib", "processors", "expected"), [(11, 64, 1), (24, 64, 2), (96, 8, 8), (96, 2, 2), (200, 8, 8), (0, 1, 1)]
)
def test_as_many_workers_run_as_the_machine_holds(gib, processors, expected):
    """12 GiB and a processor each."""
    assert job.workers_held(gib << 30, processors) == expected
    assert job.workers_held() >= 1
