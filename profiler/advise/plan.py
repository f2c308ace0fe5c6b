"""Levers applied one after the other, until a trial fits its card."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from profiler.advise.levers import LEVERS, Change, Lever
from profiler.analytical.explanation.cards import CardVerdict
from profiler.domain.trials.trial import TrialSpec

_WORTH = 0.005
"""Smallest part of the card for which a lever is worth its cost, unless the trial fits by it."""

_GIVEN_UP = ("num_generations", "max_completion_length", "max_length", "lora_rank")
"""Keys of which a smaller value hurts the result."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One lever at one strength."""

    lever: Lever
    before: TrialSpec
    after: TrialSpec
    at_before: CardVerdict
    at_after: CardVerdict

    @property
    def saved_bytes(self) -> int:
        """Memory that the trial needs less than before."""
        return self.at_before.needed_bytes - self.at_after.needed_bytes

    @property
    def starts(self) -> bool:
        """Whether the job starts after this step only: vLLM does, or is left out."""
        return bool(self.at_before.no_engine) and not self.at_after.no_engine

    @property
    def is_worth_its_cost(self) -> bool:
        """Whether the job starts by it, or it saves a part of the card that is worth naming."""
        return self.starts or self.saved_bytes > _WORTH * self.at_before.gpu.memory_bytes


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The steps from a trial to one that fits, what hurts least first."""

    steps: tuple[Step, ...]
    spec: TrialSpec
    """The trial after all steps."""
    card: CardVerdict
    fits: bool


class Planner:
    """Search for the levers by which a trial fits its card."""

    def __init__(
        self,
        verdict: Callable[[TrialSpec], CardVerdict | None],
        changed: Callable[[TrialSpec, Change], TrialSpec | None],
        fits: Callable[[CardVerdict], bool],
    ) -> None:
        """Keep what the search asks.

        Args:
            verdict: Returns the verdict of a trial on its card; None where there is no closed form.
            changed: Returns a trial with other values of some keys; None where rules refuse it.
            fits: Whether a verdict is good enough.
        """
        self._verdict, self._changed, self._fits = verdict, changed, fits
        self._known: dict[TrialSpec, CardVerdict | None] = {}

    def plan(self, spec: TrialSpec) -> Plan:
        """Return the levers by which `spec` fits, without those that are not needed in the end."""
        found = self._with(spec, LEVERS)
        if not found.fits:
            return found
        needed = [lever for lever in LEVERS if any(step.lever is lever for step in found.steps)]
        for lever in reversed(needed):
            fewer = self._with(spec, [each for each in needed if each is not lever])
            if fewer.fits and not _gives_up_more(fewer.spec, found.spec):
                needed = [each for each in needed if any(step.lever is each for step in fewer.steps)]
                found = fewer
        return found

    def alone(self, spec: TrialSpec) -> tuple[Step, ...]:
        """Return what each lever saves alone, at the strength that saves most."""
        found = (self._step(spec, lever, until_it_fits=False) for lever in LEVERS)
        return tuple(step for step in found if step is not None)

    def at(self, spec: TrialSpec) -> CardVerdict | None:
        """Return the verdict of a trial."""
        if spec not in self._known:
            self._known[spec] = self._verdict(spec)
        return self._known[spec]

    def _with(self, spec: TrialSpec, levers: Sequence[Lever]) -> Plan:
        card = self.at(spec)
        assert card is not None
        steps: list[Step] = []
        while not self._fits(card):
            # From the start each time: a lever that saved nothing may do so when another peak has become smaller.
            step = next(self._useful(spec, levers), None)
            if step is None:
                break
            steps.append(step)
            spec, card = step.after, step.at_after
        return Plan(steps=_merged(steps), spec=spec, card=card, fits=self._fits(card))

    def _useful(self, spec: TrialSpec, levers: Iterable[Lever]) -> Iterator[Step]:
        for lever in levers:
            step = self._step(spec, lever, until_it_fits=True)
            if step is not None:
                yield step

    def _step(self, spec: TrialSpec, lever: Lever, *, until_it_fits: bool) -> Step | None:
        """Return the weakest strength by which the trial fits, or the one that saves most; None if none is worth it."""
        if spec.recipe not in lever.recipes:
            return None
        before, best = self.at(spec), None
        assert before is not None
        for change in lever.changes(spec):
            after = self._changed(spec, change)
            card = self.at(after) if after is not None else None
            if after is None or card is None or _rank(card) >= _rank(before):
                continue
            step = Step(lever=lever, before=spec, after=after, at_before=before, at_after=card)
            if until_it_fits and self._fits(card):
                return step
            if best is None or _rank(card) < _rank(best.at_after):
                best = step
        return best if best is not None and best.is_worth_its_cost else None


def _rank(card: CardVerdict) -> tuple[bool, int]:
    """Return what is better the smaller it is: a job that starts, then less memory."""
    return bool(card.no_engine), card.needed_bytes


def _gives_up_more(one: TrialSpec, other: TrialSpec) -> bool:
    """Return whether `one` trains another model than `other`, or has less of what it learns from."""
    smaller = (
        was is not None and now is not None and now < was
        for was, now in ((getattr(other, key), getattr(one, key)) for key in _GIVEN_UP)
    )
    return one.model != other.model or any(smaller)


def _merged(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps with those that follow each other by the same lever as one."""
    found: list[Step] = []
    for step in steps:
        if found and found[-1].lever is step.lever:
            first = found.pop()
            step = Step(
                lever=step.lever,
                before=first.before,
                after=step.after,
                at_before=first.at_before,
                at_after=step.at_after,
            )
        found.append(step)
    return tuple(found)
