"""The module that is running on the simulated GPU, in forward and in backward.

In forward this is the top of a stack of modules. In backward no module is called, but every node of the graph has a
sequence number that grows as the graph is built. In forward the numbers at which a module begins and ends are noted;
in backward they map the running node to its module.
"""

from bisect import bisect_right
from contextlib import AbstractContextManager
from typing import Any

import torch

from profiler.seams.patching import patched

_PEFT_PREFIX = "base_model.model."


def plain_path(path: str) -> str:
    """Return a path as transformers names it, without peft's wrapper."""
    return path.removeprefix(_PEFT_PREFIX)


_ACCUMULATION = 1 << 62
"""Nodes that accumulate a gradient have the highest sequence number, so that they run first."""


class ModulePaths:
    """Paths of modules as transformers names them, without peft's wrapper."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._paths: list[str] = []

    def know(self, model: Any, *, prefix: str = "") -> None:
        """Register the names of a model's modules; `prefix` distinguishes models."""
        for name, module in model.named_modules():
            self._names[id(module)] = prefix + plain_path(name)

    def current(self) -> str:
        """Return the innermost module in forward, or the module whose backward runs; empty outside of modules."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None or not self._numbers:
            return ""
        number = node._sequence_nr()
        return "" if number >= _ACCUMULATION else self._paths[max(0, bisect_right(self._numbers, number) - 1)]

    def watching(self) -> AbstractContextManager[None]:
        """While active, calls of modules are noticed."""
        call = torch.nn.Module.__call__

        def noticed(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._enter(self._names.get(id(module), self._stack[-1] if self._stack else ""))
            try:
                return call(module, *args, **kwargs)
            finally:
                self._leave()

        return patched([(torch.nn.Module, "__call__", noticed)])

    def _enter(self, path: str) -> None:
        self._stack.append(path)
        self._note_change(path)

    def _leave(self) -> None:
        self._stack.pop()
        self._note_change(self._stack[-1] if self._stack else "")

    def _note_change(self, path: str) -> None:
        if torch.is_grad_enabled():
            self._numbers.append(torch._C._autograd._get_sequence_nr())
            self._paths.append(path)
