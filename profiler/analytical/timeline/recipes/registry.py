"""Micro-batches and instants of a trial by the value of the key `recipe`, and the instants of GRPO."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from profiler.analytical.formulas.models.parameters import model_of_recipe
from profiler.analytical.formulas.models.trained import all_logits, element_bytes, trains_everything
from profiler.analytical.formulas.sizes.quantities import Term, Terms, added
from profiler.analytical.formulas.sizes.rounding import block_of
from profiler.analytical.formulas.sizes.trial_keys import (
    Batch,
    DecoderShape,
    TrialKeys,
    generated_micro_batch,
    with_keys,
)
from profiler.analytical.formulas.vllm_memory import resident_engine
from profiler.analytical.timeline.instants import (
    Instant,
    InstantName,
    generated_inputs,
    persistent_at_rollout,
    persistent_memory,
    unfinished_gradients,
)
from profiler.analytical.timeline.optional_instants import (
    critic_instants,
    evaluation_instants,
    value_instants,
    with_critic_state,
)
from profiler.analytical.timeline.recipes.of_data import (
    data_inputs,
    data_micro_batch,
    dpo_instants,
    kto_instants,
    rows_with_inputs,
    single_pass_instants,
)
from profiler.analytical.timeline.sharding.fsdp import Fsdp
from profiler.analytical.timeline.sharding.sharding import HostInstant, Replicated, TrialSharding
from profiler.analytical.timeline.sharding.zero import Zero
from profiler.analytical.timeline.step_instants import (
    engine_rollout_instants,
    load_instants,
    optimizer_instant,
    reward_instants,
    rollout_instants,
    score_instants,
)
from profiler.analytical.timeline.tower_instants import image_input_bytes, joined_images, next_images
from profiler.analytical.timeline.training_pass import training_instants
from profiler.domain.errors import Fault, UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.recipe import COMPARED, JUDGED, LABELLED, ONLINE, PAIRED, Recipe, RecipeFacts
from profiler.domain.trials.trial import ZERO_OF_WEIGHTS, DistributedType, Dtype


def grpo_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial of GRPO, in the order of a step."""
    inputs = generated_inputs(spec).plus(Term(image_input_bytes(spec, architecture)))
    persistent = with_critic_state(spec, architecture, persistent_memory(spec, architecture, inputs=inputs))
    at_rollout = added(persistent_at_rollout(spec, persistent), next_images(spec, architecture))
    rollout = engine_rollout_instants if spec.use_vllm else rollout_instants
    engine: Terms = {Category.ENGINE: resident_engine(spec, architecture)}
    scoring, training = added(at_rollout, engine), added(persistent, engine)
    batch = generated_micro_batch(spec)
    unfinished: Terms = {Category.GRADIENTS: unfinished_gradients(spec, architecture)}
    rewarded = added(scoring, unfinished, joined_images(spec, architecture))
    return (
        *load_instants(spec, architecture),
        *rollout(spec, architecture, at_rollout),
        *score_instants(spec, architecture, scoring),
        *value_instants(spec, architecture, scoring, batch),
        *reward_instants(spec, architecture, rewarded),
        *critic_instants(spec, architecture, training, batch),
        *training_instants(spec, architecture, training, batch),
        optimizer_instant(spec, architecture, training),
        *evaluation_instants(spec, architecture, persistent),
    )


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
    Recipe.SFT: _Step(micro_batch=data_micro_batch, instants=single_pass_instants, holds_for=LABELLED),
    Recipe.DPO: _Step(micro_batch=data_micro_batch, instants=dpo_instants, holds_for=PAIRED),
    Recipe.KTO: _Step(micro_batch=data_micro_batch, instants=kto_instants, holds_for=JUDGED),
    Recipe.REWARD: _Step(micro_batch=data_micro_batch, instants=single_pass_instants, holds_for=COMPARED),
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


_SHARDINGS: Mapping[DistributedType, type[TrialSharding]] = {
    DistributedType.NO: Replicated,
    DistributedType.MULTI_GPU: Replicated,
    DistributedType.FSDP: Fsdp,
    DistributedType.DEEPSPEED: Zero,
}


def in_engine_type(spec: TrialKeys) -> TrialKeys:
    """Return a trial in the type in which its GPU holds the model: DeepSpeed makes it bfloat16, whatever was loaded.

    Source: `DeepSpeedEngine._configure_distributed_model` of DeepSpeed 0.19, which casts before it moves to the GPU;
    with stage 3 `zero.Init` makes the parameters so (`_set_dtype` in its `partition_parameters.py`).
    """
    return with_keys(spec, dtype=Dtype.BFLOAT16) if spec.distributed_type is DistributedType.DEEPSPEED else spec


