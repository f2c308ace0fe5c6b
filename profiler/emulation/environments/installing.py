"""Making an environment with torch's CUDA build and without the vendor's libraries."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from profiler.domain.errors import Fault, ProfilerError, UsageError
from profiler.emulation.building.cache import alone, environments_folder
from profiler.emulation.building.compiler import require_compilers
from profiler.emulation.environments.environments import COMPLETE, interpreter_in
from profiler.emulation.environments.pins import pinned_packages
from profiler.emulation.environments.slimming import slim
from profiler.emulation.interpreter import probe

SIZE = "about 2 GB on the disk, of which 1.2 GB are downloaded"

_TRITON = re.compile(r"triton==([\w.]+)")


class InstallationError(ProfilerError):
    """The environment could not be made."""


def install(torch: str, *, base: Path | None, announce: Callable[[str], None]) -> Path:
    """Make an environment, and return its interpreter. A complete one is kept as it is.

    It gets the versions of the trainer that are installed here, and of what that requires.

    Args:
        torch: Version, such as ``"2.13.0"``.
        base: Interpreter that makes the environment; by default this one.
        announce: Called with a sentence before each part that takes long.

    Raises:
        ProfilerError: A compiler is missing, pip fails, or the folder cannot be written.
    """
    require_compilers()
    folder = environments_folder() / f"torch-{torch}"
    announce(f"Environment with torch {torch} for CUDA, without the vendor's libraries: {folder} ({SIZE}).")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with alone(folder.parent / f"{folder.name}.lock", "makes this environment", announce=announce):
            if (folder / COMPLETE).exists():
                announce("It is there already.")
            else:
                _make(folder, torch, base or Path(sys.executable), announce)
    except OSError as error:
        raise InstallationError(f"{folder}: could not be written ({error.strerror or error}).") from error
    return interpreter_in(folder)


def _make(folder: Path, torch: str, base: Path, announce: Callable[[str], None]) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # what an interrupted installation left
    _run([str(base), "-P", "-m", "venv", str(folder)], "the environment")
    pip = [str(interpreter_in(folder)), "-P", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip.append("--no-deps")
    announce(f"Installing torch {torch} and Triton.")
    # With `===` pip takes the index's CUDA build even where a build for the CPU is at hand.
    _run([*pip, f"torch==={torch}"], f"torch {torch}")
    _run([*pip, f"triton=={_required_triton(folder)}"], "Triton")
    announce("Installing the packages that the profiler needs, at the versions that it is tested with.")
    _run([*pip, *pinned_packages()], "the packages")
    interpreter = probe(interpreter_in(folder))
    slim(interpreter.site_packages, interpreter.cuda.partition(".")[0])
    (folder / COMPLETE).write_text(f"{interpreter.torch}\n")


def _required_triton(folder: Path) -> str:
    """Return the version of Triton that the installed torch requires."""
    interpreter = probe(interpreter_in(folder))
    versions = [match[1] for line in interpreter.requires if (match := _TRITON.match(line))]
    if not versions:
        problem = "does not say which Triton it requires"
        raise UsageError([Fault(key="torch", found=interpreter.torch, problem=problem)])
    return versions[0]


def _run(command: Sequence[str], what: str) -> None:
    try:
        subprocess.run(command, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line] or lines or ["no reason given"]
        raise InstallationError(f"Could not install {what}: {errors[-1].strip()}") from error
    except OSError as error:
        raise InstallationError(f"{command[0]} could not be started ({error.strerror or error}).") from error
