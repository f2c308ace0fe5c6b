"""The largest values of a key or of two with which a trial fits its card, confirmed by simulation."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from profiler.analytical.estimate import refuse_without_form
from profiler.analytical.explanation.boundary import GAP, Boundary, Judge, boundary_near, largest_that_fits
from profiler.analytical.explanation.explained import CardVerdict, card_verdict
from profiler.analytical.replayed.trial import has_replay
from profiler.config.models.context import is_beyond_context
from profiler.config.trials.demand import grows
from profiler.config.trials.grid import refuse_too_many_points
from profiler.constraints.table import refuse_without_card
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.outcome import Status, TrialRecord
from profiler.domain.trials.trial import TrialSpec, key_named
from profiler.estimate.job.inputs import ArchitectureLookup, Inputs
from profiler.estimate.job.trial import dearest_spec
from profiler.rendering.answers.solve import LimitLine, LinePoint, SimulatedSide, leaves_free
from profiler.solve.command import Command

MAXIMUM = 2**24
"""Largest value that is tried. No card holds a row of so many tokens, or so many rows."""

PRECISION = 1 / 256
"""Part of a value up to which a boundary is searched by simulation (our choice): each takes seconds."""


def is_as_near(one: int | None, other: int | None) -> bool:
    """Return whether two boundaries, one of them searched to `PRECISION`, may be one.

    By hand, 1,000 and 1,003 may, and 63 and 64 may not.
    """
    if one is None or other is None:
        return one is other
    return abs(one - other) <= int(PRECISION * max(one, other))


_DOUBLINGS, _DIFFERS = 16, 1 / 256
"""How often a value is doubled until its memory differs by such a part from that of the smallest (our choices)."""

_WITHOUT_GAPS = ("lora_rank", "max_prompt_length", "max_completion_length", "max_length", "steps")
"""Keys of which rules allow every value up to a largest one. Of others a number of rows may have to divide another."""


class KeySearch:
    """The boundary of one key at one point."""

    def __init__(
        self,
        key: str,
        point: Mapping[str, object],
        *,
        inputs: Inputs,
        margin: float,
        architecture_of: ArchitectureLookup,
    ) -> None:
        """Keep what the search asks.

        Args:
            key: The key to find.
            point: Other keys that differ from `inputs`.
            inputs: What the command and its files describe.
            margin: Part of the card that has to stay free.
            architecture_of: The architecture of a model by its name.
        """
        self._key = key_named(key)
        self._inputs, self._found = inputs, dict[int, TrialSpec | UsageError]()
        self._point, self._margin, self._architecture_of = point, margin, architecture_of
        self._gap = 1 if key in _WITHOUT_GAPS else GAP
        self._within_context = self._begins_within_context()

    def first_with_answer(self) -> TrialSpec:
        """Return the trial with the smallest allowed value, for which there is an answer.

        Raises:
            UsageError: No value of the key is allowed, or the trial has no closed form or no card.
        """
        first = self.first_allowed()
        if not grows(self._key, first):
            problem = f"with recipe={first.recipe} is a part of max_length, and a larger one can need less"
            raise UsageError([Fault(key="KEY", found=self._key.name, problem=problem, hint="Solve max_length.")])
        refuse_without_form(first, self._architecture_of(first.model))
        refuse_without_card(first)
        return first

    def boundary(self) -> Boundary[CardVerdict]:
        """Return the boundary: within the bounds of fragments, and then by replays of requests near it.

        Raises:
            UsageError: As `first_with_answer`.
        """
        first = self.first_with_answer()
        found = largest_that_fits(
            self._within_bounds,
            self._fits,
            minimum=getattr(first, self._key.name),
            maximum=self._maximum(first),
            gap=self._gap,
        )
        if not has_replay(first):
            return found
        judge: Judge[TrialSpec] = Judge(
            fits=lambda spec: self._fits(self._verdict_of(spec)),
            left=lambda spec: self._verdict_of(spec).left_bytes - self._margin_bytes,
            per_value=self._per_value(found.largest or found.beyond or self._key.minimum),
        )
        return self._near(judge, found.largest or self._key.minimum, precision=0.0)

    def boundary_near(self, estimated: Boundary[CardVerdict], judge: "Confirmation") -> Boundary[CardVerdict]:
        """Return the boundary by another judge than the closed form, which is dear, with the verdicts of both sides.

        Args:
            estimated: The boundary by the closed form.
            judge: Says whether a trial fits, and what it leaves.
        """
        value = estimated.largest or estimated.beyond or self._key.minimum
        per_value = self._per_value(value)
        likely = Judge[TrialSpec](fits=self._is_likely, left=self._likely_left, per_value=per_value)
        found = self._near(likely, value, precision=4 * PRECISION)
        together = judge.simulate if judge.looks_ahead else None
        dear = Judge(fits=judge.fits, left=judge.left_bytes, per_value=per_value, together=together)
        return self._near(dear, found.largest or found.beyond or value, precision=PRECISION)

    def _is_likely(self, spec: TrialSpec) -> bool:
        return self._likely_left(spec) >= 0

    def _likely_left(self, spec: TrialSpec) -> float:
        card = self._verdict_of(spec)
        return card.gpu.memory_bytes - card.needed.likely_bytes - card.outside_bytes - self._margin_bytes

    def _near(self, judge: Judge[TrialSpec], guess: int, *, precision: float) -> Boundary[CardVerdict]:
        first = self.first_allowed()
        found = boundary_near(
            self._allowed,
            judge,
            guess,
            minimum=getattr(first, self._key.name),
            maximum=self._maximum(first),
            gap=self._gap,
            precision=precision,
        )
        return Boundary(
            largest=found.largest,
            at_largest=self._verdict_of(found.at_largest) if found.at_largest is not None else None,
            beyond=found.beyond,
            at_beyond=self._verdict_of(found.at_beyond) if found.at_beyond is not None else None,
        )

    def _per_value(self, value: int) -> float:
        """Return about how many bytes more each value needs than the one before it, up to a value.

        If those up to it hardly differ from the smallest one, up to a larger value.
        """
        first = self.first_allowed()
        lowest, least = int(getattr(first, self._key.name)), self._bounds_of(first).needed_bytes
        found = 1 / lowest
        for doubled in range(_DOUBLINGS):
            above = self._allowed(max(value, lowest) << doubled)
            if above is None or (highest := int(getattr(above, self._key.name))) == lowest:
                continue
            more = self._bounds_of(above).needed_bytes - least
            found = max(more, 1) / (highest - lowest)
            if more > _DIFFERS * least:
                break
        return found

    @property
    def _margin_bytes(self) -> float:
        return self._margin * gpu_named(str(self.first_allowed().gpu)).memory_bytes

    def _maximum(self, first: TrialSpec) -> int:
        """Return the largest value that is tried. A group is a part of the completions that are generated together."""
        return first.generation_batch_size * first.num_processes if self._key.name == "num_generations" else MAXIMUM

    def first_allowed(self) -> TrialSpec:
        """Return the trial with the smallest allowed value; its faults are those of the input, not of the value."""
        # Of a key without gaps the smallest values may be refused: those of a row that its prompt fills.
        for gap in dict.fromkeys((self._gap, GAP)):
            if gap > self._gap and self._refused_alike(self._key.minimum, gap):
                break
            boundary = largest_that_fits(
                self._allowed,
                lambda _: False,
                minimum=self._key.minimum,
                maximum=min(MAXIMUM, self._key.maximum),
                gap=gap,
            )
            if boundary.at_beyond is not None:
                return boundary.at_beyond
        return self.at(self._key.minimum)

    def _refused_alike(self, *values: int) -> bool:
        """Return whether values have the same faults: those are of the other keys, and no value is allowed."""
        for value in values:
            self._allowed(value)
        first, *others = (self._found[value] for value in values)
        return isinstance(first, UsageError) and all(
            isinstance(other, UsageError) and other.faults == first.faults for other in others
        )

    def at(self, value: int) -> TrialSpec:
        """Return the trial with a value of the key, in the dearest release of trl.

        Raises:
            UsageError: The value is not allowed.
        """
        if value not in self._found:
            changes = {**self._point, self._key.name: value}
            try:
                self._found[value] = dearest_spec(self._inputs, changes, self._architecture_of)
            except UsageError as error:
                self._found[value] = error
        found = self._found[value]
        if isinstance(found, UsageError):
            raise UsageError(found.faults)
        return found

    def _begins_within_context(self) -> bool:
        """Return whether the smallest value gives rows for which the model was made; the answer then does so, too."""
        try:
            spec = self.at(self._key.minimum)
        except UsageError:
            return True
        return not is_beyond_context(spec, self._architecture_of(spec.model))

    def _allowed(self, value: int) -> TrialSpec | None:
        try:
            spec = self.at(value)
        except UsageError:
            return None
        is_beyond = self._within_context and is_beyond_context(spec, self._architecture_of(spec.model))
        return None if is_beyond else spec

    def _within_bounds(self, value: int) -> CardVerdict | None:
        spec = self._allowed(value)
        return None if spec is None else self._bounds_of(spec)

    def _bounds_of(self, spec: TrialSpec) -> CardVerdict:
        return card_verdict(spec, self._architecture_of(spec.model), gpu_named(str(spec.gpu)))

    def _verdict_of(self, spec: TrialSpec) -> CardVerdict:
        return card_verdict(spec, self._architecture_of(spec.model), gpu_named(str(spec.gpu)), replays=True)

    def _fits(self, card: CardVerdict) -> bool:
        return leaves_free(card, self._margin)


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


Simulate = Callable[[Mapping[int, TrialSpec]], Sequence[SimulatedSide]]
"""Returns the simulation of trials by their value of the key, at the same time where there are cores for them."""


def simulated(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
    """Return the simulation of each of `specs`, by their value of the key that is solved for."""
    from profiler.execution import records_of  # the bare distribution has not all that it imports

    return [_side(value, record) for value, record in zip(specs, records_of(list(specs.values())), strict=True)]


def _side(value: int, record: TrialRecord | None) -> SimulatedSide:
    if record is None:
        return SimulatedSide(value=value, status=Status.FAILED, needed_bytes=None, message="no record")
    outcome = record.outcome
    return SimulatedSide(
        value=value, status=outcome.status, needed_bytes=outcome.needed_bytes, message=outcome.verdict.message
    )


class NoAnswerError(Exception):
    """A simulation that ended without an answer, so that the estimate is all there is."""


class Confirmation:
    """The simulations of one answer, of which each trial runs once."""

    def __init__(self, key: str, simulate: Simulate, margin: float, *, looks_ahead: bool) -> None:
        """Begin with nothing simulated.

        Args:
            key: The key that is solved for.
            simulate: Returns the simulation of trials by their value of the key.
            margin: Part of the card that has to stay free.
            looks_ahead: Whether two values are simulated at the same time: a core has time for it.
        """
        self.looks_ahead = looks_ahead
        self._key, self._simulate, self._margin = key, simulate, margin
        self._known: dict[int, SimulatedSide] = {}

    @property
    def sides(self) -> tuple[SimulatedSide, ...]:
        """What was simulated, by the value."""
        return tuple(side for _, side in sorted(self._known.items()))

    def fits(self, spec: TrialSpec) -> bool:
        """Return whether a trial fits by its simulation, with the margin left free.

        Without a margin its run on the card says so, in which a full card gives back what is cached.

        Raises:
            NoAnswerError: The simulation has no answer.
        """
        self.simulate([spec])
        side = self._known[getattr(spec, self._key)]
        if side.needed_bytes is None or side.status not in (Status.OK, Status.OOM):
            raise NoAnswerError
        return side.fits and (not self._margin or self.left_bytes(spec) >= 0)

    def simulate(self, specs: Sequence[TrialSpec]) -> None:
        """Simulate those that were not yet, together."""
        by_value = {getattr(spec, self._key): spec for spec in specs}
        if new := {value: spec for value, spec in by_value.items() if value not in self._known}:
            self._known.update({side.value: side for side in self._simulate(new)})

    def left_bytes(self, spec: TrialSpec) -> float:
        """Return what a trial that was simulated leaves of its card and the margin; negative if it needs more."""
        side = self._known[getattr(spec, self._key)]
        return gpu_named(str(spec.gpu)).memory_bytes * (1 - self._margin) - (side.needed_bytes or 0)
