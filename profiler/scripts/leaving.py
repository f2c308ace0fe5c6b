"""How a script leaves its process, and which other processes it starts: neither is seen from what it does on a card."""

import multiprocessing.process
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from profiler.domain.errors import UnsupportedTrialError

_RUNS_SCRIPTS = ("python", "torchrun", "accelerate", "deepspeed", "ray", "vllm", "bash", "sh")
"""First letters of programs that may run a training; others, such as git or nvidia-smi, do not."""


class OtherProcesses:
    """The processes that a script starts, each by its command or its function."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def add_command(self, words: Any) -> None:
        """Take note of a command, if it may run a training."""
        text = _command(words)
        program = Path(text.split(maxsplit=1)[0]).name if text.strip() else ""
        if program.startswith(_RUNS_SCRIPTS):
            self.names[f"the command `{text}`"] = None

    def add_function(self, function: Any) -> None:
        """Take note of a function that runs in a process of its own."""
        if function is not None:
            self.names[f"the function {getattr(function, '__qualname__', function)}"] = None

    def sentence(self) -> str:
        """Return which processes there were; empty if none is known."""
        if not self.names:
            return ""
        first, *others = self.names
        more = f" and {len(others)} more" if others else ""
        return f"it started other processes, whose memory is not counted: {first}{more}"


@contextmanager
def leaving_watched(others: OtherProcesses, note: Callable[[str], None]) -> Iterator[None]:
    """While active, `os._exit` ends the script as `sys.exit` does, an exec is refused, and processes are noted.

    Args:
        others: Gets the processes that the script starts.
        note: Called before the process ends without a record: `os._exit` in a thread other than the first one.
    """
    watch = _Watch(others)
    sys.addaudithook(watch)
    processes: Any = multiprocessing.process.BaseProcess
    leave, start = os._exit, processes.start

    def leave_as_script(status: int) -> NoReturn:
        if os.getpid() == watch.pid:
            if threading.current_thread() is threading.main_thread():
                sys.exit(status)
            note(f"a thread of the script ended the process by os._exit({status})")
        leave(status)

    def start_noted(process: Any) -> None:
        others.add_function(getattr(process, "_target", None))
        start(process)

    os._exit, processes.start = leave_as_script, start_noted
    try:
        yield
    finally:
        watch.is_active = False
        os._exit, processes.start = leave, start


class _Watch:
    """A hook of Python's audit events; Python cannot remove one, so that it is switched off."""

    def __init__(self, others: OtherProcesses) -> None:
        self.pid = os.getpid()
        self.is_active = True
        self._others = others

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_active or os.getpid() != self.pid:
            return
        if event == "os.exec":
            raise UnsupportedTrialError(
                f"the script replaces its own process by `{_command(arguments[1])}`: give profiler.run that command"
            )
        if event in ("subprocess.Popen", "os.posix_spawn", "os.spawn"):
            self._others.add_command(arguments[1] if event != "os.spawn" else arguments[2])
        elif event == "os.system":
            self._others.add_command(arguments[0])


def _command(words: Any) -> str:
    """Return a command, which callers give as a text or as words, either of them as bytes too."""
    if isinstance(words, Sequence) and not isinstance(words, str | bytes):
        return shlex.join(os.fsdecode(word) for word in words)
    return os.fsdecode(words) if isinstance(words, str | bytes | os.PathLike) else ""
