"""Whether Python code, and not the autograd engine itself, runs an operation in backward.

The engine runs Python in three places: the backward of an autograd function, the hooks of a tensor, and the functions
that unpack saved tensors (checkpointing recomputes there). Each is wrapped, so that it is known in which run of the
engine (graph task) Python is at work. An engine that such code starts in turn has a graph task of its own.

Hooks of graph nodes, which torch registers in C++, cannot be wrapped; no library of the project adds tensors in one.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import saved_tensors_hooks

from profiler.seams.patching import Patch, patched

NO_BACKWARD = -1
"""`current_graph_task` outside of backward."""

_BACKWARDS = ("apply", "apply_boxed")
"""Torch before 2.13 has only the first."""


class _Running(threading.local):
    """Graph tasks in which Python runs, by thread: the engine has threads of its own for CUDA."""

    def __init__(self) -> None:
        self.graph_tasks: list[int] = []


_running = _Running()


def current_graph_task() -> int:
    """Return the number of the engine's run that the running operation belongs to."""
    return int(torch._C._current_graph_task_id())


def python_is_running() -> bool:
    """Whether Python that the engine called has not returned yet. Only while `watched` is active."""
    tasks = _running.graph_tasks
    return bool(tasks) and tasks[-1] == current_graph_task()


def watched() -> AbstractContextManager[None]:
    """While active, Python that the engine calls is noticed; hooks only if they are registered meanwhile."""
    unpacking = saved_tensors_hooks.__init__
    register, register_after = torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook

    def save_with_hooks(self: Any, pack_hook: Callable[..., Any], unpack_hook: Callable[..., Any]) -> None:
        unpacking(self, pack_hook, _noticed(unpack_hook))

    def register_hook(self: torch.Tensor, hook: Callable[..., Any]) -> Any:
        return register(self, _noticed(hook))

    def register_hook_after(self: torch.Tensor, hook: Callable[..., Any]) -> Any:
        return register_after(self, _noticed(hook))

    return patched(
        [
            *_noticed_backwards(),
            (saved_tensors_hooks, "__init__", save_with_hooks),
            (torch.Tensor, "register_hook", register_hook),
            (torch.Tensor, "register_post_accumulate_grad_hook", register_hook_after),
        ]
    )


def _noticed_backwards() -> list[Patch]:
    """Return replacements of the methods by which the engine runs the backward of an autograd function."""
    methods = {name: getattr(BackwardCFunction, name, None) for name in _BACKWARDS}
    return [(BackwardCFunction, name, _noticed_method(method)) for name, method in methods.items() if method]


def _noticed_method(method: Callable[..., Any]) -> Callable[..., Any]:
    def run(self: Any, *args: Any) -> Any:
        with _in_python():
            return method(self, *args)

    return run


def _noticed(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with _in_python():
            return function(*args)

    return run


@contextmanager
def _in_python() -> Iterator[None]:
    _running.graph_tasks.append(current_graph_task())
    try:
        yield
    finally:
        _running.graph_tasks.pop()
