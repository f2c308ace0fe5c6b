import errno
import fcntl
import multiprocessing
import os
import time
from threading import Timer

import pytest

from profiler.storage.files import trial_files as lock_module
from profiler.storage.files.trial_files import Lock, LockError, take_lock, wait_for_lock

LONGEST_S = 30.0
"""How long a holder waits until it is asked to let go; then it ends, and a test that does not ask fails."""


def _hold(path):
    lock = take_lock(path, wait=True)
    (path.parent / "held").touch()
    ends_s = time.monotonic() + LONGEST_S
    while not (path.parent / "let go").exists() and time.monotonic() < ends_s:
        time.sleep(0.01)
    lock.release()


def _start_holder(path):
    holder = multiprocessing.get_context("spawn").Process(target=_hold, args=(path,))
    holder.start()
    while not (path.parent / "held").exists():
        time.sleep(0.01)
    return holder


def test_a_lock_ends_with_its_block(tmp_path):
    path = tmp_path / "a.lock"
    with pytest.raises(KeyError), wait_for_lock(path, "tests") as lock:
        assert take_lock(path, wait=False) is None
        raise KeyError
    with wait_for_lock(path, "tests") as again:
        assert lock.path == again.path
        assert take_lock(path, wait=False) is None
    assert not path.exists()


def test_one_holder_at_a_time_and_a_waiting_process_is_next(tmp_path):
    path = tmp_path / "a.lock"
    holder = _start_holder(path)

    assert take_lock(path, wait=False) is None
    before = time.monotonic()
    Timer(0.1, (tmp_path / "let go").touch).start()
    lock = take_lock(path, wait=True)

    assert time.monotonic() - before > 0.05
    assert lock is not None
    holder.join()
    assert take_lock(path, wait=False) is None
    lock.release()
    assert not path.exists()
    assert take_lock(path, wait=False) is not None


def test_a_wait_that_takes_long_is_announced_once(tmp_path, monkeypatch):
    path, said = tmp_path / "a.lock", []
    monkeypatch.setattr(lock_module, "SILENT_S", 0.0)

    def hear(line):
        said.append(line)
        (tmp_path / "let go").touch()

    holder = _start_holder(path)
    lock = wait_for_lock(path, "writes here", notify=hear)
    holder.join()
    assert said == ["Waiting for another process that writes here."]
    assert take_lock(path, wait=False) is None
    lock.release()

    wait_for_lock(path, "writes here", notify=said.append).release()
    assert len(said) == 1


def test_the_death_of_its_holder_releases_a_lock(tmp_path):
    path = tmp_path / "a.lock"
    holder = _start_holder(path)
    assert take_lock(path, wait=False) is None

    holder.kill()
    holder.join()

    assert path.exists()
    assert take_lock(path, wait=False) is not None


def test_a_lock_file_left_behind_locks_nothing(tmp_path):
    path = tmp_path / "a.lock"
    path.write_text("left behind")

    assert take_lock(path, wait=False) is not None


def test_the_lock_of_a_file_that_its_holder_removed_is_not_taken(tmp_path, monkeypatch):
    """A holder removes the file. A process that had opened it before must take the lock of the next file."""
    path = tmp_path / "a.lock"
    path.touch()
    flock, removals = fcntl.flock, [path.unlink]

    def remove_then_lock(descriptor, operation):
        if removals and operation & fcntl.LOCK_EX:
            removals.pop()()  # after the file was opened, and before it is locked
        return flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_then_lock)
    lock = take_lock(path, wait=True)

    assert removals == []
    assert path.exists()
    assert take_lock(path, wait=False) is None
    lock.release()


def test_a_holder_removes_the_file_before_it_releases_the_lock(tmp_path):
    """Afterwards it could be the file of the next holder, and a third process would take the lock of another one."""
    path, found = tmp_path / "a.lock", []
    path.touch()

    class Held:
        def release(self):
            found.append(path.exists())

    Lock(path=path, held=Held()).release()
    assert found == [False]


def test_every_user_may_take_a_lock_whatever_the_umask(tmp_path):
    before = os.umask(0o077)
    try:
        lock = take_lock(tmp_path / "a.lock", wait=False)
    finally:
        os.umask(before)
    assert lock is not None
    assert (tmp_path / "a.lock").stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, number):
    def unavailable(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", unavailable)
    with pytest.raises(LockError) as refused:
        take_lock(tmp_path / "a.lock", wait=False)
    assert str(refused.value) == (
        f"{tmp_path}/a.lock: could not be locked ({os.strerror(number)}). Its file system has no locks: choose a "
        "folder on a local disk."
    )


def test_a_lock_is_not_taken_through_a_link(tmp_path):
    (tmp_path / "a.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LockError, match="remove it"):
        take_lock(tmp_path / "a.lock", wait=False)
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(LockError, match="could not be locked"):
        take_lock(tmp_path / "file" / "a.lock", wait=False)
