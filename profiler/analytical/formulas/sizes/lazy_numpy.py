"""numpy, imported when one of its names is first used: an estimate of one trial needs none of them.

Import it as ``np``, and numpy itself for a type checker.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:  # noqa: ANN401  anything that numpy has
    """Return the attribute `name` of numpy, and keep it."""
    found = globals()[name] = getattr(import_module("numpy"), name)
    return found
