"""The largest value of one key with which a trial fits its card, among the values that rules allow."""

from collections.abc import Callable, Mapping

from profiler.analytical.closed_form import refuse_without_form
from profiler.analytical.explanation.boundary import GAP, Boundary, boundary_near, largest_that_fits
from profiler.analytical.explanation.cards import CardVerdict, card_verdict
from profiler.config.models.context import is_beyond_context
from profiler.constraints.table import refuse_without_card
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.errors import UsageError
from profiler.domain.trials.trial import TrialSpec, key_named
from profiler.estimate.job.inputs import ArchitectureLookup, Inputs
from profiler.estimate.job.trial import dearest_spec
from profiler.rendering.answers.solve import leaves_free

MAXIMUM = 2**24
"""Largest value that is tried. No card holds a row of so many tokens, or so many rows."""

PRECISION = 1 / 256
"""Part of a value up to which a boundary is searched by simulation (our choice): each takes seconds."""

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

    def boundary(self) -> Boundary[CardVerdict]:
        """Return the boundary.

        Raises:
            UsageError: No value of the key is allowed, or the trial has no closed form or no card.
        """
        first = self.first_allowed()
        refuse_without_form(first, self._architecture_of(first.model))
        refuse_without_card(first)
        return largest_that_fits(
            self._verdict,
            self._fits,
            minimum=getattr(first, self._key.name),
            maximum=self._maximum(first),
            gap=self._gap,
        )

    def boundary_near(
        self, guess: tuple[int | None, int | None], fits: Callable[[TrialSpec], bool]
    ) -> Boundary[CardVerdict]:
        """Return the boundary by another judge than the closed form, which is dear, with the verdicts of both sides.

        Args:
            guess: The values on both sides of the boundary by the closed form.
            fits: Whether a trial fits.
        """
        first = self.first_allowed()
        found = boundary_near(
            self._allowed,
            fits,
            guess,
            minimum=getattr(first, self._key.name),
            maximum=self._maximum(first),
            gap=self._gap,
            precision=PRECISION,
        )
        return Boundary(
            largest=found.largest,
            at_largest=self._verdict(found.largest) if found.largest is not None else None,
            beyond=found.beyond,
            at_beyond=self._verdict(found.beyond) if found.beyond is not None else None,
        )

    def _maximum(self, first: TrialSpec) -> int:
        """Return the largest value that is tried. A group is a part of the completions that are generated together."""
        return first.generation_batch_size * first.num_processes if self._key.name == "num_generations" else MAXIMUM

    def first_allowed(self) -> TrialSpec:
        """Return the trial with the smallest allowed value; its faults are those of the input, not of the value."""
        boundary = largest_that_fits(
            self._allowed,
            lambda _: False,
            minimum=self._key.minimum,
            maximum=min(MAXIMUM, self._key.maximum),
            gap=self._gap,
        )
        return boundary.at_beyond or self.at(self._key.minimum)

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

    def _verdict(self, value: int) -> CardVerdict | None:
        spec = self._allowed(value)
        if spec is None:
            return None
        return card_verdict(spec, self._architecture_of(spec.model), gpu_named(str(spec.gpu)))

    def _fits(self, card: CardVerdict) -> bool:
        return leaves_free(card, self._margin)
