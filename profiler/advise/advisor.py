"""The search for what to change so that a trial fits its card, with the rules between keys and the card's verdicts."""

from collections.abc import Mapping

from profiler.advise.levers import Change
from profiler.advise.plan import Plan, Planner, Step
from profiler.analytical.explanation.cards import CardVerdict, all_cards, card_verdict
from profiler.config.trials.identity import spec_to_mapping
from profiler.config.trials.specification import parse_point
from profiler.config.trl.yaml import changed_lines, trl_file
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.errors import UsageError
from profiler.domain.trials.trial import TrialSpec
from profiler.estimate.job.inputs import ArchitectureLookup
from profiler.rendering.answers.advice import Advice, AdvisedStep
from profiler.rendering.answers.solve import leaves_free


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
            return card_verdict(spec, self._architecture_of(spec.model), gpu_named(str(spec.gpu)))
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
