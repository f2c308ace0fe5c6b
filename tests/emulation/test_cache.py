"""What is in the cache is run, so that only its user may have written it."""

import os

import pytest

from profiler.domain.errors import UsageError
from profiler.emulation.building.build import refuse_of_others
from profiler.emulation.interpreter import VARIABLE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of built libraries; all of it is of this user."""
    cache = tmp_path / "cache"
    monkeypatch.setenv(VARIABLE, str(cache))
    built = cache / "emulated_libraries" / "torch"
    built.mkdir(parents=True, mode=0o755)
    (built / "libcuda.so.1").touch(mode=0o644)
    (built / "libcuda.so").symlink_to("libcuda.so.1")
    return built


def test_a_folder_of_this_user_is_used(folder):
    refuse_of_others(folder)
    refuse_of_others(folder / "not yet there")


@pytest.mark.parametrize("name", [".", "..", "../..", "libcuda.so.1"])
def test_what_every_user_can_write_is_refused(folder, name):
    (folder / name).resolve().chmod(0o777)
    with pytest.raises(UsageError, match=VARIABLE):
        refuse_of_others(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", [".", "..", "../..", "libcuda.so.1"])
def test_what_is_of_another_user_is_refused(folder, name):
    os.chown((folder / name).resolve(), 65534, 65534)
    with pytest.raises(UsageError, match="can be written by other users"):
        refuse_of_others(folder)
