"""Read memory snapshots of other programs without executing anything in the files.

A pickle can import and call anything. A snapshot needs neither: it
consists of dictionaries, lists, tuples, numbers, text, True, False and None (`THCPModule_memorySnapshot`,
torch/csrc/cuda/Module.cpp; `_memory_snapshot_pickled`, torch/csrc/cuda/memory_snapshot.cpp), so that everything else
is refused.
"""

import gc
import gzip
import io
import os
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, Protocol

from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import GIB, MIB, gib_text
from profiler.storage.files.foreign_files import Kind, kind_of, open_regular

SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz")
"""Suffixes of snapshot files in a folder."""

MOST_BYTES = 4 * GIB
"""Largest unpacked snapshot (our choice); larger ones are refused before they are read into memory."""

_READ_BYTES = 1 * MIB
_MEMORY_PER_BYTE = 64
_MEMORY_PER_PACKED_BYTE = 20 * _MEMORY_PER_BYTE
_LEAST_MEMORY_BYTES = 1 * GIB
"""Limits on the memory for reading: a number of 3 bytes becomes an object of 32, and repeated stacks compress
well. Only a file that was crafted for it needs more."""

_KEY = "snapshot"
_HINT = "Write one with torch.cuda.memory._dump_snapshot(PATH)."


def snapshot_files(folder: Path) -> tuple[Path, ...]:
    """Return the snapshots in a folder, by name; subfolders are not searched.

    Raises:
        UsageError: There are none, or the folder cannot be read.
    """
    try:
        found = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and path.is_file())
    except OSError as error:
        raise _fault(folder, f"cannot be read ({error.strerror})") from error
    if not found:
        raise _fault(folder, f"has no file that ends in {', '.join(SUFFIXES)}")
    return tuple(found)


def load_snapshot(path: Path) -> object:
    """Load a pickle, plain or gzipped, that contains only containers, numbers and text.

    Returns:
        Plain values; `profiler.allocator.histories.history.read_history` checks that they are a snapshot.

    Raises:
        UsageError: The file is not of that form. Nothing in it was executed.
    """
    try:
        return _load(path)
    except OSError as error:
        # Errors of gzip have no `strerror`.
        raise _fault(path, f"cannot be read ({error.strerror or error})") from error


def _load(path: Path) -> object:
    if kind_of(path) is Kind.MISSING:
        raise _fault(path, "no such file")
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise _fault(path, "is empty", _HINT)
        start = file.read(2)
        file.seek(0)
        if start == b"PK":
            raise _fault(path, "is an archive, as torch.save writes it, not a pickle", _HINT)
        if start == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _unpickled(path, unpacked, memory_bytes=size * _MEMORY_PER_PACKED_BYTE)
        if size > MOST_BYTES:
            raise _TooLargeError(path)
        return _unpickled(path, file, memory_bytes=size * _MEMORY_PER_BYTE)


class _Source(Protocol):
    """A file that is read."""

    def read(self, size: int, /) -> bytes | None:
        """Up to `size` bytes."""


def _unpickled(path: Path, file: _Source, *, memory_bytes: int) -> object:
    source = io.BufferedReader(_Limited(file, path), _READ_BYTES)
    try:
        with _without_garbage_collection(), _limited_memory(memory_bytes):
            return _PlainUnpickler(source).load()
    except (_TooLargeError, OSError):
        raise
    except _NotPlainError as error:
        problem = (
            f"refers to {error}, and a memory snapshot has containers, numbers and text only; nothing of it was run"
        )
        raise _fault(path, problem) from error
    except EOFError as error:
        raise _fault(path, "ends in the middle: it was not written to its end", _HINT) from error
    except MemoryError as error:
        raise _fault(path, "asks for more memory than a snapshot of its size needs", _HINT) from error
    except Exception as error:  # a damaged pickle can raise anything
        raise _fault(path, f"is not a pickle, or a damaged one ({_first_line(error)})", _HINT) from error


class _NotPlainError(Exception):
    """The pickle refers to something to import."""


class _TooLargeError(UsageError):
    def __init__(self, path: Path) -> None:
        problem = f"has more than {gib_text(MOST_BYTES, 0)}"
        hint = "Record fewer entries: torch.cuda.memory._record_memory_history(max_entries=100000)."
        super().__init__([Fault(key=_KEY, found=str(path), problem=problem, hint=hint)])


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that can build containers, numbers and text, and call nothing."""

    def find_class(self, module_name: str, global_name: str) -> NoReturn:
        """Refuse what the pickle would import."""
        raise _NotPlainError(f"{module_name}.{global_name}"[:80])

    def persistent_load(self, pid: object) -> NoReturn:  # noqa: ARG002
        """Refuse an object that is stored elsewhere."""
        raise _NotPlainError("an object outside of it")


class _Limited(io.RawIOBase):
    """A file from which at most `MOST_BYTES` can be read."""

    def __init__(self, file: _Source, path: Path) -> None:
        self._file = file
        self._path = path
        self._left_bytes = MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, target: object) -> int:
        view = memoryview(target)  # type: ignore[arg-type]  # a buffer, as `io.RawIOBase` calls it
        content = self._file.read(len(view)) or b""
        self._left_bytes -= len(content)
        if self._left_bytes < 0:
            raise _TooLargeError(self._path)
        view[: len(content)] = content
        return len(content)


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector: searching millions of containers for cycles takes longer than reading them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _limited_memory(memory_bytes: int) -> Iterator[None]:
    """Limit the memory of the process, so that a pickle cannot exhaust it.

    A few bytes can make the unpickler allocate a table of 64 GiB (opcode LONG_BINPUT). Linux only.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + max(memory_bytes, _LEAST_MEMORY_BYTES)
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in (before, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([most, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:120] if lines else type(error).__name__


def _fault(path: Path, problem: str, hint: str = "") -> UsageError:
    return UsageError([Fault(key=_KEY, found=str(path), problem=problem, hint=hint)])
