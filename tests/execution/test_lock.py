import multiprocessing
import time

from profiler.execution.lock import take_lock


def _hold(path, seconds):
    lock = take_lock(path, wait=True)
    (path.parent / "held").touch()
    time.sleep(seconds)
    lock.release()


def test_one_holder_at_a_time_and_the_waiting_one_gets_it(tmp_path):
    path = tmp_path / "a.lock"
    holder = multiprocessing.get_context("spawn").Process(target=_hold, args=(path, 0.5))
    holder.start()
    while not (tmp_path / "held").exists():
        time.sleep(0.01)

    assert take_lock(path, wait=False) is None
    before = time.monotonic()
    lock = take_lock(path, wait=True)

    assert time.monotonic() - before > 0.05
    assert lock is not None
    holder.join()
    assert take_lock(path, wait=False) is None
    lock.release()
    assert not path.exists()
    assert take_lock(path, wait=False) is not None


def test_a_lock_file_left_behind_locks_nothing(tmp_path):
    path = tmp_path / "a.lock"
    path.write_text("left behind")

    assert take_lock(path, wait=False) is not None
