"""The allocator's settings in a memory snapshot.

A snapshot has them twice in `allocator_settings`: the text of the environment variable, and some of what the allocator
read from it (`THCPModule_memorySnapshot`, torch/csrc/cuda/Module.cpp). Older versions of torch write neither.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from profiler.allocator.settings.alloc_conf import known_items, parse_alloc_conf
from profiler.allocator.settings.config import ROUNDUP_INTERVALS, AllocatorConfig
from profiler.domain.errors import Fault, UsageError

SETTINGS = "allocator_settings"
_TEXTS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_MOST_DIGITS = 6
"""Of the first MiB of an interval."""
_MOST_SPLIT_BYTES = 1 << 62
"""Larger values mean no limit: torch writes the largest `size_t`, which is -1 as a signed number."""


def recorded_config(settings: Mapping[str, Any], *, has_expandable: bool | None) -> AllocatorConfig:
    """Return the settings of a recorded run. If text and single values differ, the single values count.

    Args:
        settings: The snapshot's `allocator_settings`; empty for torch's defaults.
        has_expandable: Whether the recorded segments are expandable; None: there are none, or some are and some are
            not. It counts more than what was asked for, because not every platform has them.

    Raises:
        UsageError: A value cannot be read.
    """
    text = next((settings[key] for key in _TEXTS if settings.get(key)), "")
    if not isinstance(text, str):
        raise _fault(_TEXTS[0], text, "must be a text")
    try:
        # Keys unknown to this version of torch are left out; the comparison shows whether they mattered.
        config = parse_alloc_conf(known_items(text))
    except UsageError as error:
        raise UsageError([replace(fault, key=f"{SETTINGS}.{_TEXTS[0]}") for fault in error.faults]) from error
    changes: dict[str, Any] = {}
    if "max_split_size" in settings:
        size = _whole(settings, "max_split_size")
        changes["max_split_bytes"] = size if 0 < size < _MOST_SPLIT_BYTES else None
    if "garbage_collection_threshold" in settings:
        changes["garbage_collection_threshold"] = _ratio(settings, "garbage_collection_threshold")
    if "expandable_segments" in settings:
        changes["expandable_segments"] = settings["expandable_segments"] is True
    if "roundup_power2_divisions" in settings:
        changes["roundup_power2_divisions"] = _divisions(settings["roundup_power2_divisions"])
    if has_expandable is not None:
        changes["expandable_segments"] = has_expandable
    return replace(config, **changes)


def _whole(settings: Mapping[str, Any], key: str) -> int:
    value = settings[key]
    if isinstance(value, int):
        return int(value)
    raise _fault(key, value, "must be a whole number")


def _ratio(settings: Mapping[str, Any], key: str) -> float:
    value = settings[key]
    if isinstance(value, int | float) and 0 <= value < 1:
        return float(value)
    raise _fault(key, value, "must be a number from 0 and below 1")


def _divisions(value: object) -> tuple[int, ...]:
    """Return the divisions by interval of ``{"1": 0, "2": 0, "4": 4, ...}``: keys: first MiB of an interval."""
    if isinstance(value, Mapping):
        found = [
            (key, number)
            for key, number in value.items()
            if isinstance(key, str) and key.isdecimal() and len(key) <= _MOST_DIGITS
        ]
        numbers = [number for _, number in sorted(found, key=lambda item: int(item[0]))][:ROUNDUP_INTERVALS]
        if all(isinstance(number, int) and number >= 0 and number.bit_count() <= 1 for number in numbers):
            return tuple(numbers) + (0,) * (ROUNDUP_INTERVALS - len(numbers))
    raise _fault("roundup_power2_divisions", value, "must be powers of two by interval")


def _fault(key: str, found: object, problem: str) -> UsageError:
    shown = repr(found) if isinstance(found, str | float | bool) else f"value of type {type(found).__name__}"
    return UsageError([Fault(key=f"{SETTINGS}.{key}", found=shown[:80], problem=problem)])
