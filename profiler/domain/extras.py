"""The extras of the distribution, and the packages that are missing without them."""

from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec

from profiler.domain.errors import Fault, UsageError

DISTRIBUTION = "grpo-vram-profiler"


class Extra(StrEnum):
    """What `pip install 'grpo-vram-profiler[NAME]'` adds to the commands that need no torch."""

    SIMULATE = "simulate"
    MEASURE = "measure"
    EMULATE = "emulate"
    VLLM = "vllm"
    S3 = "s3"
    GCS = "gcs"
    RAY = "ray"
    SLURM = "slurm"


TRAINING = ("accelerate", "bitsandbytes", "datasets", "peft", "torch", "transformers", "trl")
"""What a worker imports."""


def missing(modules: Sequence[str]) -> tuple[str, ...]:
    """Return which of these modules are not installed. None of them is imported."""
    return tuple(name for name in modules if find_spec(name) is None)


def install_hint(extra: Extra) -> str:
    """Return the command that installs an extra, as a sentence."""
    return f"Install the extra '{extra}': pip install '{DISTRIBUTION}[{extra}]'."


def simulation_hint() -> str:
    """Return what to do about a model for which there is no closed form, as a sentence."""
    return install_hint(Extra.SIMULATE) if missing(TRAINING) else "`python -m profiler.sweep` simulates it."


def missing_fault(key: str, found: str, modules: Sequence[str], extra: Extra) -> Fault | None:
    """Return the fault of an input that needs `modules`; None if all of them are installed."""
    absent = missing(modules)
    if not absent:
        return None
    are = "is" if len(absent) == 1 else "are"
    return Fault(
        key=key,
        found=found,
        problem=f"needs {listed(absent)}, which {are} not installed",
        hint=install_hint(extra),
    )


def require(key: str, found: str, modules: Sequence[str], extra: Extra) -> None:
    """Check that `modules` are installed.

    Raises:
        UsageError: One of them is not; the sentence names the extra.
    """
    if fault := missing_fault(key, found, modules, extra):
        raise UsageError([fault])


def listed(names: Sequence[str]) -> str:
    """Return ``"a, b and c"``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
