"""When a program is not emulated: what would make its figures wrong without a sign of it."""

import ctypes
import os
from collections.abc import Mapping

from profiler.domain.errors import Fault, UsageError
from profiler.emulation.interpreter import Interpreter
from profiler.emulation.version import TRIED_TORCH


def refuse(interpreter: Interpreter, *, strict: bool) -> None:
    """Refuse an environment whose figures would be wrong, or were never looked at.

    Raises:
        UsageError: Triton is missing; or `strict` and this minor version of torch was never tried.
    """
    where = str(interpreter.executable)
    if not interpreter.has_triton:
        problem = "has no triton, without which libraries take other paths and their figures are wrong"
        raise UsageError(
            [Fault(key="python", found=where, problem=problem, hint=f"Run {where} -m pip install triton.")]
        )
    if strict and interpreter.torch_minor not in TRIED_TORCH:
        problem = f"has torch {interpreter.torch}, and the emulation was tried with {', '.join(TRIED_TORCH)} only"
        raise UsageError([Fault(key="python", found=where, problem=problem, hint="strict=false goes on.")])


def refuse_real_driver(environment: Mapping[str, str] | None = None) -> None:
    """Refuse to emulate where a real NVIDIA driver is.

    Raises:
        UsageError: The driver's library can be opened, and the user did not ask for the emulation all the same.
    """
    found = os.environ if environment is None else environment
    if has_real_driver() and found.get(ALLOW_VARIABLE) != "1":
        raise UsageError(
            [
                Fault(
                    key="backend",
                    found="emulated",
                    problem="a real NVIDIA driver is present, with which figures can be measured",
                    hint=f"Use backend=cuda, or set {ALLOW_VARIABLE}=1 to emulate all the same.",
                )
            ]
        )


ALLOW_VARIABLE = "GRPO_VRAM_EMULATE_ANYWAY"
"""Environment variable: 1 to emulate although a real driver is present."""


def has_real_driver() -> bool:
    """Whether the library of a real driver can be opened in this process."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return not hasattr(library, "em_card")
