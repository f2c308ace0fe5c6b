"""A run of a script in this process, as `python script.py` would run it, and how the script leaves it."""

import argparse
import multiprocessing.process
import os
import runpy
import shlex
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from profiler.domain.errors import UnsupportedTrialError
from profiler.scripts.session import ScriptSession

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


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script with its arguments, and after how many optimizer steps it is ended."""

    path: Path
    arguments: Sequence[str]
    steps: int | None
    """None lets it run to its end."""
    note: Callable[[str], None] = lambda _: None
    """Called with the reason before the process ends without a record."""
    others: OtherProcesses = field(default_factory=OtherProcesses)
    """Gets the processes that the script starts."""


@dataclass(frozen=True, kw_only=True)
class ScriptEnd:
    """How a script ended, and how much it trained."""

    exit_code: int
    """0 if it was ended after its steps."""
    ended_by_steps: bool
    steps_run: int
    backwards_run: int
    """Backward passes: of a plain loop, micro-batches."""
    reason: str = ""
    """What the script said when it ended by `sys.exit` or by a fault in its arguments; empty if nothing."""
    unseen: tuple[str, ...] = ()
    """Phases that are not recognised with the installed libraries, each with the reason."""


def run_script(script: Script, session: ScriptSession) -> ScriptEnd:
    """Run `script` in `session`, and notify it of phases.

    Raises:
        Exception: What the script raised.
    """
    # torch is imported here, and not by those who only need the words above.
    from profiler.scripts.hooks import watched
    from profiler.scripts.phase_watch import EndOfStepsError, PhaseWatch

    with session.running():
        watch = PhaseWatch(session, steps=script.steps)
        code, reason = 0, ""
        with watched(watch) as unseen, _as_main(script), leaving_watched(script.others, script.note):
            try:
                runpy.run_path(str(script.path), run_name="__main__")
            except EndOfStepsError:
                pass
            except SystemExit as end:
                code, reason = _exit_code(end.code), _reason(end)
        watch.finish()
    return ScriptEnd(
        exit_code=code,
        reason=reason,
        ended_by_steps=watch.has_ended_script and code == 0,
        steps_run=watch.steps_run,
        backwards_run=watch.backwards_run,
        unseen=tuple(unseen.sentences),
    )


@contextmanager
def _as_main(script: Script) -> Iterator[None]:
    """Give the script the arguments and the search path that it would have had from Python."""
    arguments, path = sys.argv, list(sys.path)
    sys.argv = [str(script.path), *script.arguments]
    if not sys.flags.safe_path:  # as PYTHONSAFEPATH asks
        sys.path.insert(0, str(script.path.parent))
    try:
        yield
    finally:
        sys.argv = arguments
        sys.path[:] = path


def _exit_code(code: object) -> int:
    """Return the exit code of `sys.exit(code)`; a text is printed, as Python does."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    sys.stderr.write(f"{code}\n")
    return 1


def _reason(end: SystemExit) -> str:
    """Return the text that the script ended with, or what argparse found wrong with its arguments."""
    if isinstance(end.code, str):
        return end.code
    for frame, _ in traceback.walk_tb(end.__traceback__):
        message = frame.f_locals.get("message")
        if frame.f_code is argparse.ArgumentParser.error.__code__ and isinstance(message, str):
            return message
    return ""
