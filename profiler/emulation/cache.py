"""Where built libraries and environments are kept."""

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "GRPO_VRAM_CACHE"
"""Environment variable: a folder for built libraries and environments, instead of the user's cache folder."""


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder: `VARIABLE`, or `grpo-vram-profiler` in the XDG cache folder."""
    found = os.environ if environment is None else environment
    if given := found.get(VARIABLE):
        return Path(given).expanduser().absolute()
    home = Path(found.get("HOME") or Path.home())
    return Path(found.get("XDG_CACHE_HOME") or home / ".cache") / "grpo-vram-profiler"


def libraries_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of built libraries; one folder in it per torch."""
    return cache_folder(environment) / "emulated_libraries"


def environments_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of environments that `python -m profiler.emulation install` made."""
    return cache_folder(environment) / "emulated_environments"
