"""Starting a process on an emulated card: which Python, and with which environment variables."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from profiler.domain.cards.gpu import Gpu
from profiler.emulation.building.build import libraries_of
from profiler.emulation.card.cards import card_description
from profiler.emulation.environments.environments import installed_environment
from profiler.emulation.interpreter import probe
from profiler.emulation.refusals import refuse, refuse_real_driver

STARTUP_FOLDER = Path(__file__).parent / "startup"
"""On the path of an emulated process: its `sitecustomize.py` prepares torch."""

_PACKAGE_FOLDER = Path(__file__).parents[1]

PROFILER_VARIABLE = "EMULATED_PROFILER"
"""Environment variable with the folder of the package `profiler`, for `STARTUP_FOLDER`."""

_STRICT = "EMULATED_STRICT"

_OF_A_PYTHON = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")

_UNSET = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "LD_PRELOAD", "NVIDIA_VISIBLE_DEVICES", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables of the caller that would change what an emulated process sees."""


class Events(StrEnum):
    """When an event on an emulated card counts as reached. A real card is between the two."""

    EARLY = "early"
    """At once."""
    LATE = "late"
    """When host and card have met."""


@dataclass(frozen=True, kw_only=True)
class EmulatedPython:
    """A Python with torch's CUDA build, and the emulated libraries for it."""

    executable: Path
    torch: str
    """Version of torch, such as ``"2.13.0+cu130"``."""
    cuda: str
    """Version of CUDA that torch was built for."""
    libraries: Path
    """Folder of the emulated libraries."""


def emulated_python(executable: Path | None = None, *, strict: bool = True) -> EmulatedPython:
    """Return a Python that can run on an emulated card, with its libraries built.

    Args:
        executable: Interpreter of an environment with a CUDA build of torch. By default the environment that
            `python -m profiler.emulation install` made, or the one that EMULATION_PYTHON names.
        strict: Refuse a minor version of torch that was never tried.

    Raises:
        UsageError: There is none, it cannot be used, or a real driver is present.
        ProfilerError: The libraries cannot be built.
    """
    refuse_real_driver()
    interpreter = probe((executable or installed_environment()).absolute())
    refuse(interpreter, strict=strict)
    return EmulatedPython(
        executable=interpreter.executable,
        torch=interpreter.torch,
        cuda=interpreter.cuda,
        libraries=libraries_of(interpreter),
    )


def profiler_environment(executable: Path, *, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process of another Python that finds this profiler, and nothing else of ours.

    Args:
        executable: Interpreter that the process runs.
        base: Environment of the caller, usually `os.environ`. What is for the caller's own Python is left out.
    """
    found = {name: value for name, value in base.items() if name not in _OF_A_PYTHON}
    return found | {
        "PATH": _joined(str(executable.parent), base.get("PATH")),
        "PYTHONPATH": str(STARTUP_FOLDER),
        PROFILER_VARIABLE: str(_PACKAGE_FOLDER),
    }


def process_environment(
    python: EmulatedPython,
    gpu: Gpu,
    *,
    cards: int = 1,
    num_processes: int = 1,
    base: Mapping[str, str],
    events: Events = Events.EARLY,
    strict: bool = True,
) -> dict[str, str]:
    """Return the whole environment of a process on emulated cards.

    Args:
        python: Interpreter that the process runs.
        gpu: The card.
        cards: Number of cards of the machine.
        num_processes: Number of ranks of a distributed job, of which the process is rank 0; the others are taken to
            hold what it holds. The machine has at least as many cards.
        base: Environment of the caller, usually `os.environ`.
        events: When events count as reached.
        strict: End the process when it calls an entry point of the driver that has no answer.
    """
    found = {name: value for name, value in base.items() if name not in _UNSET}
    found |= {
        "EMULATED_CARD": card_description(gpu),
        "EMULATED_CARDS": str(max(cards, num_processes)),
        "EMULATED_EVENTS": events.value,
        "EMULATED_LIBRARIES": str(python.libraries),
        "EMULATED_PROCESSES": base.get("EMULATED_PROCESSES") or _processes_folder(),
        "LD_LIBRARY_PATH": _joined(str(python.libraries), base.get("LD_LIBRARY_PATH")),
        "PATH": _joined(str(python.executable.parent), base.get("PATH")),
        "PYTHONPATH": _joined(str(STARTUP_FOLDER), base.get("PYTHONPATH")),
        PROFILER_VARIABLE: str(_PACKAGE_FOLDER),
        "TRITON_LIBCUDA_PATH": str(python.libraries),
    }
    if strict:
        found[_STRICT] = "1"
    if num_processes > 1:
        found |= _distributed(num_processes)
    return found


def is_strict(environment: Mapping[str, str]) -> bool:
    """Return whether a process with this environment ends at an entry point of the driver that has no answer."""
    return _STRICT in environment


def _distributed(num_processes: int) -> dict[str, str]:
    """Return what a launcher would set for rank 0 of a job on one machine."""
    return {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(num_processes),
        "LOCAL_WORLD_SIZE": str(num_processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
    }


def _processes_folder() -> str:
    """Return a folder for what the processes of this job hold; jobs of other callers do not see them."""
    memory = Path("/dev/shm")  # in memory, and gone after a restart
    return str((memory if memory.is_dir() else Path("/tmp")) / f"grpo-vram-emulated-{os.getuid()}-{os.getpid()}")


def _joined(first: str, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else first
