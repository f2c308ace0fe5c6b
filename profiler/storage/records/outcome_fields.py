"""The flat form of an outcome and of its step's shape: the keys of a stored record.

The flat form of an outcome: the keys of a stored record, most of them also columns of `runs`.

A key is one attribute of one part of `Outcome`, which declares it. Two parts share `not_measured`: it joins the figures
that the driver did not provide with the reason for a missing breakdown.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from profiler.domain.runs.columns import default_of, keys_of_outcome, parts_of
from profiler.domain.runs.outcome import Outcome
from profiler.domain.runs.readings import StepInstant
from profiler.domain.runs.step_shape import CATEGORIES, PHASES, StepShape
from profiler.storage.files.typed_json import JSON, JsonMismatchError, from_json

_PHASE_CODES = {phase.value: code for code, phase in enumerate(PHASES)}
_CATEGORY_CODES = {category.value: code for code, category in enumerate(CATEGORIES)}


def step_shape_from_json(value: JSON) -> StepShape:
    """Return the shape that `to_json` wrote, without an object per category.

    Raises:
        JsonMismatchError: `value` is not what `to_json` writes.
    """
    try:
        return _read(value)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        # The reader of any dataclass finds the place of the mistake.
        from_json(tuple[StepInstant, ...], value)
        raise JsonMismatchError(f"a size or a number of categories is too large ({error})") from error


def _read(value: Any) -> StepShape:  # noqa: ANN401  whatever is stored
    if type(value) is not list:
        raise TypeError("not a list")
    phases, lengths, categories, sizes = bytearray(), bytearray(), bytearray(), []
    for instant in value:
        phase, shares = instant["phase"], instant["shares"]
        if len(instant) != 2 or type(shares) is not list:
            raise TypeError("not an instant")
        phases.append(_PHASE_CODES[phase])
        lengths.append(len(shares))
        categories.extend([_CATEGORY_CODES[share["category"]] for share in shares])
        sizes += [share["size_bytes"] for share in shares]
        if set(map(len, shares)) - {2}:
            raise TypeError("not a share")
    if set(map(type, sizes)) - {int}:
        raise TypeError("a size that is no integer")
    return StepShape(
        phases=bytes(phases), lengths=bytes(lengths), categories=bytes(categories), sizes_bytes=array("q", sizes)
    )


_PARTS = parts_of(Outcome)

OUTCOME_FIELDS: Mapping[str, tuple[str, str]] = keys_of_outcome(Outcome)
"""Key to part and attribute."""

_NO_BREAKDOWN = "breakdown: "
"""Within the stored `not_measured`: precedes the reason for a missing breakdown, which comes last."""
_SEPARATOR = "; "

_READERS = {Sequence[StepInstant]: step_shape_from_json}

_OPTIONAL_PARTS = tuple(each.name for each in fields(Outcome) if each.default is None)

_REQUIRED = frozenset({"status"})
"""Keys that records of every version have."""

_EMPTY: tuple[object, ...] = (None, "", (), [])


_DEFAULTS = {key: default_of(_PARTS[part], attribute) for key, (part, attribute) in OUTCOME_FIELDS.items()}
"""The value of each key whose part is None."""


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
