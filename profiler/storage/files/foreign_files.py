"""Read files that others named: regular ones only, and no more of them than a limit.

Opening a named pipe waits for its writer, and a device such as /dev/zero never ends. Every failure is an `OSError`
with a `strerror`, whatever Python's own functions raise.
"""

import errno
import os
import shutil
import stat
from enum import StrEnum
from functools import reduce
from io import BufferedReader, FileIO
from operator import or_
from pathlib import Path
from typing import BinaryIO

from profiler.domain.memory import KIB, MIB

_POINTERS = (
    (
        b"version https://git-lfs.github.com/spec/",
        "it is a pointer of git-LFS, not the file itself; run `git lfs pull`",
    ),
    (b"version https://hawser.github.com/spec/", "it is a pointer of git-LFS, not the file itself; run `git lfs pull`"),
    (b"/annex/objects/", "it is a pointer of git-annex, not the file itself; run `git annex get`"),
)
"""How files begin that stand for others until these are fetched: git-LFS's spec.md, v1 and before; git-annex's pointer
files of unlocked content."""

_LONGEST_POINTER = 32 * KIB
"""git-annex's limit; git-LFS has 1 KiB."""


class Kind(StrEnum):
    """What a path is."""

    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"
    """A device, a named pipe, a socket."""
    MISSING = "missing"


def kind_of(path: Path) -> Kind:
    """Return what is at `path`.

    Raises:
        OSError: This cannot be found out: a folder above it may not be entered, or the path is too long.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Kind.MISSING
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    if stat.S_ISDIR(mode):
        return Kind.FOLDER
    return Kind.FILE if stat.S_ISREG(mode) else Kind.OTHER


def expanded(text: str) -> Path:
    """Return the path that a user wrote, with the home folder for `~`.

    Raises:
        OSError: There is no such user.
    """
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise FileNotFoundError(errno.ENOENT, f"there is no home folder for {path.parts[0]}") from error


def open_regular(path: Path, *, follow_links: bool = True) -> FileIO:
    """Open a regular file to read bytes, without a buffer.

    Args:
        path: The file.
        follow_links: Whether it may be a symbolic link. A file that this program wrote itself never is one.

    Raises:
        OSError: It is missing, cannot be opened, is not a regular file, or is a pointer to a file that was not fetched.
    """
    try:
        # O_NONBLOCK: opening a named pipe returns instead of waiting for a writer. It has no effect on regular files.
        flags = os.O_RDONLY | open_flags("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")
        descriptor = os.open(path, flags) if follow_links else open_no_link(path, flags)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        raise OSError(errno.EINVAL, "it is not a regular file")
    pointer = _pointer(descriptor) if found.st_size <= _LONGEST_POINTER else ""
    if pointer:
        os.close(descriptor)
        raise OSError(errno.EINVAL, pointer)
    return os.fdopen(descriptor, "rb", buffering=0)


def open_flags(*names: str) -> int:
    """Return flags of `os.open` by their names in `os`; one that the system does not have counts nothing."""
    return reduce(or_, (getattr(os, name, 0) for name in names))


def open_no_link(path: str | Path, flags: int, mode: int = 0o644) -> int:
    """Open a path that is not a symbolic link, as `os.open` does.

    Raises:
        OSError: It cannot be opened, or it is a link.
    """
    if not hasattr(os, "O_NOFOLLOW") and Path(path).is_symlink():  # Windows
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return os.open(path, flags | open_flags("O_NOFOLLOW"), mode)


def _pointer(descriptor: int) -> str:
    """Return that a file is a pointer to another, with what fetches it; empty if it is none."""
    try:
        start = os.read(descriptor, max(len(begin) for begin, _ in _POINTERS))
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        return ""  # as of some files of /proc; reading it says why
    return next((said for begin, said in _POINTERS if start.startswith(begin)), "")


def read_bytes(path: Path, *, most_bytes: int, follow_links: bool = True) -> bytes:
    """Return the content of a regular file, which may be a symbolic link if `follow_links`.

    Raises:
        OSError: As `open_regular`, or the file has more than `most_bytes`.
    """
    with open_regular(path, follow_links=follow_links) as raw, BufferedReader(raw) as file:
        size = os.fstat(raw.fileno()).st_size
        is_too_large = size > most_bytes
        content = b"" if is_too_large else _read(file, most_bytes + 1, at_once=max(size + 1, MIB))
    if is_too_large or len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes // MIB:,} MiB")
    return content


def _read(file: BinaryIO, most_bytes: int, *, at_once: int) -> bytes:
    """Return what a file has. Python reserves the memory of all that is asked for, and files of /proc have no size."""
    parts: list[bytes] = []
    left = most_bytes
    while left and (part := file.read(min(left, at_once))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def reason(error: OSError) -> str:
    """Return why a file could not be read, in a few words."""
    return error.strerror or str(error) or type(error).__name__


def start_reason(program: str, error: OSError, search_path: str | None = None) -> str:
    """Return why a program was not started.

    Of a missing program the system says "Permission denied" where a folder of PATH cannot be searched.
    """
    is_missing = os.sep not in program and shutil.which(program, path=search_path) is None
    return os.strerror(errno.ENOENT) if is_missing and isinstance(error, PermissionError) else reason(error)
