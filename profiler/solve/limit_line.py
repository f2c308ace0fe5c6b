"""The limit line of two keys: the largest value of the second for each value of the first."""

from collections.abc import Mapping, Sequence
from itertools import product

from profiler.analytical.explanation.boundary import Boundary
from profiler.analytical.explanation.cards import CardVerdict
from profiler.config.trials.grid import refuse_too_many_points
from profiler.domain.errors import UsageError
from profiler.estimate.job.inputs import ArchitectureLookup, Inputs
from profiler.estimate.job.trial import dearest_spec
from profiler.rendering.answers.limit_line import LimitLine, LinePoint
from profiler.solve.command import Command
from profiler.solve.search import KeySearch

_OCTAVES = 8
"""From the largest value of the first key that fits at all, how often it is halved."""


def limit_lines(command: Command, inputs: Inputs, architecture_of: ArchitectureLookup) -> tuple[LimitLine, ...]:
    """Return one line per combination of the other keys that have several values.

    Args:
        command: The command, with two keys.
        inputs: What the command and its files describe.
        architecture_of: The architecture of a model by its name.

    Raises:
        UsageError: No value of a key is allowed, or there is no closed form.
    """
    axes = command.rest.axes
    refuse_too_many_points(axes)
    return tuple(
        _Line(command, dict(zip(axes, values, strict=True)), inputs, architecture_of).found()
        for values in product(*axes.values())
    )


class _Line:
    """One line, with all keys but two fixed."""

    def __init__(
        self, command: Command, point: Mapping[str, object], inputs: Inputs, architecture_of: ArchitectureLookup
    ) -> None:
        self._command, self._architecture_of = command, architecture_of
        self._first, self._second = command.keys
        self._point = point
        # What a file says about the two keys does not count.
        self._inputs = inputs.without(command.keys)

    def found(self) -> LimitLine:
        points = tuple(
            LinePoint(value=value, boundary=boundary)
            for value in self._values()
            if (boundary := self._limit(value)) is not None
        )
        spec = dearest_spec(self._inputs, self._with_smallest(), self._architecture_of)
        return LimitLine(
            keys=(self._first, self._second),
            spec=spec,
            axes=tuple(self._command.rest.axes),
            points=points,
            margin=self._command.options.margin,
        )

    def _values(self) -> Sequence[object]:
        """Return the values of the first key: those that were given, or powers of two up to the largest that fits."""
        if self._command.first:
            return self._command.first
        largest = self._search(self._first, self._with_smallest()).boundary().largest
        if largest is None:
            return (self._smallest(self._first, self._point),)
        powers = [2**exponent for exponent in range(largest.bit_length()) if 2**exponent < largest]
        return (*(power for power in powers if power * 2**_OCTAVES > largest), largest)

    def _limit(self, value: object) -> Boundary[CardVerdict] | None:
        """Return the boundary of the second key; None if rules allow no value of it here."""
        try:
            return self._search(self._second, {**self._point, self._first: value}).boundary()
        except UsageError:
            if self._command.first:
                raise
            return None

    def _with_smallest(self) -> Mapping[str, object]:
        return {**self._point, self._second: self._smallest(self._second, self._point)}

    def _smallest(self, key: str, point: Mapping[str, object]) -> int:
        return int(getattr(self._search(key, point).first_allowed(), key))

    def _search(self, key: str, point: Mapping[str, object]) -> KeySearch:
        return KeySearch(
            key, point, inputs=self._inputs, margin=self._command.options.margin, architecture_of=self._architecture_of
        )
