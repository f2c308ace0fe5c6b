"""The reader of the shape of an optimizer step, by far the largest part of a simulated trial's record."""

from array import array
from typing import Any

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
