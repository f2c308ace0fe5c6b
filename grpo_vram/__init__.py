"""The Python API of `profiler`, its other name, and the console script: they find it next to this package.

A folder `profiler` of the user, in the folder where Python was started, would otherwise be imported in its place.
"""

import sys
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiler.api import (
        Estimate,
        Job,
        Limit,
        Recommendation,
        SmallestCard,
        UsageError,
        advise,
        estimate,
        read_recipe,
        smallest_card,
        solve,
    )
    from profiler.callback.vram_callback import VramCallback

__all__ = [
    "Estimate",
    "Job",
    "Limit",
    "Recommendation",
    "SmallestCard",
    "UsageError",
    "VramCallback",
    "advise",
    "estimate",
    "main",
    "read_recipe",
    "smallest_card",
    "solve",
]

_NAME = "profiler"


def main() -> int:
    """Run the console script `grpo-vram` and return the exit code."""
    code: int = import_module("profiler.console").main()
    return code


def __getattr__(name: str) -> Any:  # noqa: ANN401  anything that the package has
    """Return a name of the API, which is imported when it is asked for, or an attribute of `profiler`."""
    api = import_module("profiler.api") if name in __all__ else None
    if hasattr(api, name):
        return getattr(api, name)
    return getattr(sys.modules[_NAME], name)


def _import_neighbour() -> None:
    """Import the package `profiler` of this distribution under its name.

    Raises:
        ImportError: Another package of this name is imported already.
    """
    folder = Path(__file__).resolve().parents[1]
    found = sys.modules.get(_NAME)
    if found is not None:
        if Path(str(found.__file__)).resolve().parent != folder / _NAME:
            raise ImportError(f"{found.__file__} is imported as '{_NAME}' already: import grpo_vram before it")
        return
    spec = PathFinder.find_spec(_NAME, [str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder / _NAME} is missing: install grpo-vram again")
    module = sys.modules[_NAME] = module_from_spec(spec)
    spec.loader.exec_module(module)


_import_neighbour()
