"""File systems without locks or folder synchronisation are found out before the first trial."""

import errno
import fcntl
import os
import stat
from pathlib import Path

import pytest

GRID = "+grid=lora_vs_full"


def refused(result, world):
    """Return the one sentence of a sweep that started nothing."""
    code, _, err = result
    assert code == 2
    assert world.runs == []
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_no_locks(sweep, world, tmp_path, monkeypatch, number):
    def flock(descriptor, operation):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "results"
    assert refused(sweep(GRID), world) == (
        f"results_dir={folder}: trials cannot be locked in {folder}/lora_vs_full/records ({os.strerror(number)}). "
        "Choose another folder with results_dir=PATH, for example on a local disk.\n"
    )


def test_folders_that_cannot_be_synchronised(sweep, world, tmp_path, monkeypatch):
    synchronise = os.fsync

    def fsync(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    code, _, err = sweep(GRID)
    assert code == 0
    assert len(world.runs) == 1
    assert err == (
        f"results_dir={tmp_path}/results: its file system cannot synchronise folders, so a power failure can undo the "
        "last finished trials. To avoid that, choose another folder with results_dir=PATH.\n"
    )


def test_a_file_that_cannot_be_synchronised(sweep, world, monkeypatch):
    def fsync(descriptor):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    assert "results cannot be written there (Input/output error). Choose another" in refused(sweep(GRID), world)


def test_records_that_are_read_only(sweep, world, tmp_path, monkeypatch):
    records = tmp_path / "results" / "lora_vs_full" / "records"
    records.mkdir(parents=True)
    opened = Path.open

    def read_only(path, mode="r", *more, **how):
        if records in path.parents and mode != "r":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return opened(path, mode, *more, **how)

    monkeypatch.setattr(Path, "open", read_only)
    sentence = refused(sweep(GRID), world)
    assert f"results cannot be written there ({records}: Read-only file system). Choose another folder" in sentence


def test_records_that_are_not_a_folder(sweep, world, tmp_path):
    grid = tmp_path / "results" / "lora_vs_full"
    grid.mkdir(parents=True)
    (grid / "records").touch()
    assert f"({grid}/records is not a folder)" in refused(sweep(GRID), world)


def test_the_check_leaves_nothing_and_removes_what_a_killed_sweep_left(sweep, tmp_path):
    grid = tmp_path / "results" / "lora_vs_full"
    (grid / "figures").mkdir(parents=True)
    left = grid / "figures" / ".growth.png.another-host-1.7.00ab.part"
    left.touch()
    os.utime(left, (0, 0))
    assert sweep(GRID)[0] == 0
    assert [path for path in grid.rglob("*") if path.is_file()] == []
