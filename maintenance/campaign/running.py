"""Run one stage of the campaign: its steps in order, within a time limit."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from maintenance.campaign.stages import FOLDER, Stage, Step
from profiler.domain.errors import EXIT_GPU_UNUSABLE, EXIT_SIGNAL_BASE, EXIT_SOME_TRIALS_FAILED, EXIT_USAGE

GRACE_S = 30.0
"""From SIGINT, at which a sweep ends its workers and writes its tables, to SIGKILL."""

_ENVIRONMENT: Mapping[str, str] = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
"""Disable downloads and buffered output."""

_INTERRUPTED = tuple(EXIT_SIGNAL_BASE + number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))

_ENDS_THE_STAGE = (EXIT_USAGE, EXIT_GPU_UNUSABLE, *_INTERRUPTED)
"""Exit codes after which later steps are not run."""

RunStep = Callable[[Sequence[str], float], int | None]
"""Runs Python with these words for at most so many seconds; returns the exit code, or None after the time limit."""


@dataclass(frozen=True, kw_only=True)
class StageEnd:
    """How a stage ended."""

    exit_code: int
    line: str
    """Sentence for the user."""


def run_stage(
    stage: Stage,
    folder: Path,
    *,
    limit_s: float,
    more: Sequence[str] = (),
    run: RunStep | None = None,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = print,
) -> StageEnd:
    """Run the steps of a stage in order. After a failed step the next one runs.

    Args:
        stage: What to run.
        folder: The folder of the campaign.
        limit_s: After this time the running step is interrupted; the same command continues the stage.
        more: Further keys for each sweep.
        run: Runs one step; a subprocess by default.
        clock: Monotonic, in seconds.
        say: Prints a line.
    """
    until_s, worst = clock() + limit_s, 0
    for step in stage.steps:
        left_s = until_s - clock()
        say(f"== {stage.letter}: {step.name.replace(FOLDER, str(folder))}")
        code = (run or _run)(_words(step, folder, more), left_s) if left_s > 0 else None
        if code is None:
            line = f"Stage {stage.letter} is not finished after {limit_s:g} s; the same command goes on."
            return StageEnd(exit_code=EXIT_SOME_TRIALS_FAILED, line=line)
        if code and (step.is_prerequisite or code in _ENDS_THE_STAGE):
            why = (
                "its first trial has no answer, so nothing else would have one" if step.is_prerequisite else "see above"
            )
            return StageEnd(exit_code=code, line=f"Stage {stage.letter} ends with exit code {code}: {why}.")
        worst = code or worst
    done = "is done" if worst == 0 else f"is done; some steps failed, the last with exit code {worst}"
    return StageEnd(exit_code=worst, line=f"Stage {stage.letter} {done}.")


def _words(step: Step, folder: Path, more: Sequence[str]) -> list[str]:
    words = [word.replace(FOLDER, str(folder)) for word in step.words]
    return [*words, *more] if "profiler.sweep" in words else words


def _run(words: Sequence[str], limit_s: float) -> int | None:
    with subprocess.Popen([sys.executable, *words], env={**_ENVIRONMENT, **os.environ}) as process:
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            _end(process)
            return None
        except BaseException:  # the stage is interrupted: also interrupt its step
            _end(process)
            raise
        return code if code >= 0 else EXIT_SIGNAL_BASE - code


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
