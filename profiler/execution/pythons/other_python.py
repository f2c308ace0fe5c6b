"""A Python other than that of the sweep: what is installed there, and how workers start in it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Protocol

from profiler.config.options.python_answer import is_texts, is_version, read_answer, versions_of
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.child_python import safe_path_flags
from profiler.domain.machines.extras import TRAINING
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import TrialSpec
from profiler.emulation.asked_program import answer_of
from profiler.emulation.launch import profiler_environment
from profiler.execution.pythons.interpreter import Interpreter
from profiler.measurement.driver.visible import capability_environment, visible_gpus
from profiler.storage.files.foreign_files import expanded, reason

_QUESTION = """
import json, sys
from dataclasses import asdict
from profiler.domain.machines.extras import missing
from profiler.storage.records.versions import installed_versions
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
