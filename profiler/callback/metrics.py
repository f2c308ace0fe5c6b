"""Peaks as metrics: added to what a trainer of transformers logs, so that every `report_to` gets them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

from transformers import Trainer

from profiler.domain.memory import Phase
from profiler.domain.units import as_gib
from profiler.seams.checked.checking import problem_of
from profiler.seams.patching import patched
from profiler.seams.registry import SEAM_OF

_EVALUATION = "eval_"
"""Beginning of the keys of an evaluation, which is logged apart from training."""


def metrics_of(
    phases: Mapping[Phase, int], *, reserved_bytes: int, device_bytes: int | None, retries: int, failed: int
) -> dict[str, float]:
    """Return what is logged: GiB by phase, and the counts of the allocator.

    Args:
        phases: Peak of allocated memory by phase.
        reserved_bytes: Peak of reserved memory.
        device_bytes: Peak on the card; None if it is unknown.
        retries: How often the allocator released its cache.
        failed: How many allocations failed.
    """
    found = {f"vram/allocated_gib/{phase}": _rounded(size) for phase, size in phases.items()}
    found["vram/reserved_gib"] = _rounded(reserved_bytes)
    if device_bytes is not None:
        found["vram/device_gib"] = _rounded(device_bytes)
    return found | {"vram/alloc_retries": float(retries), "vram/out_of_memory": float(failed)}


@contextmanager
def added_to_logs(metrics: Callable[[], Mapping[str, float]]) -> Iterator[str]:
    """While active, add `metrics()` to what trainers log; yields why that is not possible, or an empty text.

    A callback cannot do that: those of `report_to` run before it.
    """
    seam = SEAM_OF["transformers.trainer:Trainer.log"]
    if problem := problem_of(seam):
        yield f"metrics in the logs: {seam.key} {problem}"
        return
    log = Trainer.log

    @wraps(log)
    def with_peaks(self: Any, logs: dict[str, float], *arguments: Any, **named: Any) -> Any:
        if not any(key.startswith(_EVALUATION) for key in logs):
            logs.update(metrics())
        return log(self, logs, *arguments, **named)

    with patched([(Trainer, "log", with_peaks)]):
        yield ""


def _rounded(size_bytes: int) -> float:
    return round(as_gib(size_bytes), 4)
