"""The processes of a stress run: marked by their environment, found and ended without their parent."""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

GONE_WITHIN_S = 60.0
"""Limit against hangs, for the end of a sweep and of its processes."""

MARK = "GRPO_VRAM_PROFILER_STRESS"
"""Environment variable by which the processes of a sweep are found, also without their parent."""


def redirect_output(log: Path) -> None:
    """Write what this process prints to a file, and read nothing."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.close(descriptor)


def send_to_all(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each of our children."""
    for pid in pids:
        os.kill(pid, number)  # not waited for yet, so the number is still that of our child


def exit_code(pid: int, *, within_s: float = 0.0) -> int | None:
    """Return how our child ended, as an exit code or the negative signal number; None while it runs."""
    until_s = time.monotonic() + within_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until_s:
            return None
        time.sleep(0.01)


def left_of(mark: str) -> list[str]:
    """Return the processes of an ended sweep that do not end, after killing them."""
    until_s = time.monotonic() + GONE_WITHIN_S
    while (found := _marked(mark)) and time.monotonic() < until_s:
        time.sleep(0.02)
    for process in found:
        with suppress(psutil.Error):
            process.kill()
    return [str(process) for process in found]


def _marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            # Of a zombie the kernel keeps no environment.
            if process.environ().get(MARK) == mark:
                found.append(process)
    return found
