"""A run of a script in this process, as `python script.py` would run it."""

import argparse
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from profiler.scripts.leaving import OtherProcesses, leaving_watched
from profiler.scripts.session import ScriptSession


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
