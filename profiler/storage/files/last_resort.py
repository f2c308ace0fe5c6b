"""Unexpected exceptions: one sentence for the user, and a file with the traceback."""

import os
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiler.domain.errors import EXIT_INTERNAL, ProfilerError, interruption_first
from profiler.storage.files.foreign_files import open_no_link


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
