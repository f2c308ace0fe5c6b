"""The flat form of an outcome: the keys of a stored record, most of them also columns of `runs`.

A key is one attribute of one part of `Outcome`. Two parts share `not_measured`: it joins the figures that the driver
did not provide with the reason for a missing breakdown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from profiler.domain.outcome import (
    Breakdown,
    CardFacts,
    EmulatedDetails,
    MeasuredDetails,
    Outcome,
    Peaks,
    StepInstant,
    UnlimitedCard,
    Verdict,
    Work,
)
from profiler.storage.step_shape_json import step_shape_from_json
from profiler.storage.typed_json import JSON, JsonMismatchError, from_json

_PARTS = {
    "verdict": Verdict,
    "work": Work,
    "card": CardFacts,
    "peaks": Peaks,
    "breakdown": Breakdown,
    "unlimited": UnlimitedCard,
    "measured": MeasuredDetails,
    "emulated": EmulatedDetails,
}

OUTCOME_FIELDS: Mapping[str, tuple[str, str]] = {
    "status": ("verdict", "status"),
    "parameters": ("work", "parameters"),
    "trainable_parameters": ("work", "trainable_parameters"),
    "gpu_name": ("card", "name"),
    "gpu_memory_bytes": ("card", "memory_bytes"),
    "peak_allocated_bytes": ("peaks", "allocated_bytes"),
    "peak_reserved_bytes": ("peaks", "reserved_bytes"),
    "peak_device_bytes": ("peaks", "device_bytes"),
    "peak_phase": ("peaks", "phase"),
    "required_allocated_bytes": ("unlimited", "required_allocated_bytes"),
    "oom": ("verdict", "oom"),
    "phases": ("peaks", "phases"),
    "breakdown": ("breakdown", "shares"),
    "step_shape": ("unlimited", "step_shape"),
    "largest": ("breakdown", "largest"),
    "peak_inactive_split_bytes": ("peaks", "inactive_split_bytes"),
    "alloc_retries": ("peaks", "alloc_retries"),
    "context_bytes": ("card", "context_bytes"),
    "required_reserved_bytes": ("unlimited", "required_reserved_bytes"),
    "required_unreleasable_bytes": ("unlimited", "required_unreleasable_bytes"),
    "steps_run": ("work", "steps_run"),
    "micro_batches_run": ("work", "micro_batches_run"),
    "wall_s": ("work", "wall_s"),
    "step_time_s": ("work", "step_time_s"),
    "host_peak_rss_bytes": ("work", "host_peak_rss_bytes"),
    "gpu_uuid": ("measured", "gpu_uuid"),
    "driver_version": ("measured", "driver_version"),
    "startup_s": ("measured", "startup_s"),
    "load_s": ("measured", "load_s"),
    "rollout_s": ("measured", "rollout_s"),
    "sampled_max_device_bytes": ("measured", "sampled_max_device_bytes"),
    "sample_period_s": ("measured", "sample_period_s"),
    "missed_by_sampling_bytes": ("measured", "missed_by_sampling_bytes"),
    "settled_step": ("measured", "settled_step"),
    "growth_bytes_per_step": ("measured", "growth_bytes_per_step"),
    "step_peaks": ("measured", "step_peaks"),
    "not_measured": ("verdict", "unavailable"),
    "emulated_values": ("emulated", "values"),
    "gpu_s": ("work", "gpu_s"),
    "implied_by": ("verdict", "implied_by"),
    "message": ("verdict", "message"),
}
"""Key to part and attribute, in the order of a stored record."""

_NO_BREAKDOWN = "breakdown: "
"""Within the stored `not_measured`: precedes the reason for a missing breakdown, which comes last."""
_SEPARATOR = "; "

_READERS = {Sequence[StepInstant]: step_shape_from_json}

_OPTIONAL_PARTS = ("unlimited", "measured", "emulated")

_REQUIRED = frozenset({"status"})
"""Keys that records of every version have."""

_EMPTY: tuple[object, ...] = (None, "", (), [])


def _default(part: str, attribute: str) -> object:
    """The value of a key whose part is None."""
    (field,) = [each for each in fields(_PARTS[part]) if each.name == attribute]
    return None if field.default is MISSING else field.default


_DEFAULTS = {key: _default(*place) for key, place in OUTCOME_FIELDS.items()}


def flat_values(outcome: Outcome) -> dict[str, object]:
    """Return the value of every key of `OUTCOME_FIELDS`."""
    found = {}
    for key, (part, attribute) in OUTCOME_FIELDS.items():
        holder = getattr(outcome, part)
        found[key] = _DEFAULTS[key] if holder is None else getattr(holder, attribute)
    found["not_measured"] = not_measured(outcome)
    return found


def not_measured(outcome: Outcome) -> str:
    """Return the figures that are missing from a measurement, each with its reason; empty if none is."""
    problem = outcome.breakdown.problem and _NO_BREAKDOWN + outcome.breakdown.problem
    return _SEPARATOR.join(filter(None, (outcome.verdict.unavailable, problem)))


def outcome_from_flat(stored: Mapping[str, JSON], *, defaults: bool) -> Outcome:
    """Compose an outcome from the keys of a stored record.

    Args:
        stored: Values by key of `OUTCOME_FIELDS`.
        defaults: Whether keys may be missing, as in records of an earlier version.

    Raises:
        JsonMismatchError: A key is missing or unknown, or a value has the wrong type.
    """
    missing = (_REQUIRED if defaults else OUTCOME_FIELDS.keys()) - stored.keys()
    if odd := sorted(missing | stored.keys() - OUTCOME_FIELDS.keys()):
        raise JsonMismatchError(f"Outcome: keys missing or unknown: {', '.join(odd)}")
    parts: dict[str, dict[str, JSON]] = {part: {} for part in _PARTS}
    for key, value in stored.items():
        part, attribute = OUTCOME_FIELDS[key]
        parts[part][attribute] = value
    _separate_problem(parts)
    composed: dict[str, Any] = {
        part: from_json(kind, parts[part], readers=_READERS, defaults=True)
        for part, kind in _PARTS.items()
        if part not in _OPTIONAL_PARTS or any(value not in _EMPTY for value in parts[part].values())
    }
    return Outcome(**composed)


def _separate_problem(parts: dict[str, dict[str, JSON]]) -> None:
    """Move the reason for a missing breakdown from `not_measured` to its own part."""
    reasons = parts["verdict"].get("unavailable")
    if not isinstance(reasons, str):
        return
    unavailable, _, problem = (_SEPARATOR + reasons).partition(_SEPARATOR + _NO_BREAKDOWN)
    parts["verdict"]["unavailable"] = unavailable.removeprefix(_SEPARATOR)
    parts["breakdown"]["problem"] = problem
