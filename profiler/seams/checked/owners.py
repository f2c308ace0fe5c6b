"""The object that a seam's owner refers to."""

from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from profiler.seams.patching import patched

BITSANDBYTES_CUDA = "bitsandbytes.backends.cuda.ops"


@cache
def owner_of(owner: str) -> Any:
    """Import the module of an owner and follow the path after its colon.

    Raises:
        ImportError: The module does not exist.
        AttributeError: The path does not exist.
    """
    module, _, path = owner.partition(":")
    found: Any = bitsandbytes_cuda() if module == BITSANDBYTES_CUDA else import_module(module)
    for name in filter(None, path.split(".")):
        found = getattr(found, name)
    return found


@cache
def bitsandbytes_cuda() -> ModuleType:
    """Import the Python code of bitsandbytes for CUDA, which it imports by itself only where there is a GPU.

    The import reads a function of torch that builds for the CPU lack.
    """
    with patched([(import_module("torch._C"), "_cuda_getCurrentRawStream", None)]):
        return import_module(BITSANDBYTES_CUDA)
