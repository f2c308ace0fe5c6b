"""Files that others named: regular ones, up to a limit; everything else is an `OSError` with its reason."""

import errno
import os
from pathlib import Path

import pytest

from profiler.storage.files.foreign_files import Kind, expanded, kind_of, read_bytes, reason, start_reason


def refused(path: Path) -> str:
    with pytest.raises(OSError) as caught:
        read_bytes(path, most_bytes=1024)
    return reason(caught.value)


def test_a_regular_file_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1024)
    assert read_bytes(path, most_bytes=1024) == b"x" * 1024
    assert read_bytes(Path("/proc/self/stat"), most_bytes=1024)


def test_a_larger_file_is_refused(tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 1025)
    assert refused(tmp_path / "file") == "it has more than 0 MiB"


def test_a_pipe_without_a_writer_does_not_wait(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert refused(tmp_path / "pipe") == "it is not a regular file"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/dev/zero", "it is not a regular file"),
        ("/", "it is a folder"),
        ("a\0b", "embedded null byte"),
        ("x" * 300, "File name too long"),
        ("/nowhere/at/all", "No such file or directory"),
    ],
)
def test_what_cannot_be_read_has_a_reason(path, why):
    assert refused(Path(path)) == why


def test_kinds(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    assert kind_of(tmp_path) is Kind.FOLDER
    assert kind_of(tmp_path / "file") is Kind.FILE
    assert kind_of(tmp_path / "file" / "below") is Kind.MISSING
    assert kind_of(Path("/dev/zero")) is Kind.OTHER
    for path in (tmp_path / "loop", Path("x" * 300), Path("a\0b")):
        with pytest.raises(OSError):
            kind_of(path)


def test_the_home_folder_of_a_user_who_does_not_exist():
    assert expanded("~") == Path.home()
    with pytest.raises(OSError, match="no home folder for ~nosuchuser"):
        expanded("~nosuchuser/x")


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
ANNEX = b"/annex/objects/SHA256E-s12345--4d7a2146.pickle\n"


@pytest.mark.parametrize(("content", "which"), [(LFS, "git-LFS"), (ANNEX, "git-annex")])
def test_a_pointer_is_named_as_such(tmp_path, content, which):
    (tmp_path / "file").write_bytes(content)
    assert refused(tmp_path / "file").startswith(f"it is a pointer of {which}, not the file itself")


def test_a_file_that_only_mentions_one_is_read(tmp_path):
    (tmp_path / "file").write_bytes(b"# " + LFS)
    assert read_bytes(tmp_path / "file", most_bytes=1024) == b"# " + LFS


@pytest.mark.parametrize(
    ("program", "error", "says"),
    [
        # A folder of PATH that may not be searched hides that the program is in none.
        ("no-such-program", PermissionError(errno.EACCES, "Permission denied"), "No such file or directory"),
        ("sh", PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
        ("./no-such-program", PermissionError(errno.EACCES, "Permission denied"), "Permission denied"),
        ("no-such-program", OSError(errno.E2BIG, "Argument list too long"), "Argument list too long"),
    ],
)
def test_a_program_that_is_nowhere_is_missing(program, error, says):
    assert start_reason(program, error) == says
