"""Atomic writes: a file exists whole or not at all; and unexpected exceptions: a sentence, and a file to report."""

import errno
import fnmatch
import glob
import os
import re
import secrets
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from profiler.domain.errors import EXIT_INTERNAL, ProfilerError, interruption_first
from profiler.storage.files.foreign_files import open_no_link

ABANDONED_AFTER_S = 3600.0
"""Age from which the temporary file of another machine counts as abandoned: it is written in one go."""

_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""How file systems answer that cannot synchronise folders, such as some network volumes."""

_PARTIAL = re.compile(r"\..*\.(?P<place>[\w-]+)\.(?P<pid>[0-9]{1,9})\.[0-9a-f]+\.part", re.DOTALL)


class StorageError(ProfilerError):
    """Storage failed: the disk is full or not writable, or a table contradicts itself."""


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path`: write to a temporary name, fsync, rename. Create a missing folder.

    Raises:
        StorageError: The file could not be written; nothing partial is left, and what was there before still is.
    """
    temporary = _partial(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise StorageError(f"{path}: could not be written ({error.strerror or error}).") from error


def write_parts_atomically(path: Path, parts: Iterable[str]) -> None:
    """Put a text at `path` as `write_atomically` does, without having all of it in memory.

    Raises:
        StorageError: The file could not be written; nothing partial is left, and what was there before still is.
    """
    with temporary_next_to(path) as temporary:
        with write_errors(path), temporary.open("xb") as file:
            for part in parts:
                file.write(part.encode())
        put_in_place(temporary, path)


@contextmanager
def temporary_next_to(path: Path) -> Iterator[Path]:
    """Yield the name of a temporary file for a content that is written in parts; remove it at the end.

    Raises:
        StorageError: The folder cannot be made.
    """
    temporary = _partial(path)
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def put_in_place(temporary: Path, path: Path) -> None:
    """Synchronise a complete file and rename it to `path`.

    Raises:
        StorageError: The disk does not take it; what was at `path` before still is.
    """
    put_all_in_place([(temporary, path)])


def put_all_in_place(complete: Sequence[tuple[Path, Path]]) -> None:
    """Synchronise complete files, and only then rename them: those that belong together change within a moment.

    Args:
        complete: Of each file its temporary name, and where it belongs.

    Raises:
        StorageError: The disk does not take one of them; what was there before still is.
    """
    for temporary, path in complete:
        with write_errors(path):
            _sync(temporary)
    for temporary, path in complete:
        with write_errors(path):
            temporary.replace(path)
    for path in {path.parent: path for _, path in complete}.values():
        with write_errors(path):
            sync_folder(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)  # Windows synchronises only what is open for writing
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Turn an `OSError` of the block, which writes what will be at `path`, into a `StorageError`."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: could not be written ({error.strerror or error}).") from error


def remove_partial(folder: Path, stem: str) -> None:
    """Remove temporary files that killed writers of `<folder>/*/<stem>.*` left. No other writer may be active."""
    for temporary in folder.glob(f"*/.{glob.escape(stem)}.*.part"):
        temporary.unlink(missing_ok=True)


def append(path: Path, content: bytes) -> None:
    """Append `content` to a file that others write too.

    Raises:
        StorageError: The file could not be written.
    """
    try:
        with path.open("ab") as file:
            file.write(content)
    except OSError as error:
        raise StorageError(f"{path}: could not be written ({error.strerror or error}).") from error


JOB_PAGE = "GITHUB_STEP_SUMMARY"
"""The environment variable with the page of a job on GitHub, to which its steps append Markdown."""


def append_to_job_page(text: str) -> None:
    """Append Markdown to the page of the job, where there is one.

    Raises:
        StorageError: The page cannot be written.
    """
    if os.environ.get(JOB_PAGE):
        append(Path(os.environ[JOB_PAGE]), text.encode())


def remove_abandoned(folder: Path) -> None:
    """Remove temporary files under `folder` that killed writers left: those of this machine, and old ones of others.

    Files with other names, such as a download's, stay.
    """
    # Not `Path.rglob`, which raises where somebody else removes a folder meanwhile.
    for parent, _, names in os.walk(folder):
        for temporary in (Path(parent, name) for name in fnmatch.filter(names, ".*.part")):
            try:
                if _is_abandoned(temporary):
                    temporary.unlink(missing_ok=True)
            except OSError:
                continue


def sync_folder(folder: Path) -> bool:
    """Synchronise a folder, because a power failure can undo a rename otherwise.

    Returns:
        Whether the file system can do that.
    """
    if sys.platform == "win32":  # a folder cannot be opened there
        return False
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def _partial(path: Path) -> Path:
    """Return the name of a new temporary file next to `path`.

    It names its writer, for `remove_abandoned`. The rest is random, so that no two writers share a file.
    """
    return path.with_name(f".{path.name}.{host_place()}.{os.getpid()}.{secrets.token_hex(4)}.part")


def host_place() -> str:
    """Return where a process id is meant: host and container. Two containers can have equal ids on one volume."""
    try:
        container = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        container = 0
    return f"{re.sub('[^A-Za-z0-9]', '-', socket.gethostname())[:64]}-{container}"


def _is_abandoned(temporary: Path) -> bool:
    name = _PARTIAL.fullmatch(temporary.name)
    if name is None:
        return False
    if time.time() - temporary.lstat().st_mtime > ABANDONED_AFTER_S:
        return True
    return name["place"] == host_place() and not process_runs(int(name["pid"]))


def process_runs(pid: int) -> bool:
    """Return whether a process of this machine, or container, runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


class UnforeseenError(ProfilerError):
    """A defect of this program or of a library; the sentence says where the traceback is."""

    exit_code = EXIT_INTERNAL


@contextmanager
def last_resort(command: str, *, folder: Path | None = None, file: Path | None = None) -> Iterator[None]:
    """Turn an exception that is not a `ProfilerError` into one, with its traceback in a file.

    Args:
        command: What runs in the block; part of the name of a new file.
        folder: Where to make the file. The folder for temporary files if not given, or if it takes no file.
        file: Append to this file instead.

    Raises:
        UnforeseenError: Instead of the exception.
        KeyboardInterrupt: Instead of an exception that has replaced it.
    """
    try:
        with interruption_first():
            yield
    except ProfilerError:
        raise
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        raise UnforeseenError(f"{_what(error)} {_kept(text, command, folder, file)}") from error


def _what(error: Exception) -> str:
    """Return the type and first line of an exception as a sentence."""
    first_line = next(iter(str(error).strip().splitlines()), "")
    said = f"Unforeseen {type(error).__name__}" + (f": {first_line}" if first_line else "")
    return said if said.endswith(".") else f"{said}."


def _kept(text: str, command: str, folder: Path | None, file: Path | None) -> str:
    """Write the traceback and return the sentence that says where; return the traceback itself if writing fails."""
    try:
        if file is not None:
            with open(file, "a", opener=_not_through_a_link) as stream:
                stream.write(text)
            return f"The full text is in {file}."
        return f"The full text is in {_new_file(text, command, folder)}. Please report it with that file."
    except OSError as error:
        return f"The full text could not be written ({error.strerror or error}):\n{text}"


def _not_through_a_link(path: str, flags: int) -> int:
    return open_no_link(path, flags)


def _new_file(text: str, command: str, folder: Path | None) -> str:
    try:
        descriptor, path = tempfile.mkstemp(prefix=f"{command}-error-", suffix=".txt", dir=folder)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
    except OSError:
        if folder is None:
            raise
        return _new_file(text, command, None)
    return path
