"""Objects of a shared store: named contents that are written whole or not at all."""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from profiler.domain.memory import GIB
from profiler.storage.files.atomic import StorageError, write_atomically
from profiler.storage.files.foreign_files import read_bytes, reason

Result = TypeVar("Result")

MOST_BYTES = 8 * GIB

_FINAL = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that trying again does not change."""

_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0


class Objects(Protocol):
    """A store of objects by name; names have parts with slashes. Every failure is an `OSError`."""

    def read(self, name: str) -> bytes | None:
        """Return the content of an object; None if there is none."""

    def read_many(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """Return the contents of those that exist, read at the same time."""

    def write(self, name: str, content: bytes) -> None:
        """Write an object, replacing an earlier one."""

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists; return whether it was written. Of several writers exactly one writes."""

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""

    def list(self, prefix: str) -> Mapping[str, str]:
        """Return the stamps of all objects whose names begin with `prefix`; a stamp changes with each write."""


class FolderObjects:
    """A folder that several machines have mounted. Its files are made by renaming and by hard links."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        try:
            return read_bytes(self._folder / name, most_bytes=MOST_BYTES)
        except FileNotFoundError:
            return None

    def read_many(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """Return the contents of the files that exist."""
        asked = list(names)
        with ThreadPoolExecutor(max_workers=16) as pool:
            found = dict(zip(asked, pool.map(self.read, asked), strict=True))
        return {name: content for name, content in found.items() if content is not None}

    def write(self, name: str, content: bytes) -> None:
        """Write a file."""
        try:
            write_atomically(self._folder / name, content)
        except StorageError as error:
            cause = error.__cause__
            raise cause if isinstance(cause, OSError) else OSError(str(error)) from error

    def create(self, name: str, content: bytes) -> bool:
        """Write a file unless it exists. A hard link is made by one machine only, also on NFS."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
        try:
            temporary.write_bytes(content)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        (self._folder / name).unlink(missing_ok=True)

    def list(self, prefix: str) -> Mapping[str, str]:
        """Return the stamps of all files below a folder: inode, time of the last change and size."""
        root = self._folder / prefix.rpartition("/")[0]
        return {name: stamp for name, stamp in self._below(root) if name.startswith(prefix)}

    def _below(self, folder: Path) -> Iterator[tuple[str, str]]:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            # The files of a store are made by renaming and by hard links; a link can lead anywhere, also to a circle.
            if entry.is_symlink():
                continue
            if entry.is_dir():
                yield from self._below(Path(entry.path))
                continue
            with suppress(FileNotFoundError):
                found = entry.stat()
                name = Path(entry.path).relative_to(self._folder).as_posix()
                yield name, f"{found.st_ino}-{found.st_mtime_ns}-{found.st_size}"


class PatientObjects:
    """Objects of a store that is tried again while it cannot be reached, or answers that it is busy."""

    def __init__(
        self,
        objects: Objects,
        *,
        address: str,
        persist_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Ask for nothing yet.

        Args:
            objects: The store.
            address: Its address, for sentences.
            persist_s: How long one operation is tried.
            clock: Monotonic clock, in seconds.
            sleep: Waits for some seconds.
        """
        self._objects = objects
        self._address = address
        self._persist_s = persist_s
        self._clock = clock
        self._sleep = sleep

    def read(self, name: str) -> bytes | None:
        """Return the content of an object; None if there is none."""
        return self._tried(lambda: self._objects.read(name), name, "read")

    def read_many(self, names: Iterable[str]) -> Mapping[str, bytes]:
        """Return the contents of those that exist."""
        asked = list(names)
        return self._tried(lambda: self._objects.read_many(asked), asked[0] if asked else "", "read")

    def write(self, name: str, content: bytes) -> None:
        """Write an object."""
        self._tried(lambda: self._objects.write(name, content), name, "written")

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists.

        `content` differs from that of any other writer, so that an object whose answer was lost is recognised.
        """
        attempts = 0

        def attempt() -> bool:
            nonlocal attempts
            attempts += 1
            return self._objects.create(name, content) or (attempts > 1 and self._objects.read(name) == content)

        return self._tried(attempt, name, "created")

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""
        self._tried(lambda: self._objects.remove(name), name, "removed")

    def list(self, prefix: str) -> Mapping[str, str]:
        """Return the stamps of all objects whose names begin with `prefix`."""
        return self._tried(lambda: self._objects.list(prefix), prefix, "listed")

    def _tried(self, action: Callable[[], Result], name: str, done: str) -> Result:
        """Return what `action` returns, which is repeated while its errors can pass.

        Raises:
            StorageError: It fails for good, or for too long.
        """
        until_s, pause_s = self._clock() + self._persist_s, _FIRST_PAUSE_S
        while True:
            try:
                return action()
            except OSError as error:
                if isinstance(error, _FINAL) or self._clock() + pause_s > until_s:
                    raise StorageError(f"{self._address}/{name}: could not be {done} ({reason(error)}).") from error
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
