"""Shared by all commands: exit codes (docs/exit_codes.md), signals, and printing to a reader that may have closed."""

import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TextIO

from profiler.domain.errors import EXIT_OK, EXIT_SIGNAL_BASE, Fault, ProfilerError, UsageError, interruption_first
from profiler.domain.text import plain
from profiler.storage.files.atomic import last_resort

Parameters = ParamSpec("Parameters")

_SIGNALS: tuple[signal.Signals, ...] = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)
"""Ctrl-C; a scheduler, or a machine that is taken back; a closed terminal, which Windows does not signal."""


_AGAIN_AFTER_S = 0.02
"""When a signal is sent again; a finalizer takes less."""


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
                with _outputs() as outputs, interruptible(), last_resort(name):
                    _check_working_folder()
                    return outputs.exit_code(main(*args, **kwargs))
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


def _check_working_folder() -> None:
    """Check that the working folder still exists: libraries crash without one.

    Raises:
        UsageError: It does not.
    """
    try:
        Path.cwd()
    except OSError as error:
        problem = f"the folder in which this command was started is gone ({error.strerror})"
        fault = Fault(key="working folder", found="(gone)", problem=problem, hint="Change to a folder that exists.")
        raise UsageError([fault]) from error


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

    def listen() -> None:
        for number in before:
            signal.signal(number, interrupt)

    listen()
    try:
        with _raised_again(listen), interruption_first():
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _raised_again(listen: Callable[[], None]) -> Iterator[None]:
    """Send a signal again that arrived in a finalizer: Python drops what is raised there, and nothing would end."""
    others, active = sys.unraisablehook, True

    def send(number: int) -> None:
        if active:
            os.kill(os.getpid(), number)

    def hook(found: "sys.UnraisableHookArgs") -> None:
        if not isinstance(found.exc_value, Interrupted):
            others(found)
            return
        listen()
        again = threading.Timer(_AGAIN_AFTER_S, send, [found.exc_value.number])
        again.daemon = True
        again.start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        active, sys.unraisablehook = False, others


def _ignore(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal. Unlike `SIG_IGN`, programs that are started meanwhile do not inherit it."""


# ---- printing --------------------------------------------------------------------------------------------------------


class _Outputs:
    """Standard output and error of a command."""

    def __init__(self) -> None:
        self.problem = ""
        """Why standard output was not written in full; empty if it was, or if its reader has closed it."""

    def exit_code(self, code: int) -> int:
        """Return the exit code of a command that ends with `code`: output that was lost is not a success."""
        with readable():
            sys.stdout.flush()
        return ProfilerError.exit_code if code == EXIT_OK and self.problem else code

    def lose(self, problem: str) -> None:
        """Report once that standard output cannot be written, and discard it from now on."""
        _silence(sys.stdout)
        if not self.problem:
            self.problem = problem
            print_error(f"Standard output cannot be written ({problem}); the command goes on without it.")


_current: list[_Outputs] = []
"""Of the commands that run, the outermost first: `grpo-vram` runs the others."""


@contextmanager
def _outputs() -> Iterator[_Outputs]:
    _open_standard_streams()
    _current.append(_Outputs())
    try:
        yield _current[0]
    finally:
        _current.pop()


def _open_standard_streams() -> None:
    """Open the null device for each standard stream that is closed, and print any character on every terminal.

    Without a standard stream the next file that is opened takes its number, and what a library prints goes there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_RDWR)
                if nowhere != number:
                    os.dup2(nowhere, number)
                    os.close(nowhere)
            setattr(sys, name, open(number, "r" if number == 0 else "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def print_line(line: str) -> None:
    """Print one line for the user."""
    print_text(f"{line}\n")


def print_text(text: str) -> None:
    """Print text for the user."""
    with readable():
        sys.stdout.write(plain(text))
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
    """Print within the block. If standard output is closed or its disk is full, end the block and discard later output.

    rich turns a closed pipe into `SystemExit`, which must not end the command.
    """
    try:
        yield
    except (OSError, SystemExit) as error:
        if _is_unread(error):
            _silence(sys.stdout)
        elif isinstance(error, OSError) and error.filename is None and error.errno in _FULL and _current:
            _current[0].lose(error.strerror or str(error))
        else:
            raise


def _is_unread(error: BaseException) -> bool:
    """Whether `error` comes from printing to a closed pipe or terminal, also by way of rich."""
    if isinstance(error, SystemExit):
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, OSError) and error.filename is None and error.errno in _UNREAD


_UNREAD = (errno.EIO, errno.EPIPE, errno.EBADF)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _silence(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that text that Python still buffers for it raises no error."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
