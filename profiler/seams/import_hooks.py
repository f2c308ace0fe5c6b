"""Actions before and after the import of a module that the program imports."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

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
        if self in sys.meta_path:
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
