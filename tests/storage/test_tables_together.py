"""Tables that belong together change together: two sweeps in a folder, a full disk, a reader in between."""

import errno
import multiprocessing
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import builders
import pytest

from profiler.domain.runs.outcome import Status
from profiler.storage.files import atomic
from profiler.storage.files import trial_files as lock
from profiler.storage.files.atomic import StorageError
from profiler.storage.files.trial_files import LockError, take_lock
from profiler.storage.sweep_tables import spool
from profiler.storage.sweep_tables.tables import assemble_tables, read_tables, write_tables
from profiler.storage.tables.schema import TABLES

NOT_BEFORE_S = 0.5
"""How long a reader is seen to wait."""

LONGEST_S = 30.0
"""How long a reader that does not wait may take."""


@pytest.fixture
def records():
    return builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b"]))


def _without_peaks(records):
    """Return the same trials without an answer: their rows of phases contradict the runs of `records`."""
    return [builders.record(each.spec, outcome=builders.outcome_of(Status.FAILED)) for each in records]


def _content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def _stop_in_between(folder, records):
    """Replace the tables of a folder, and wait after the first of them."""
    replace = Path.replace

    def stopping(self, target):
        found = replace(self, target)
        if Path(target).name == "runs.parquet":
            (folder / "waits").touch()
            while not (folder / "go").exists():
                time.sleep(0.01)
        return found

    Path.replace = stopping  # in a process of its own
    write_tables(folder, _without_peaks(records), {})


def _read_next_to(writing, folder, records, *, at_most_s):
    """Read tables while `writing` in another process waits; return whether they were read by then, and the tables."""
    write_tables(folder, records, {})
    writer = multiprocessing.get_context("spawn").Process(target=writing, args=(folder, records))
    writer.start()
    while not (folder / "waits").exists() and writer.is_alive():
        time.sleep(0.01)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_tables, folder)
        wait([reading], timeout=at_most_s)
        has_read = reading.done()
        (folder / "go").touch()
        found = reading.result()
    writer.join()
    assert writer.exitcode == 0
    return has_read, found


def test_a_reader_finds_tables_of_one_sweep_while_another_replaces_them(tmp_path, records):
    has_read, found = _read_next_to(_stop_in_between, tmp_path, records, at_most_s=NOT_BEFORE_S)
    assert not has_read
    assert len(found.phases) == 0, "the tables of the second sweep, and not one of each"


def _stop_while_reading_records(folder, records):
    """Assemble tables, and wait after the first record."""

    def stopping():
        for each in sorted(_without_peaks(records), key=lambda record: record.trial_id):
            yield each
            (folder / "waits").touch()
            while not (folder / "go").exists():
                time.sleep(0.01)

    assemble_tables(folder, stopping(), lambda _: {})


def test_a_reader_does_not_wait_while_tables_are_assembled(tmp_path, records):
    has_read, found = _read_next_to(_stop_while_reading_records, tmp_path, records, at_most_s=LONGEST_S)
    assert has_read
    assert len(found.phases) > 0, "the tables of before"
    assert len(read_tables(tmp_path).phases) == 0


def test_tables_are_held_from_the_first_record_that_is_read(tmp_path, records):
    def read():
        assert take_lock(tmp_path / spool._LOCK, wait=False) is None
        yield from sorted(records, key=lambda record: record.trial_id)

    assemble_tables(tmp_path, read(), lambda _: {})
    assert not (tmp_path / spool._LOCK).exists()


@pytest.mark.parametrize(
    ("kept", "use", "does"),
    [
        (spool._LOCK, lambda folder, records: write_tables(folder, records, {}), "writes"),
        (spool._REPLACING_LOCK, lambda folder, records: write_tables(folder, records, {}), "opens"),
        (spool._REPLACING_LOCK, lambda folder, _: read_tables(folder), "replaces"),
    ],
)
def test_a_process_that_waits_for_tables_says_for_what(tmp_path, records, monkeypatch, kept, use, does):
    """The other process ends as soon as the sentence is written."""
    write_tables(tmp_path, records, {})
    other, said = take_lock(tmp_path / kept, wait=False), []

    class Screen:
        def write(self, text):
            said.append(text)
            other.release()

    monkeypatch.setattr(lock, "SILENT_S", 0.0)
    monkeypatch.setattr(sys, "stderr", Screen())
    use(tmp_path, records)
    assert said == [f"Waiting for another process that {does} the tables of {tmp_path}.\n"]


@pytest.mark.parametrize("nth", range(1, len(TABLES) + 1))
def test_a_full_disk_leaves_all_tables_as_they_were(tmp_path, records, monkeypatch, nth):
    write_tables(tmp_path, records, {})
    before, calls, fsync = _content(tmp_path), [], os.fsync

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == nth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        write_tables(tmp_path, _without_peaks(records), {})
    monkeypatch.undo()
    assert _content(tmp_path) == before


def test_a_folder_without_locks_is_read_and_not_written(tmp_path, records, monkeypatch):
    write_tables(tmp_path, records, {})

    def refuse(path, does):
        raise LockError(path, OSError(errno.ENOLCK, os.strerror(errno.ENOLCK)))

    monkeypatch.setattr(spool, "wait_for_lock", refuse)
    assert len(read_tables(tmp_path).runs) == len(records)
    with pytest.raises(LockError, match="Its file system has no locks"):
        write_tables(tmp_path, records, {})
