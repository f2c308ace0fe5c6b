"""Replacing names of other libraries for a while, and actions around their import."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

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


def uncounted(constants: ModuleType) -> list[Patch]:
    """Return the patch of `huggingface_hub.constants` that keeps trl from reporting a trainer.

    A run that measures memory is no use of trl, and its card need not exist; trl leaves out runs of CI for that reason.
    """
    return [(constants, "HF_HUB_DISABLE_TELEMETRY", True)]


def _require_registered(owner: Any, name: str) -> None:
    # Here, because an emulated process replaces nothing, and the registry takes half of the time of its start.
    from profiler.seams.libraries import SEAM_OF

    key = f"{_owner_name(owner)}.{name}"
    if key not in SEAM_OF:
        raise UnregisteredSeamError(f"{key} is replaced but not registered; add it to profiler/seams/")


def _owner_name(owner: Any) -> str:
    """Return the name of a module or a class as the registry writes it."""
    return owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}:{owner.__qualname__}"


Action = Callable[[ModuleType], None]


class _Hook(importlib.abc.MetaPathFinder):
    """Finds one module as Python would, and acts around its execution, once."""

    def __init__(self, name: str, before: Callable[[], None] | None, after: Action | None) -> None:
        self.name, self.before, self.after = name, before, after
        self.searching = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec, with the actions around its loader."""
        del path, target
        if name != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def cancel(self) -> None:
        """Do nothing at the import."""
        if self in (sys.meta_path or ()):  # None while Python ends
            sys.meta_path.remove(self)

    def _wrap(self, loader: importlib.abc.Loader) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if self.before is not None:
                self.before()
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                if self.after is not None:
                    self.after(module)

        loader.exec_module = exec_module  # type: ignore[method-assign]


def around_import(
    name: str, *, before: Callable[[], None] | None = None, after: Action | None = None
) -> Callable[[], None]:
    """Call `before` and `after` around the first import of a module; `after` gets the module.

    Returns:
        A function that ends this, if the module has not been imported yet.
    """
    hook = _Hook(name, before, after)
    sys.meta_path.insert(0, hook)
    return hook.cancel
