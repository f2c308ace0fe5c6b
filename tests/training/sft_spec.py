"""Trials of the recipe `sft` for tests."""

from dataclasses import dataclass
from typing import Any

from profiler.domain.trial import Backend, TrialSpec


@dataclass(frozen=True, kw_only=True)
class SftSpec(TrialSpec):
    recipe: str = "sft"
    max_length: int | None = 24


def sft_spec(**keys: Any) -> SftSpec:
    """Return a trial on the CPU that takes seconds."""
    defaults: dict[str, Any] = {
        "backend": Backend.CPU,
        "gpu": None,
        "model": "tiny",
        "gradient_accumulation_steps": 2,
        "steps": 1,
    }
    return SftSpec(**(defaults | keys))
