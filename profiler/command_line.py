"""Shared by all commands: exit codes (docs/exit_codes.md), signals, and printing to a reader that may have closed."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from types import FrameType
from typing import ParamSpec, TextIO

from profiler.domain.errors import EXIT_SIGNAL_BASE, ProfilerError
from profiler.domain.plain_text import plain
from profiler.storage.last_resort import last_resort

Parameters = ParamSpec("Parameters")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; a scheduler, or a machine that is taken back; a closed terminal."""


class Interrupted(KeyboardInterrupt):
    """A signal that ends the command, after it has stored what has finished."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


def as_command(
    name: str, *, when_interrupted: str = ""
) -> Callable[[Callable[Parameters, int]], Callable[Parameters, int]]:
    """Decorate the `main` of a command: turn errors into sentences, and every end of it into an exit code.

    Args:
        name: Name of the command.
        when_interrupted: Sentence for a user who interrupts it.
    """

    def decorate(main: Callable[Parameters, int]) -> Callable[Parameters, int]:
        @wraps(main)
        def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> int:
            try:
                with interruptible(), last_resort(name):
                    return main(*args, **kwargs)
            except ProfilerError as error:
                print_error(str(error))
                return error.exit_code
            except KeyboardInterrupt as error:
                number = error.number if isinstance(error, Interrupted) else signal.SIGINT
                by = "" if number is signal.SIGINT else f" by {number.name}"
                print_error(f"Interrupted{by}. {when_interrupted}".rstrip())
                return EXIT_SIGNAL_BASE + number

        return run

    return decorate


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `Interrupted` at the first signal within the block, and ignore further ones while the command ends.

    SIGINT counts even if a script started the command with `&`, although shells ignore it for such commands. A signal
    that is ignored otherwise, as SIGHUP under `nohup`, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.getsignal(number)
        for number in _SIGNALS
        if number is signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN
    }

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, _ignore)
        raise Interrupted(number)

    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal. Unlike `SIG_IGN`, programs that are started meanwhile do not inherit it."""


# ---- printing --------------------------------------------------------------------------------------------------------


def print_line(line: str) -> None:
    """Print one line for the user."""
    with readable():
        sys.stdout.write(f"{plain(line)}\n")
        sys.stdout.flush()


def print_error(line: str) -> None:
    """Print one line on standard error."""
    try:
        sys.stderr.write(f"{plain(line)}\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


@contextmanager
def readable() -> Iterator[None]:
    """Print within the block. If standard output is closed, end the block and discard all later output.

    rich turns a closed pipe into `SystemExit`, which must not end the command.
    """
    try:
        yield
    except (OSError, SystemExit) as error:
        if not _is_unread(error):
            raise
        _silence(sys.stdout)


def _is_unread(error: BaseException) -> bool:
    """Whether `error` comes from printing to a closed pipe or terminal, also by way of rich."""
    if isinstance(error, SystemExit):
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, OSError) and error.filename is None and error.errno in _UNREAD


_UNREAD = (5, 32)
"""EIO, EPIPE."""


def _silence(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that text that Python still buffers for it raises no error."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
