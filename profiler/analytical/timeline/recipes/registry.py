"""Micro-batches and instants of a trial by the value of the key `recipe`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from profiler.analytical.formulas.batch import Batch, generated_micro_batch
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.timeline.instants import Instant
from profiler.analytical.timeline.recipes.grpo import grpo_instants
from profiler.analytical.timeline.recipes.sft import labelled_rows, sft_instants
from profiler.analytical.timeline.sharded_instants import sharded
from profiler.analytical.timeline.zero_instants import partitioned
from profiler.domain.errors import Fault, UsageError
from profiler.domain.recipe import LABELLED, ONLINE, Recipe, RecipeFacts
from profiler.domain.trial import DistributedType


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One step of a recipe."""

    micro_batch: Callable[[TrialKeys], Batch]
    instants: Callable[[TrialKeys, DecoderShape], tuple[Instant, ...]]
    holds_for: RecipeFacts
    """What the instants count: they are no answer for a recipe that has anything else."""


_STEPS: Mapping[Recipe, _Step] = {
    Recipe.GRPO: _Step(micro_batch=generated_micro_batch, instants=grpo_instants, holds_for=ONLINE),
    Recipe.RLOO: _Step(micro_batch=generated_micro_batch, instants=grpo_instants, holds_for=ONLINE),
    Recipe.SFT: _Step(micro_batch=labelled_rows, instants=sft_instants, holds_for=LABELLED),
}


def _step(recipe: Recipe) -> _Step:
    """Return the step of a recipe.

    Raises:
        UsageError: There is no closed form of what the recipe has.
    """
    step = _STEPS.get(recipe)
    if step is None or step.holds_for != recipe.facts:
        raise UsageError([Fault(key="recipe", found=recipe, problem="has no closed form")])
    return step


def micro_batch(spec: TrialKeys) -> Batch:
    """Return the batch of one forward and backward pass."""
    return _step(spec.recipe).micro_batch(spec)


def trial_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial, in the order of a step."""
    instants = _step(spec.recipe).instants
    if spec.distributed_type is DistributedType.DEEPSPEED:
        return partitioned(spec, architecture, instants(spec, architecture))
    if spec.distributed_type is not DistributedType.FSDP:
        return instants(spec, architecture)
    alone = cast("TrialKeys", _Checkpointed(spec)) if spec.fsdp_activation_checkpointing else spec
    return sharded(spec, architecture, instants(alone, architecture))


class _Checkpointed:
    """A trial whose layers are checkpointed by FSDP: they keep what they keep if the model does it."""

    gradient_checkpointing = True

    def __init__(self, spec: TrialKeys) -> None:
        self._spec = spec

    def __getattr__(self, name: str) -> object:
        return getattr(self._spec, name)
