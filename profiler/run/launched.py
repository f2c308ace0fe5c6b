"""What a launcher would hand to the script's process besides its rank."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import profiler
from profiler.domain.errors import Fault, UsageError
from profiler.emulation.asked_program import answer_of
from profiler.run.command import Command

_PROGRAM = Path(profiler.__file__).parent / "worker" / "scripts" / "accelerate_launch.py"
_LIMIT_S = 120.0
_ACCELERATE = ("accelerate", "launch")
_DEEPSPEED = "deepspeed"
_WITHOUT_RANK = ("--no_local_rank", "--no-local-rank")


def launcher_arguments(command: Command) -> tuple[str, ...]:
    """Return the arguments that the launcher puts in front of the script's own."""
    words = command.launch.words
    if not words or words[0] != _DEEPSPEED or set(words) & set(_WITHOUT_RANK):
        return ()
    return ("--local_rank=0",)


def launcher_variables(command: Command, executable: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment variables that the launcher sets for the script.

    Raises:
        UsageError: accelerate refuses its words.
    """
    words = command.launch.words
    if words[:2] != _ACCELERATE:
        return {}
    own = [f"--num_processes={command.options.num_processes}"] if command.options.num_processes else []
    asked = [str(executable), str(_PROGRAM), *words[2:], *own, str(command.script), *command.arguments]
    try:
        printed = answer_of(asked, environment=environment, timeout_s=_LIMIT_S)
        return dict(json.loads(printed.splitlines()[-1]))
    except subprocess.CalledProcessError as error:
        problem = (error.stderr.strip().splitlines() or [f"exit code {error.returncode}"])[-1]
    except (OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    hint = "See accelerate launch --help."
    raise UsageError([Fault(key="launcher", found=" ".join(words), problem=f"is refused ({problem})", hint=hint)])
