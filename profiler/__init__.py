"""Profile the GPU memory of training by trl: measured, simulated, estimated and published, side by side."""

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

__version__ = "0.2.0"


def _is_command() -> bool:
    """Return whether this process was started to run a command, and has got no further than this import."""
    program = str((getattr(sys, "argv", None) or [""])[0])
    if program != "-m":  # what it is while `python -m` looks for its module
        return Path(program).name.partition(".")[0] == "grpo-vram"
    words = iter(sys.orig_argv)
    word = next((word for word in words if word.startswith("-m")), "-m")
    package, _, name = (word[2:] or next(words, "")).partition(".")
    return package in (__name__, "grpo_vram") and (
        not name or Path(__file__).with_name(name).joinpath("__main__.py").exists()
    )


def _end(number: int, _frame: object) -> None:
    """End the process with a sentence; nothing has begun that could be stored."""
    os.write(2, b"Interrupted.\n")
    os._exit(128 + number)


if _is_command():  # until the command handles signals itself (`profiler.command_line.interruptible`)
    signal.signal(signal.SIGINT, _end)


def __getattr__(name: str) -> Any:  # noqa: ANN401  a class, imported later
    """Import `VramCallback` when it is asked for: it needs torch and transformers, and the commands must not."""
    if name == "VramCallback":
        return import_module("profiler.callback.vram_callback").VramCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _PackedPackages:
    """Finds the packages that a wheel has packed (`hatch_build.py`): only trials and runs of scripts need them."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        parent, _, own = name.partition(".")
        packed = Path(__file__).with_name(f"{own}.tar.xz")
        if parent != __name__ or not packed.exists():
            return None
        unpacked = import_module("profiler.emulation.building.library_sources").unpacked
        return PathFinder.find_spec(name, [str(unpacked(packed))], target)


sys.meta_path.append(_PackedPackages())
