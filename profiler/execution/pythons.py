"""The Python program that workers run in: that of the sweep, another one, or an emulated one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from multiprocessing import spawn
from pathlib import Path
from typing import Protocol

from profiler.config.options.reading import is_texts, is_version, read_answer, versions_of
from profiler.config.options.run_options import RunOptions
from profiler.config.trials.specification import DEFAULT_GPU
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.extras import TRAINING, safe_path_flags
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import DistributedType, TrialSpec
from profiler.emulation.interpreter import EMULATION_VERSION, answer_of
from profiler.emulation.launch import EmulatedPython, emulated_python, process_environment, profiler_environment
from profiler.measurement.driver.visible import VisibleGpu, capability_environment, visible_gpus
from profiler.storage.files.foreign_files import expanded, reason


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python program of the same minor version, with all of its environment variables and its search path."""

    executable: str
    environment: Mapping[str, str]
    search_path: tuple[str, ...]
    """Its `sys.path`. multiprocessing gives workers that of the sweep, which has other packages."""


InterpreterOf = Callable[[TrialSpec], Interpreter | None]
"""Returns the Python that a trial runs in; None for that of the sweep."""


def own_python(_: TrialSpec) -> None:
    """Return None: every trial runs in the Python of the sweep."""


@contextmanager
def starting_with(interpreter: Interpreter | None) -> Iterator[None]:
    """Let multiprocessing start processes in `interpreter` while the block runs; None changes nothing."""
    if interpreter is None:
        yield
        return
    executable, environment, path = spawn.get_executable(), dict(os.environ), list(sys.path)
    spawn.set_executable(interpreter.executable)
    _set_environment(interpreter.environment)
    sys.path[:] = interpreter.search_path
    try:
        yield
    finally:
        sys.path[:] = path
        _set_environment(environment)
        spawn.set_executable(executable)


def _set_environment(variables: Mapping[str, str]) -> None:
    for name in os.environ.keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


_QUESTION = """
import json, sys
from dataclasses import asdict
from profiler.domain.machines.extras import missing
from profiler.storage.records.versioned import installed_versions
print(json.dumps({"python": sys.version_info[:2], "path": sys.path, "versions": asdict(installed_versions()),
                  "missing": missing(json.loads(sys.argv[1]))}))
"""

_FORM = {
    "python": is_version,
    "path": is_texts,
    "versions": versions_of(*(each.name for each in fields(Versions))),
    "missing": is_texts,
}

_ANSWER_S = 60.0
"""Time limit of the answer; it takes less than a second, and longer on a cold disk."""


class Workers(Protocol):
    """Workers in another Python."""

    @property
    def versions(self) -> Versions:
        """Versions of the packages that are installed there."""

    def interpreter_of(self, spec: TrialSpec) -> Interpreter:
        """Return the Python of a trial, with its environment variables."""


