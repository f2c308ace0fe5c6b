"""Putting something in the place of another library's name, and the name back afterwards."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Patch = tuple[Any, str, Any]
"""Owner (a module or a class), name, and what stands in for it."""

_ABSENT = object()


@contextmanager
def patched(patches: Iterable[Patch]) -> Iterator[None]:
    """While active, every name means its stand-in. A name that was not there is gone again afterwards."""
    originals: list[Patch] = []
    try:
        for owner, name, value in patches:
            # From the owner's own dictionary: a static method must come back as one, not as a function.
            originals.append((owner, name, vars(owner).get(name, _ABSENT)))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(originals):
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
