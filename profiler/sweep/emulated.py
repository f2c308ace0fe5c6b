"""The Python of a sweep's emulated trials: which one, what is installed there, and how workers start in it."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from profiler.config.run_options import RunOptions
from profiler.config.specification import DEFAULT_GPU
from profiler.domain.errors import Fault, UsageError
from profiler.domain.gpu import KNOWN_GPUS, Gpu
from profiler.domain.outcome import Versions
from profiler.domain.trial import TrialSpec
from profiler.emulation.launch import EmulatedPython, emulated_python, process_environment
from profiler.emulation.version import EMULATION_VERSION
from profiler.execution.interpreter import Interpreter
from profiler.measurement.visible import VisibleGpu, capability_environment
from profiler.storage.foreign_files import expanded, reason

_QUESTION = """
import json, sys
from dataclasses import asdict
from profiler.storage.versions import installed_versions
print(json.dumps({"python": sys.version_info[:2], "path": sys.path, "versions": asdict(installed_versions())}))
"""

_ANSWER_S = 60.0
"""Time limit of the answer; it takes less than a second, and longer on a cold disk."""

_NEEDED = ("trl", "transformers", "peft")
"""Packages without which no trial runs; torch has been found already."""


@dataclass(frozen=True, kw_only=True)
class EmulatedWorkers:
    """Workers in a Python with torch's CUDA build, on emulated cards."""

    python: EmulatedPython
    versions: Versions
    """Of the packages that are installed there."""
    search_path: tuple[str, ...]
    strict: bool

    def interpreter_of(self, spec: TrialSpec) -> Interpreter:
        """Return the Python of an emulated trial, with its card in the environment variables."""
        return Interpreter(
            executable=str(self.python.executable),
            environment=_environment(
                self.python, KNOWN_GPUS[str(spec.gpu)], strict=self.strict, num_processes=spec.num_processes
            ),
            search_path=self.search_path,
        )


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """What the Python says about itself."""

    version: tuple[int, int]
    search_path: tuple[str, ...]
    versions: Versions


def emulated_workers(options: RunOptions) -> EmulatedWorkers:
    """Return the workers in the Python that `options` name, or else in the one that the emulation finds.

    Raises:
        UsageError: There is no such Python, or it lacks something.
        ProfilerError: The emulated libraries cannot be built.
    """
    python = emulated_python(_executable(options), strict=options.strict)
    answer = _ask(python)
    _check(python, answer)
    versions = replace(answer.versions, torch=python.torch, cuda=python.cuda, emulation=EMULATION_VERSION)
    return EmulatedWorkers(python=python, versions=versions, search_path=answer.search_path, strict=options.strict)


def _executable(options: RunOptions) -> Path | None:
    if options.python is None:
        return None
    try:
        return expanded(str(options.python))
    except OSError as error:
        problem = f"cannot be found ({reason(error)})"
        raise UsageError([Fault(key="python", found=str(options.python), problem=problem)]) from error


def _environment(python: EmulatedPython, gpu: Gpu, *, strict: bool, num_processes: int = 1) -> Mapping[str, str]:
    """Return the variables of a process on the card: this process's own and the emulation's.

    With several processes it is rank 0; the others are taken to hold what it holds.
    """
    card = VisibleGpu(uuid="", name=gpu.title, memory_bytes=gpu.memory_bytes, compute_capability=gpu.compute_capability)
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Every trial has a card of its own, so the driver lists no other process.
    base |= {**capability_environment([card] * num_processes), "EMULATED_PROCESSES": os.devnull}
    return process_environment(python, gpu, num_processes=num_processes, base=base, strict=strict)


def _ask(python: EmulatedPython) -> _Answer:
    """Ask the Python for its version, its search path and its packages; it imports none of them."""
    try:
        asked = subprocess.run(
            [str(python.executable), "-c", _QUESTION],
            env=_environment(python, KNOWN_GPUS[DEFAULT_GPU], strict=True),
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=True,
        )
        said = json.loads(asked.stdout)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise _unfit(python, f"cannot run this program ({lines[-1]})") from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise _unfit(python, f"cannot be asked for its packages ({error})") from error
    major, minor = said["python"]
    return _Answer(version=(major, minor), search_path=tuple(said["path"]), versions=Versions(**said["versions"]))


def _check(python: EmulatedPython, answer: _Answer) -> None:
    """Check that workers of this sweep can run there.

    Raises:
        UsageError: It is another Python, or lacks packages.
    """
    here = sys.version_info[:2]
    if answer.version != here:
        there, needed = (f"{major}.{minor}" for major, minor in (answer.version, here))
        raise _unfit(python, f"is Python {there}, but this program runs in {needed}, and both have to be equal")
    missing = [name for name in _NEEDED if getattr(answer.versions, name) is None]
    if missing:
        raise _unfit(python, f"has no {', '.join(missing)}")


def _unfit(python: EmulatedPython, problem: str) -> UsageError:
    hint = "python -m profiler.emulation install makes an environment that has everything."
    return UsageError([Fault(key="python", found=str(python.executable), problem=problem, hint=hint)])
