"""Profile the GPU memory of training by trl: measured, simulated, estimated and published, side by side."""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:  # noqa: ANN401  a class, imported later
    """Import `VramCallback` when it is asked for: it needs torch and transformers, and the commands must not."""
    if name == "VramCallback":
        return import_module("profiler.callback.vram_callback").VramCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
