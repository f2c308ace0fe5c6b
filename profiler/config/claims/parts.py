"""Parts of the list of claims: mappings with a closed set of keys, and claimed figures."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

from profiler.config.options.reading import FieldReader, show
from profiler.domain.claims import End, Range
from profiler.domain.errors import Fault, nearest


class Faults:
    """Faults of the whole list, each with the place of its part."""

    def __init__(self) -> None:
        self._found: dict[Fault, None] = {}

    @property
    def found(self) -> tuple[Fault, ...]:
        """Every fault, each once."""
        return tuple(self._found)

    def add(self, place: str, value: object, problem: str, hint: str = "") -> None:
        """Keep one fault."""
        self.take("", [Fault(key=place, found=show(value), problem=problem, hint=hint)])

    def take(self, place: str, faults: Sequence[Fault]) -> None:
        """Keep faults of a part that does not know its place."""
        prefix = f"{place}." if place else ""
        self._found.update((replace(fault, key=f"{prefix}{fault.key}"), None) for fault in faults)

    def mapping(self, place: str, value: object) -> Mapping[str, object]:
        """Return a mapping with text keys; anything else is a fault, and empty."""
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return cast(Mapping[str, object], value)
        self.add(place, value, "must be a mapping of names to values")
        return {}

    def parts(self, place: str, value: object) -> list[Mapping[str, object]]:
        """Return a list of at least one mapping."""
        if isinstance(value, list) and value:
            return [self.mapping(f"{place}[{number}]", part) for number, part in enumerate(value, start=1)]
        self.add(place, value, "must be a list of at least one entry")
        return []

    @contextmanager
    def part(
        self, place: str, values: Mapping[str, object], *, needed: Sequence[str], allowed: Sequence[str] = ()
    ) -> Iterator[FieldReader]:
        """Read one part within the block, of which the keys are `needed` or `allowed`."""
        known = (*needed, *allowed)
        for key in values:
            if key not in known:
                problem = f"is unknown here; the keys are {', '.join(known)}"
                self.add(f"{place}.{key}", values[key], problem, nearest(key, known))
        for key in needed:
            if key not in values:
                self.add(f"{place}.{key}", None, "is needed here")
        reader = FieldReader({key: value for key, value in values.items() if key in known})
        yield reader
        self.take(place, [fault for fault in reader.faults if fault.key in values])


_SIDES = ("from", "to")


def read_range(reader: FieldReader, key: str) -> Range:
    """Return a claimed number, or the range ``{from: , to: }``, of which one side can be left out."""
    value = reader.value(key)
    if _is_number(value):
        return Range(low=float(cast(float, value)), high=float(cast(float, value)))
    if isinstance(value, Mapping) and value and set(value) <= set(_SIDES) and all(map(_is_number, value.values())):
        low, high = (None if value.get(side) is None else float(value[side]) for side in _SIDES)
        if low is None or high is None or low <= high:
            return Range(low=low, high=high)
    reader.fail(key, "must be a number, or a range {from: NUMBER, to: NUMBER} of which one side can be left out")
    return Range(low=0.0, high=0.0)


def read_figure(reader: FieldReader, key: str) -> Range | End:
    """Return a claimed number above 0 or range, or how a configuration is claimed to end."""
    value = reader.value(key)
    if isinstance(value, str):
        return reader.choice(key, End)
    found = read_range(reader, key)
    if found.largest == 0 and reader.sound(key):
        reader.fail(key, "must be above 0, because its tolerance is a part of it")
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
