"""Files that are there whole or not at all: what reaches the disk when, and two writers of one file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiler.storage import atomic
from profiler.storage.atomic import write_atomically


def test_file_and_folder_reach_the_disk_in_this_order(tmp_path, monkeypatch):
    path, steps = tmp_path / "made" / "record.json", []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        opened = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append(("folder" if opened == path.parent else opened.suffix, opened.stat().st_size > 0, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", noted)
    write_atomically(path, b"content")
    # The content before the name; the name before anybody is told.
    assert [(what, there) for what, _, there in steps] == [(".part", False), ("folder", True)]
    assert steps[0][1]


_WRITER = """
import os, sys
from pathlib import Path
from profiler.storage.atomic import write_atomically

real = os.fsync
def fsync(descriptor):
    if os.fstat(descriptor).st_size and "waits" in sys.argv and not hasattr(fsync, "waited"):
        fsync.waited = True
        print("written", flush=True)
        sys.stdin.readline()
    real(descriptor)
os.fsync = fsync
write_atomically(Path(sys.argv[1]), sys.argv[2].encode() * 1000)
"""


@pytest.fixture
def writer(tmp_path):
    def start(path: Path, content: str, *how: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(path), content, *how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    return start


def test_two_writers_of_one_file_do_not_touch_each_others(writer, tmp_path):
    path = tmp_path / "runs.parquet"
    with writer(path, "slow", "waits") as slow:
        assert slow.stdout is not None
        assert slow.stdout.readline() == "written\n"
        with writer(path, "quick") as quick:
            quick.communicate()
        assert quick.returncode == 0
        assert path.read_text() == "quick" * 1000
        slow.communicate("\n")
    assert slow.returncode == 0
    assert path.read_text() == "slow" * 1000
    assert [each.name for each in tmp_path.iterdir()] == ["runs.parquet"]
