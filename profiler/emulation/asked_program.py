"""Asking a program that the user named: it may be anything, also one that prints without end."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO

MOST_BYTES = 1 << 20
"""Most that a program may print as its answer, and most on standard error."""

_LOOK_S = 0.1
"""How often the length of what it printed is looked at."""


def answer_of(
    command: Sequence[str], *, environment: Mapping[str, str], timeout_s: float, cwd: str | None = None
) -> str:
    """Run a program and return what it prints. Children that it leaves behind are not waited for.

    Raises:
        OSError: It cannot be started.
        ValueError: It prints more than `MOST_BYTES`.
        subprocess.TimeoutExpired: It does not end in time.
        subprocess.CalledProcessError: It ends with another exit code than 0; its `stderr` is text.
    """
    # Files, not pipes: a child that stays behind would keep a pipe open.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, env=dict(environment), cwd=cwd, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors
        )
        try:
            _wait(process, timeout_s, (printed, errors))
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, stderr=_text(errors))
        return _text(printed)


def _wait(process: subprocess.Popen[bytes], timeout_s: float, files: Sequence[BinaryIO]) -> None:
    end_s = time.monotonic() + timeout_s
    while True:
        left_s = end_s - time.monotonic()
        try:
            process.wait(max(0.0, min(_LOOK_S, left_s)))
            ended = True
        except subprocess.TimeoutExpired:
            ended = False
        if any(os.fstat(file.fileno()).st_size > MOST_BYTES for file in files):
            raise ValueError(f"it prints more than {MOST_BYTES} bytes")
        if ended:
            return
        if left_s <= _LOOK_S:
            raise subprocess.TimeoutExpired(process.args, timeout_s)


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
