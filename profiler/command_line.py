"""What all commands share: exit codes (docs/exit_codes.md), signals, and printing that nobody may read any more."""

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
from profiler.storage.last_resort import last_resort

Parameters = ParamSpec("Parameters")

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C; a machine that is taken back, or a scheduler; a terminal that is closed."""


class Interrupted(KeyboardInterrupt):
    """One of the signals that end a command in good order."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


def as_command(
    name: str, *, when_interrupted: str = ""
) -> Callable[[Callable[Parameters, int]], Callable[Parameters, int]]:
    """Decorate the `main` of a command: every way that it can end becomes an exit code, and errors one sentence each.

    Args:
        name: The command's name.
        when_interrupted: What to tell a user who interrupted it.
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
    """A block in which the first of the signals raises `Interrupted`; those after it are ignored, for a good end.

    SIGINT counts even where a script has started the command with `&`, for which shells have it ignored. The others
    stay ignored where they are: `nohup` means it.
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
    """Unlike `SIG_IGN` this is not inherited by programs that are started meanwhile."""


# ---- printing --------------------------------------------------------------------------------------------------------


def print_line(line: str) -> None:
    """One line for the user."""
    with readable():
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()


def print_error(line: str) -> None:
    """One line on standard error."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


@contextmanager
def readable() -> Iterator[None]:
    """A block that prints. If nobody reads standard output any more it ends early, and later ones print to nowhere.

    rich turns a closed pipe into `SystemExit`, which must not end the command.
    """
    try:
        yield
    except (OSError, SystemExit) as error:
        if not _is_unread(error):
            raise
        _silence(sys.stdout)


def _is_unread(error: BaseException) -> bool:
    """Whether `error` is from printing: a closed pipe, a terminal that is gone, or rich's way to say so."""
    if isinstance(error, SystemExit):
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, OSError) and error.filename is None and error.errno in _UNREAD


_UNREAD = (5, 32)
"""EIO, EPIPE."""


def _silence(stream: TextIO) -> None:
    """Have the stream lead nowhere, so that what Python still holds back for it fails no more either."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
