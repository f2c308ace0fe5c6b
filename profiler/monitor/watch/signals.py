"""Signals while a command runs: they wait until this program reads them, and go on to the command."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Of users, schedulers and terminals. Those that stop and continue processes reach the command by themselves."""

_READ = frozenset((*PASSED_ON, signal.SIGCHLD))

_BY_KERNEL = 0x80
"""`SI_KERNEL`: from the terminal, which sends it to the command as well."""


@contextmanager
def signals_wait() -> Iterator[frozenset[int]]:
    """Within the block signals stay pending; yields the mask from before, which a command must start with.

    Enter it before a library makes threads: a signal goes to any thread that does not block it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _READ)
    try:
        yield frozenset(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raise_pending() -> None:
    """Let the signals that have come so far, and that end a command, do so."""
    pending = signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if pending:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, pending)


def wait_for(process: "subprocess.Popen[bytes]", *, period_s: float, each_period: Callable[[], object]) -> int:
    """Wait until `process` ends, within `signals_wait`, and return its exit code as a shell would report it.

    Args:
        process: A process of the group of this one.
        period_s: How often `each_period` is called, the first time at once. Periods that are missed are skipped.
        each_period: Takes a sample.
    """
    due_s = time.monotonic()
    while process.poll() is None:
        each_period()
        due_s += period_s * max(1, (time.monotonic() - due_s) // period_s)
        _pass_on_until(due_s, process)
    return exit_code_of(process.returncode)


def _pass_on_until(due_s: float, process: "subprocess.Popen[bytes]") -> None:
    """Read signals until `due_s` or until the process has ended."""
    while True:
        found = signal.sigtimedwait(_READ, max(0.0, due_s - time.monotonic()))
        if found is None:
            return
        if found.si_signo == signal.SIGCHLD:
            if process.poll() is not None:
                return
        elif found.si_code != _BY_KERNEL:
            process.send_signal(found.si_signo)


def exit_code_of(code: int) -> int:
    """Return 128 + n for a process that signal n ended, as shells do."""
    return code if code >= 0 else 128 - code