@dataclass(frozen=True, kw_only=True)
class SimulatedWorkers:
    """Workers that simulate in another Python."""

    versions: Versions
    interpreter: Interpreter

    def interpreter_of(self, _: TrialSpec) -> Interpreter:
        """Return the Python of every trial."""
        return self.interpreter


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a Python says about itself."""

    search_path: tuple[str, ...]
    versions: Versions


def simulated_workers(options: RunOptions) -> SimulatedWorkers:
    """Return the workers in the Python that `options` name.

    Raises:
        UsageError: There is no such Python, or it lacks something.
    """
    executable = executable_of(options)
    assert executable is not None
    environment = {**profiler_environment(executable, base=os.environ), **capability_environment(visible_gpus().gpus)}
    hint = "Name an environment with the packages of the extra simulate (docs/install.md)."
    answer = ask(executable, environment, needed=TRAINING, hint=hint)
    interpreter = Interpreter(executable=str(executable), environment=environment, search_path=answer.search_path)
    return SimulatedWorkers(versions=answer.versions, interpreter=interpreter)


def executable_of(options: RunOptions) -> Path | None:
    """Return the program that `options.python` names, which may be the folder of its environment; None for null.

    Raises:
        UsageError: The path cannot be used.
    """
    if options.python is None:
        return None
    try:
        found = expanded(str(options.python))
        # Not resolved: the link is what belongs to the environment.
        return (found / "bin" / "python" if found.is_dir() else found).absolute()
    except OSError as error:
        problem = f"cannot be found ({reason(error)})"
        raise UsageError([Fault(key="python", found=str(options.python), problem=problem)]) from error


def environment_folder(python: str) -> Path:
    """Return the folder of the environment that a value of `python` names, for a short name of it."""
    path = Path(python).absolute()
    return path.parents[1] if path.parent.name == "bin" else path


def ask(executable: Path, environment: Mapping[str, str], *, needed: Iterable[str], hint: str) -> Answer:
    """Ask a Python for its search path and its packages; it imports none of them.

    Args:
        executable: The program.
        environment: Its environment variables, by which it finds this program.
        needed: Packages without which no trial runs.
        hint: What to do if it cannot be used.

    Raises:
        UsageError: It does not answer, is another Python than this one, or lacks packages.
    """

    def unfit(problem: str) -> UsageError:
        return UsageError([Fault(key="python", found=str(executable), problem=problem, hint=hint)])

    try:
        question = [str(executable), *safe_path_flags(), "-c", _QUESTION, json.dumps(list(needed))]
        said = read_answer(answer_of(question, environment=environment, timeout_s=_ANSWER_S), _FORM)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
        raise unfit(f"cannot run this program ({lines[-1]})") from error
    except OSError as error:
        raise unfit(f"does not run ({error.strerror or error})") from error
    except (ValueError, subprocess.TimeoutExpired) as error:
        raise unfit(f"cannot be asked for its packages ({error})") from error
    here = sys.version_info[:2]
    if tuple(said["python"]) != here:
        there, own = (".".join(map(str, version)) for version in (said["python"], here))
        raise unfit(f"is Python {there}, but this program runs in {own}, and both have to be equal")
    if said["missing"]:
        raise unfit(f"has no {', '.join(said['missing'])}")
    return Answer(search_path=tuple(said["path"]), versions=Versions(**said["versions"]))


_NEEDED = ("trl", "transformers", "peft")
"""Packages without which no trial runs; torch has been found already."""

_HINT = "python -m profiler.emulation install makes an environment that has everything."


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
                self.python,
                KNOWN_GPUS[str(spec.gpu)],
                strict=self.strict,
                num_processes=None if spec.distributed_type is DistributedType.NO else spec.num_processes,
            ),
            search_path=self.search_path,
        )


def emulated_workers(options: RunOptions) -> EmulatedWorkers:
    """Return the workers in the Python that `options` name, or else in the one that the emulation finds.

    Raises:
        UsageError: There is no such Python, or it lacks something.
        ProfilerError: The emulated libraries cannot be built.
    """
    python = emulated_python(executable_of(options), strict=options.strict)
    environment = _environment(python, KNOWN_GPUS[DEFAULT_GPU], strict=True)
    answer = ask(python.executable, environment, needed=_NEEDED, hint=_HINT)
    versions = replace(answer.versions, torch=python.torch, cuda=python.cuda, emulation=EMULATION_VERSION)
    return EmulatedWorkers(python=python, versions=versions, search_path=answer.search_path, strict=options.strict)


def _environment(
    python: EmulatedPython, gpu: Gpu, *, strict: bool, num_processes: int | None = None
) -> Mapping[str, str]:
    """Return the variables of a process on the card: this process's own and the emulation's.

    With processes of a launcher it is rank 0; the others are taken to hold what it holds.
    """
    card = VisibleGpu(uuid="", name=gpu.title, memory_bytes=gpu.memory_bytes, compute_capability=gpu.compute_capability)
    base = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # Every trial has a card of its own, so the driver lists no other process.
    base |= {**capability_environment([card] * (num_processes or 1)), "EMULATED_PROCESSES": os.devnull}
    return process_environment(python, gpu, num_processes=num_processes, base=base, strict=strict)
