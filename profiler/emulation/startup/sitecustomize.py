"""Prepares a process of another Python before its program runs. Python imports it at the start, from PYTHONPATH.

The environment need not have the profiler installed. An emulated process gets its card here as well. Environments of
ours find this file without PYTHONPATH, which a script may replace (`installing.py`).
"""

import atexit
import enum
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class ThisProfiler(importlib.abc.MetaPathFinder):
    """Finds the package `profiler` that started the process, and nothing else of its environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the package; for every other name None."""
        del path, target
        if name != "profiler":
            return None
        places = [str(self.folder)]
        return importlib.util.spec_from_file_location(
            name, self.folder / "__init__.py", submodule_search_locations=places
        )


def run_other_sitecustomize() -> None:
    """Run the `sitecustomize.py` that this one hides, if the environment has one."""
    own = Path(__file__).parent
    for folder in map(Path, sys.path):
        other = folder / "sitecustomize.py"
        if folder.resolve() != own.resolve() and other.is_file():
            runpy.run_path(str(other))
            return


def follow_phases(enter: Callable[[Any], None]) -> None:
    """Call `enter` when a phase of this process begins; torch is imported."""
    from profiler.emulation.card import (
        CONTENTS_VARIABLE,
        PROCESSES_VARIABLE,
        STEPS_VARIABLE,
        note_content,
        note_setting,
    )
    from profiler.scripts.hooks import follow

    # A worker of Ray does what its driver asks for, which waits for the answer.
    is_worker = any(word.endswith(_WORKER_OF_RAY) for word in sys.orig_argv)
    steps = None if is_worker else int(os.environ.get(STEPS_VARIABLE) or 0) or None

    def step_done(step: int) -> None:
        if step == steps and threading.current_thread() is threading.main_thread():
            note_setting(os.environ[PROCESSES_VARIABLE], "steps", steps)
            atexit.register(leave_process_group)

    follow(enter, note_content if os.environ.get(CONTENTS_VARIABLE) else None, steps=steps, step_done=step_done)


def leave_process_group() -> None:
    """Leave torch's process group, as the end of a script does: its threads abort a process that exits before them."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


_WORKER_OF_RAY = "default_worker.py"


def begin_with(libraries: str) -> None:
    """Let the dynamic linker look into a folder first; a script may have replaced the variable that names it.

    The linker reads it when a process begins, so this one begins again with the same arguments.
    """
    first, *_ = stated = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if first != libraries and sys.executable:
        os.environ["LD_LIBRARY_PATH"] = os.pathsep.join((libraries, *filter(None, stated)))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def prepare_process() -> None:
    """Prepare the process. If that fails it ends: Python would go on, and its figures would be wrong."""
    try:
        if libraries := os.environ.get("EMULATED_LIBRARIES"):
            begin_with(libraries)
            import profiler.emulation

            profiler.emulation.__path__.append(os.environ.get("EMULATED_INSIDE", ""))  # a wheel has it packed
            from profiler.emulation.inside.prepare import prepare

            prepare(os.environ, follow=follow_phases)
        if substitutes := os.environ.get("EMULATED_SUBSTITUTES"):
            from profiler.substitutes.active import provide

            provide(substitutes)
    except Exception as error:
        sys.stderr.write(f"The process could not be prepared for the emulated card: {type(error).__name__}: {error}\n")
        sys.stderr.flush()
        os._exit(2)


if os.environ.get("EMULATED_PROFILER"):
    sys.meta_path.insert(0, ThisProfiler(Path(os.environ["EMULATED_PROFILER"])))
# Another Python of the machine, in which a command runs a tool of the system, has no torch of ours.
if os.environ.keys() & {"EMULATED_LIBRARIES", "EMULATED_SUBSTITUTES"} and hasattr(enum, "StrEnum"):
    prepare_process()
run_other_sitecustomize()
