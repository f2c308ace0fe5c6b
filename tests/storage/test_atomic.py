"""Files that are there whole or not at all: what reaches the disk when, and two writers of one file."""

import errno
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profiler.storage.files import atomic
from profiler.storage.files.atomic import write_atomically


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


def test_a_file_of_several_parts_reaches_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    path, steps, fsync = tmp_path / "report.html", [], os.fsync

    def noted(descriptor: int) -> None:
        opened = Path(f"/proc/self/fd/{descriptor}").readlink()
        steps.append((opened.suffix, opened.stat().st_size, path.exists()))
        fsync(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", noted)
    atomic.write_parts_atomically(path, ["whole ", "content"])
    assert steps[0] == (".part", len("whole content"), False)
    assert [is_there for suffix, _, is_there in steps if suffix != ".part"] == [True]


def test_files_with_other_names_are_not_removed(tmp_path):
    """A download's, for example."""
    path = tmp_path / ".model.safetensors.part"
    path.touch()
    hours_ago = time.time() - 2 * atomic.ABANDONED_AFTER_S
    os.utime(path, (hours_ago, hours_ago))
    atomic.remove_abandoned(tmp_path)
    assert path.exists()


_WRITER = """
import os, sys
from pathlib import Path
from profiler.storage.files.atomic import write_atomically

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


def test_the_temporary_name_has_host_and_process_and_is_never_reused(tmp_path, monkeypatch):
    names = []
    monkeypatch.setattr(atomic.os, "fsync", lambda _: names.extend(tmp_path.glob(".*.part")))
    monkeypatch.setattr(atomic.socket, "gethostname", lambda: "pod/7.example")
    for _ in range(2):
        write_atomically(tmp_path / "runs.parquet", b"content")
    first, second = (path.name for path in names)
    assert first != second
    assert first.startswith(f".runs.parquet.pod-7-example-{Path('/proc/self/ns/pid').stat().st_ino}.{os.getpid()}.")


def test_a_link_in_place_of_the_temporary_file_is_not_followed(tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("kept")
    monkeypatch.setattr(atomic, "_partial", lambda path: tmp_path / ".link.part")
    (tmp_path / ".link.part").symlink_to(tmp_path / "precious")
    with pytest.raises(atomic.StorageError, match="File exists"):
        write_atomically(tmp_path / "runs.parquet", b"content")
    assert (tmp_path / "precious").read_text() == "kept"


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS])
def test_a_folder_that_cannot_be_synchronised_takes_files(tmp_path, monkeypatch, number):
    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    write_atomically(tmp_path / "runs.parquet", b"content")
    assert (tmp_path / "runs.parquet").read_bytes() == b"content"
    assert not atomic.sync_folder(tmp_path)


def test_a_folder_that_fails_to_synchronise_is_an_error(tmp_path, monkeypatch):
    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(atomic.os, "fsync", fsync)
    with pytest.raises(atomic.StorageError, match="Input/output error"):
        write_atomically(tmp_path / "runs.parquet", b"content")


def test_only_files_of_ended_writers_are_removed(writer, tmp_path):
    with writer(tmp_path / "page" / "killed.html", "half", "waits") as killed:
        assert killed.stdout is not None
        killed.stdout.readline()
        killed.kill()
    with writer(tmp_path / "runs.parquet", "slow", "waits") as slow:
        assert slow.stdout is not None
        slow.stdout.readline()
        of_another_host, old = (
            # A process id of another host means nothing here, so that one that does not run here is no sign of an end.
            tmp_path / ".runs.parquet.pod-1.999999999.00ab.part",
            tmp_path / ".runs.parquet.pod-2.1.00ab.part",
        )
        for path in (of_another_host, old):
            path.touch()
        hours_ago = time.time() - 2 * atomic.ABANDONED_AFTER_S
        os.utime(old, (hours_ago, hours_ago))
        assert len(list(tmp_path.rglob("*.part"))) == 4

        atomic.remove_abandoned(tmp_path)
        left = set(tmp_path.rglob("*.part"))
        slow.communicate("\n")
    assert slow.returncode == 0
    assert of_another_host in left
    assert {path.name.split(".")[1] for path in left - {of_another_host}} == {"runs"}
    assert len(left) == 2
