"""Running a small CUDA program on the emulated card."""

import json
import os
import subprocess
from dataclasses import dataclass

from profiler.domain.cards.gpu import Gpu
from profiler.domain.errors import ProfilerError
from profiler.domain.machines.child_python import safe_path_flags
from profiler.emulation.launch import EmulatedPython, process_environment

_PROGRAM = "profiler.emulation.inside.check_program"
_ZEROS = 74
"""Of 0 to 511, so many are divisible by 7."""

_TIMEOUT_S = 600


class CheckError(ProfilerError):
    """The program did not run as on a card."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """What the program found."""

    card: str
    memory_bytes: int
    allocated_bytes: int
    """Peak of torch's counter."""
    reserved_bytes: int
    values: str
    """``"complete"``, or unknown values that the host read."""


def check(python: EmulatedPython, gpu: Gpu, *, strict: bool = True) -> Check:
    """Run the program and return what it found.

    Raises:
        CheckError: It ended with an error, or a value was wrong.
    """
    environment = process_environment(python, gpu, base=os.environ, strict=strict)
    command = [str(python.executable), *safe_path_flags(), "-m", _PROGRAM]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CheckError(f"The program did not run on the emulated card: {error}") from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise CheckError(f"The program failed on the emulated card: {last}")
    found = json.loads(lines[-1])
    if found["zeros_counted"] != _ZEROS:
        raise CheckError(
            f"The program counted {found['zeros_counted']} zeros on the emulated card instead of {_ZEROS}."
        )
    return Check(
        card=found["card"],
        memory_bytes=found["memory_bytes"],
        allocated_bytes=found["allocated_bytes"],
        reserved_bytes=found["reserved_bytes"],
        values=found["values"],
    )
