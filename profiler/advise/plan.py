"""The plan of what to change: levers one after the other until a trial fits its card, and the search for it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from profiler.advise.levers import LEVERS, Change, Lever
from profiler.analytical.explanation.explained import CardVerdict, all_cards, card_verdict
from profiler.config.trials.identity import spec_to_mapping
from profiler.config.trials.specification import parse_point
from profiler.config.trl.yaml import changed_lines, trl_file
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.errors import UsageError
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.job.inputs import ArchitectureLookup
from profiler.rendering.answers.advice import Advice, AdvisedStep
from profiler.rendering.answers.solve import leaves_free

_WORTH = 0.005
"""Smallest part of the card, and of what the trial needs, for which a lever or a stronger one is worth its cost, unless
the trial fits by it. Less is within the error of a replay."""

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
        return self.starts or self.saved_bytes > _worth_bytes(self.at_before)


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
            if best is None or _is_worth_more(step, best):
                best = step
        return best if best is not None and best.is_worth_its_cost else None


def _worth_bytes(card: CardVerdict) -> float:
    """Return how much less memory is worth a change, for a trial with this verdict."""
    return _WORTH * max(card.gpu.memory_bytes, card.needed_bytes)


def _is_worth_more(step: Step, best: Step) -> bool:
    """Return whether a stronger change is worth more than the best so far."""
    if step.starts and not best.starts:
        return True
    return step.saved_bytes - best.saved_bytes > _worth_bytes(step.at_before)


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


class Advisor:
    """The search for what to change, with the rules between keys and the verdict of the card."""

    def __init__(self, margin: float, architecture_of: ArchitectureLookup, *, more_bytes: int = 0) -> None:
        """Keep what the search asks.

        Args:
            margin: Part of the card that has to stay free.
            architecture_of: The architecture of a model by its name.
            more_bytes: What the job needs by its simulation beyond the estimate.
        """
        self._margin, self._architecture_of, self._more_bytes = margin, architecture_of, more_bytes

    def advice(self, spec: TrialSpec, given: Mapping[str, object]) -> Advice:
        """Return the advice for `spec`, whose file has the keys `given`."""
        planner = Planner(self._verdict, self._changed, self._fits)
        plan = planner.plan(spec)
        card = planner.at(spec)
        assert card is not None
        used = {step.lever for step in plan.steps}
        alone = tuple(_advised(step) for step in planner.alone(spec) if step.lever not in used and step.saved_bytes > 0)
        return Advice(
            spec=spec,
            card=card,
            margin=self._margin,
            more_bytes=self._more_bytes,
            steps=tuple(_advised(step) for step in plan.steps),
            alone=alone if plan.fits else (),
            after=plan.spec,
            fits=plan.fits,
            smallest=None if plan.fits else self._smallest(plan),
            smallest_unchanged=self._smallest_of(spec),
            file=trl_file(plan.spec, given),
        )

    def _verdict(self, spec: TrialSpec) -> CardVerdict | None:
        try:
            return card_verdict(spec, self._architecture_of(spec.model), gpu_named(str(spec.gpu)), replays=True)
        except UsageError:
            return None

    def _changed(self, spec: TrialSpec, change: Change) -> TrialSpec | None:
        try:
            return parse_point({**spec_to_mapping(spec), **change}, architecture_of=self._architecture_of)
        except UsageError:
            return None

    def _fits(self, card: CardVerdict) -> bool:
        """Return whether vLLM starts and memory is enough; a kernel that the card lacks is named apart from that."""
        return not card.no_engine and card.left_bytes - self._more_bytes >= self._margin * card.gpu.memory_bytes

    def _smallest(self, plan: Plan) -> str | None:
        return self._smallest_of(plan.spec)

    def _smallest_of(self, spec: TrialSpec) -> str | None:
        cards = all_cards(spec, self._architecture_of(spec.model))
        enough = (card for card in cards if leaves_free(card, self._margin) and self._fits(card))
        return next((card.gpu.name for card in enough), None)


def _advised(step: Step) -> AdvisedStep:
    extra = (step.lever.extra_line,) if step.lever.extra_line else ()
    return AdvisedStep(
        name=step.lever.name,
        hurts=step.lever.hurts.value,
        costs=step.lever.costs,
        lines=(*changed_lines(step.before, step.after), *extra),
        saved_bytes=step.saved_bytes,
        starts=step.starts,
        card=step.at_after,
    )
