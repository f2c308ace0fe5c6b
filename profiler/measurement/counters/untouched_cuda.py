"""Import modules that read the compute capability of a GPU without initialising CUDA, and without torch's compiler.

A process that has used CUDA cannot fork workers that use it: each of them ends with "Cannot re-initialize CUDA in
forked subprocess". bitsandbytes calls `torch.cuda.get_device_capability` at import (`cuda_specs.py`), which initialises
CUDA. If that call raised or returned None, bitsandbytes would load its CPU library without a message. Therefore the
parent process reads the capability through NVML and passes it on in an environment variable (`visible.py`).
"""

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from profiler.measurement.driver.visible import CAPABILITIES
from profiler.seams.patching import Patch, patched

_first_users: list[str] = []


@contextmanager
def untouched_cuda(environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """While active, `torch.cuda.get_device_capability` reads the variable; callers that initialise CUDA are noted."""
    stated = (os.environ if environment is None else environment).get(CAPABILITIES, "")
    capabilities: list[tuple[int, ...]] = [
        tuple(int(part) for part in found.split(".")) for found in stated.split(",") if found
    ]
    cuda: Any = torch.cuda
    initialise = cuda._lazy_init

    def answer(device: torch.device | int | str | None = None) -> tuple[int, ...]:
        index: int = cuda._utils._get_device_index(0 if device is None else device, optional=True)
        return capabilities[index]

    def note_and_initialise() -> None:
        if not cuda.is_initialized():
            _first_users.append(_caller(skipped=(__file__, str(cuda.__file__))))
        initialise()

    patches: list[Patch] = [(cuda, "_lazy_init", note_and_initialise)]
    if capabilities:
        patches.append((cuda, "get_device_capability", answer))
    with patched(patches):
        yield


_Function = Callable[..., object]


@contextmanager
def compiled_at_first_call() -> Iterator[None]:
    """While active, `torch.compile` returns a function that is compiled when it is first called.

    bitsandbytes compiles functions for other devices at import (`backends/default/ops.py`), and with them torch's
    compiler is imported: a quarter of the time of a worker's imports, for functions that no GPU calls.
    """
    compiler: Any = torch.compile

    def postponed(model: _Function | None = None, **options: object) -> _Function:
        if model is None:
            return lambda function: postponed(function, **options)
        compiled: list[_Function] = []

        @wraps(model)
        def call(*args: object, **kwargs: object) -> object:
            if not compiled:
                compiled.append(compiler(model, **options))
            return compiled[0](*args, **kwargs)

        return call

    with patched([(torch, "compile", postponed)]):
        yield


def fork_problem() -> str:
    """Return why this forked process cannot use CUDA, as one sentence; empty if it can."""
    cuda: Any = torch.cuda
    if not cuda._is_in_bad_fork():
        return ""
    by = f" by {_first_users[0]}" if _first_users else ""
    return (
        f"CUDA was initialised{by} while the modules of the workers were imported, so no forked worker can use it. "
        "Report this with the versions of torch and bitsandbytes."
    )


def _caller(*, skipped: tuple[str, ...]) -> str:
    """Return the innermost file and line of the stack, without these files."""
    last = [frame for frame in traceback.extract_stack() if frame.filename not in skipped][-1]
    return f"{'/'.join(Path(last.filename).parts[-2:])}:{last.lineno}"