def trial_instants(spec: TrialKeys, architecture: DecoderShape) -> tuple[Instant, ...]:
    """Return the instants of a trial, in the order of a step, on one of its GPUs."""
    architecture = model_of_recipe(spec.recipe, architecture)
    loaded, spec = spec, in_engine_type(spec)
    alone = of_one_gpu(spec)
    instants = _step(spec.recipe).instants(alone, architecture)
    if not spec.recipe.facts.has_rollout:
        persistent = persistent_memory(alone, architecture, inputs=data_inputs(alone))
        instants += evaluation_instants(alone, architecture, persistent, rows_with_inputs)
    instants = _with_kept_copy(alone, architecture, instants)
    if loaded is not spec and spec.zero_stage != ZERO_OF_WEIGHTS:  # the model is on the card before DeepSpeed has it
        after = (each for each in instants if each.phase is not Phase.LOAD)
        instants = (*load_instants(loaded, architecture), *after)
    return _SHARDINGS[spec.distributed_type](spec, architecture).instants(instants)


_AT_HEAD = (InstantName.FORWARD_HEAD, InstantName.LOGGING, InstantName.BACKWARD_HEAD)


def _with_kept_copy(spec: TrialKeys, architecture: DecoderShape, instants: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """Return the instants with the float32 logits of the micro-batch before, where a name of the trainer keeps them.

    The head's own instants count them (`_label_loss_scratch`). In its backward a copy outlives its gradient, so there
    is one more instant: the copy, the gradient in the type of the outputs, and what it becomes, the gradients of the
    hidden states and of a trained head.

    By hand, 2 rows of 11 tokens, H = 8, V = 100: 8,800 B everywhere else; 2,200 x 6 + 22 x 16 + 1,600 B in a product.

    Source: `output` in `SFTTrainer.fit`, `openrlhf/trainer/sft_trainer.py` of OpenRLHF 0.11.2.
    """
    if spec.logprobs.label_loss is None or not spec.logprobs.label_loss.keeps_copy:
        return instants
    batch, block, element = micro_batch(spec), block_of(spec), element_bytes(spec).compute
    copy = Term(all_logits(spec, architecture, batch).in_float32, lambda: "in float32, of the last micro-batch")
    hidden = Term(block(batch.positions * architecture.hidden_size * element))
    head = Term(block(architecture.vocab_size * architecture.hidden_size * element if trains_everything(spec) else 0))
    made: Terms = {Category.ACTIVATIONS: hidden, Category.GRADIENTS: head}
    found: list[Instant] = []
    for each in instants:
        has_it = each.phase is not Phase.LOAD and each.name not in _AT_HEAD
        found.append(each.with_terms({Category.LOGITS: copy}) if has_it else each)
        if each.name is InstantName.BACKWARD_HEAD:
            there = each.terms[Category.LOGITS]
            left = {Category.LOGITS: Term(there.size - copy.size, there.words)}
            found.append(replace(each, terms={**added(each.terms, made), **left}))
    return tuple(found)


def of_one_gpu(spec: TrialKeys) -> TrialKeys:
    """Return the trial as one GPU computes it, with all of its model.

    Layers that FSDP checkpoints keep what they keep if the model does it. It gathers weights in bfloat16, whatever type
    their shards have (`MixedPrecisionPolicy.param_dtype` in accelerate's `set_mixed_precision`). Context parallelism
    gives each GPU an equal part of each row; the keys and values that ring attention sends are left out.

    By hand, rows of 16,384 tokens with `cp_size=4`: 4,096 on each GPU.

    Source: `maybe_context_parallel` of accelerate 1.15, `_prepare_context_parallel_inputs` of transformers 5.23.
    """
    alone = with_keys(spec, gradient_checkpointing=True) if spec.fsdp_activation_checkpointing else spec
    if spec.distributed_type is DistributedType.FSDP:
        alone = with_keys(alone, dtype=Dtype.BFLOAT16)
    if spec.cp_size in (None, 1):
        return alone
    return with_keys(alone, max_length=(spec.max_length or 0) // (spec.cp_size or 1))


def host_instants(spec: TrialKeys, architecture: DecoderShape, *, processes: int) -> tuple[HostInstant, ...]:
    """Return the instants of a trial on the host of one node; `processes` are those of the node."""
    return _SHARDINGS[spec.distributed_type](spec, architecture).on_host(processes)
