"""Replacing names of other libraries for a while: the only way to do so in this project."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from profiler.seams.registry import SEAM_OF

Patch = tuple[Any, str, Any]
"""Owner (a module or a class), name, and the replacement."""

_ABSENT = object()


class UnregisteredSeamError(Exception):
    """A name is replaced that the registry does not list."""


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """While active, every name refers to its replacement. A name that did not exist is removed afterwards.

    Raises:
        UnregisteredSeamError: The registry does not list a name.
    """
    originals: list[Patch] = []
    try:
        for owner, name, value in patches:
            _require_registered(owner, name)
            # From the owner's own dictionary: a static method must be restored as one, not as a function.
            originals.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(originals):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


def _require_registered(owner: Any, name: str) -> None:
    key = f"{_owner_name(owner)}.{name}"
    if key not in SEAM_OF:
        raise UnregisteredSeamError(f"{key} is replaced but not registered; add it to profiler/seams/")


def _owner_name(owner: Any) -> str:
    """Return the name of a module or a class as the registry writes it."""
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}:{owner.__qualname__}"
