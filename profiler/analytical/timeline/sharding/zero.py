"""DeepSpeed's ZeRO: what is sharded, what the optimizer needs, and gathered weights.

The model is in bfloat16, adapters too. Trained weights have a float32 copy, which the optimizer updates; it is sharded
over W GPUs from stage 1 on, and so are the optimizer's states. Gradients are accumulated in bfloat16: whole up to
stage 1, and from stage 2 on only what this GPU updates. Buckets (`zero_buckets.py`) have DeepSpeed's default sizes.

By hand, qwen2.5-0.5b full on 4 GPUs, stage 2: weights 494,032,768 x 2 B, master weights x 4 B / 4.

Source: `DeepSpeedZeroOptimizer` in DeepSpeed 0.19's `runtime/zero/stage_1_and_2.py`, `DeepSpeedZeroOptimizer_Stage3` in
`stage3.py`, `PartitionedParameterCoordinator` in `partitioned_param_coordinator.py`, `FP16_UnfusedOptimizer` in
`runtime/fp16/unfused_optimizer.py`, and the defaults in `runtime/zero/config.py`.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from profiler.analytical.formulas.host import HostSide, OffloadedZero
from profiler.analytical.formulas.models.parameters import expert_weights, is_mixture
from profiler.analytical.formulas.models.tensor_groups import TensorGroup
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES, FLOAT32_BYTES, all_gradients
from profiler.analytical.formulas.models.weights import keeps_reference_model
from profiler.analytical.formulas.sizes.quantities import (
    NOTHING,
    Count,
    Flag,
    Term,
    Terms,
    both,
    larger,
    smaller,
    where,
    whole_units,
)
from profiler.analytical.optimizers import optimizer_scratch, optimizer_state
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.sharding.sharding import TrialSharding, is_before_training
from profiler.analytical.timeline.sharding.zero_buckets import BUCKET_BYTES, Buckets
from profiler.domain.memory import Category, Phase
from profiler.domain.text import count_text
from profiler.domain.trials.trial import Logprobs, OffloadDevice, Tuning

MOST_LIVE = 1_000_000_000
"""Weights that are gathered at a time (`stage3_max_live_parameters`)."""
SUB_GROUP = 1_000_000_000
"""Weights of this GPU that stage 3 updates at a time (`sub_group_size`)."""
NORM_BYTES = 8
"""The norm of gradients is computed in float64, tensor by tensor (`get_norm_dtype`)."""
_PASSES = 2
"""Passes after one another of which the second gathers ahead."""

_AT_HEAD = (InstantName.FORWARD_HEAD, InstantName.LOGGING, InstantName.BACKWARD_HEAD, InstantName.SCORE_HEAD)
_NOTHING_IS_GATHERED = (InstantName.REWARD, InstantName.STEP, InstantName.BACKWARD_END)


@dataclass(frozen=True)
class Zero(TrialSharding):
    """ZeRO of stage 0 to 3, with offloading."""

    @property
    def _stage(self) -> int:
        return self.spec.zero_stage or 0

    @cached_property
    def trained(self) -> Count:
        """The number of trained parameters."""
        return sum(group.total for group in self._trained)

    @cached_property
    def own(self) -> Count:
        """The number of trained parameters that this GPU updates."""
        return self.trained if self._stage == 0 else self._share(self.trained)

    @cached_property
    def whole(self) -> Count:
        """The number of all parameters, with adapters."""
        return self._parameters + (0 if self._trains_everything else self.trained)

    @property
    def _embedding(self) -> Count:
        return self.architecture.vocab_size * self.architecture.hidden_size

    @cached_property
    def is_offloaded(self) -> bool:
        """Whether the host has the optimizer's states, the master weights and their gradients."""
        return self.spec.offload_optimizer_device is OffloadDevice.CPU and self._stage != 0

    @cached_property
    def _buckets(self) -> Buckets:
        return Buckets(
            stage=self._stage,
            trained=self.trained,
            own=self.own,
            trained_embedding=self._embedding if self._trains_everything else 0,
            architecture=self.architecture,
            accumulates=self.spec.gradient_accumulation_steps > 1,
            all_bytes=all_gradients(self.spec, self.architecture).size,
            kept_bytes=self.kept_gradient_bytes,
            scores_in_step=not self.spec.recipe.facts.has_rollout,
        )

    @cached_property
    def weights(self) -> Term:
        """The base model's weights, or their shards."""
        return self._weight_words(self._parameters, "parameters x")

    @cached_property
    def adapters(self) -> Term:
        """The adapters, or their shards."""
        return self._weight_words(0 if self._trains_everything else self.trained, "x")

    def _weight_words(self, count: Count, times: str) -> Term:
        size = BFLOAT16_BYTES * (self._share(count) if self._stage == 3 else count)
        size = 0 if self._offloads_weights else size
        of_gpus = self._of_gpus if self._stage == 3 else ""
        return Term(size, lambda: f"{count_text(count)} {times} {BFLOAT16_BYTES} B{of_gpus}")

    @property
    def _of_gpus(self) -> str:
        gpus = self.spec.num_processes
        return "" if isinstance(gpus, int) and gpus == 1 else f" / {gpus} GPUs"

    @cached_property
    def master_bytes(self) -> Count:
        """The float32 copies of the weights that this GPU updates; 0 where the host has them."""
        return 0 if self.is_offloaded else FLOAT32_BYTES * self.own

    @cached_property
    def kept_gradient_bytes(self) -> Count:
        """The gradients that this GPU keeps of a reduction; 0 where the host has them.

        Stages 1 and 2 keep whole tensors of this GPU's part. The first GPU has the embedding, which it keeps whole even
        if other GPUs update a part of it. Stage 3 has one buffer from the beginning.
        """
        if self.is_offloaded:
            return 0
        return BFLOAT16_BYTES * larger(self._embedding if self._trains_everything and self._stage != 3 else 0, self.own)

    @cached_property
    def _offload_buffer_bytes(self) -> Count:
        """The tensor for the largest gradient that stages 1 and 2 offload (`temp_grad_buffer_for_gpu_offload`)."""
        if self._stage not in (1, 2) or not self.is_offloaded or not self._trains_everything:
            return 0
        return BFLOAT16_BYTES * self._largest_tensor

    def host(self) -> HostSide:
        """Return what is offloaded. Stage 3 reads tensor by tensor, and gathers to save (`zero3_save_16bit_model`)."""
        offloaded = OffloadedZero(
            stage=self._stage,
            own=self.own,
            frozen=self._share(self.whole - self.trained),
            kept=larger(self._embedding if self._trains_everything else 0, self.own),
            accumulates=bool(self.spec.gradient_accumulation_steps > 1),
            trained=self._trained,
            offloads_states=self.is_offloaded,
            offloads_weights=self._offloads_weights,
        )
        kept = {**offloaded.terms, Category.REFERENCE: self._reference_on_host}
        alike = replace(super().host(), offloaded=kept, pinning=offloaded.rounding)
        if self._stage != 3:
            return alike
        whole = Term(BFLOAT16_BYTES * self.whole, lambda: f"{count_text(self.whole)} x {BFLOAT16_BYTES} B, gathered")
        return replace(alike, read=NOTHING, saved=whole)

    @property
    def _offloads_weights(self) -> bool:
        """Whether the host has the shards of stage 3."""
        return self._stage == 3 and self.spec.offload_param_device is OffloadDevice.CPU

    @cached_property
    def _reference_on_host(self) -> Term:
        """Shards of an offloaded reference. By hand, qwen2.5-0.5b on 4 GPUs: 494,032,768 x 2 B / 4."""
        shards = self._weight_words(self._parameters, "x").words
        has_one = both(self._offloads_weights, keeps_reference_model(self.spec))
        return Term(BFLOAT16_BYTES * self._share(self._parameters), shards).only_if(has_one)

    @cached_property
    def _largest_tensor(self) -> Count:
        """The parameters of the largest tensor: the embedding, or gate and up of all experts of a layer."""
        if not is_mixture(self.architecture):
            return self._embedding
        return larger(self._embedding, 2 * expert_weights(self.architecture))

    @cached_property
    def _largest_module(self) -> Count:
        """The parameters of the largest module of a layer: a linear layer, or all its experts, which are one."""
        if is_mixture(self.architecture):
            return 3 * expert_weights(self.architecture)
        return self.architecture.hidden_size * self.architecture.intermediate_size

    @cached_property
    def states(self) -> Term:
        """Master weights and optimizer states of this GPU, of its part in a row; 0 where the host has them."""
        size: Count = 0
        if not self.is_offloaded:
            flat = (TensorGroup(shape=(self.own,), copies=1),)
            size = self.master_bytes + optimizer_state(self.spec.optim, flat, FLOAT32_BYTES).size
        of_gpus = self._of_gpus if self._stage else ""
        return Term(size, lambda: f"master weights and states of {count_text(self.trained)}{of_gpus}")

    @cached_property
    def step_gradient_bytes(self) -> Count:
        """The largest size of gradients while weights are updated, with the scratch of the optimizer.

        Stage 0 has all of them in both types. Stages 1 and 2: those that were kept, and the float64 copy of one of
        them, or both flattened copies of this GPU's part; then the float32 copy, next to those that were kept if there
        are vectors, because both groups of parameters share their buffer (`copy_grads_in_partition`). Stage 3 flattens
        a group at a time. By hand, 0.5B on 2 GPUs, stage 2, `adamw_torch`: 247,016,384 x (2 + 4 + 4) B.
        """
        if self.is_offloaded:
            return 0
        count = self.own
        both_copies = (BFLOAT16_BYTES + FLOAT32_BYTES) * count
        if self._stage == 0:
            return both_copies + self._scratch(self._trained)
        if self._stage == 3:
            group = smaller(count, SUB_GROUP)
            in_step = FLOAT32_BYTES * group + self._scratch([TensorGroup(shape=(1, group), copies=1)])
            return BFLOAT16_BYTES * count + larger((BFLOAT16_BYTES + FLOAT32_BYTES) * group, in_step)
        largest = smaller(self._largest_tensor, count) if self._trains_everything else 0
        in_norm = self.kept_gradient_bytes + NORM_BYTES * largest
        in_step = FLOAT32_BYTES * count + self._scratch([TensorGroup(shape=(1, count), copies=1)])
        shared = self.kept_gradient_bytes if any(len(group.shape) == 1 for group in self._trained) else 0
        return larger(in_norm, self.kept_gradient_bytes + both_copies, in_step + shared)

    def _scratch(self, tensors: Sequence[TensorGroup]) -> Count:
        """Return the scratch of a step. Flattened values are those of a matrix: all but a few are decayed."""
        decay = self.spec.weight_decay
        return optimizer_scratch(self.spec.optim, tensors, FLOAT32_BYTES, weight_decay=decay).size

    def kept(self, alone: Instant) -> Terms:
        """Return weights, adapters, and states, which exist from the beginning."""
        return {**self._models(alone), Category.OPTIMIZER_STATE: self.states}

    def _models(self, alone: Instant) -> Terms:
        """Return the models that are not as on one GPU; weights in 4 bits are. A copy of adapters is as these.

        A reference model has an engine of its own, and is sharded in stage 3 only, with `offload_param` of the policy
        (`prepare_deepspeed` in trl 1.16 leaves it in the configuration).
        """
        found = {Category.ADAPTERS: self.adapters}
        if self.spec.tuning is not Tuning.QLORA:
            found[Category.WEIGHTS] = self.weights
        if self.spec.ref_adapter:
            found[Category.REFERENCE] = self.adapters
        elif self._stage == 3:
            whole = 0 if self._offloads_weights else alone.terms.get(Category.REFERENCE, NOTHING).size
            words = self._weight_words(self._parameters, "x").words
            found[Category.REFERENCE] = Term(whole // self.spec.num_processes, words)
        return found

    def shared(self, alone: Instant) -> Instant:
        """Return an instant as sharding changes it; a reference before training has the model alone, as on one GPU."""
        return alone if is_before_training(alone) else super().shared(alone)

    def as_alone(self, alone: Instant) -> Terms:
        """Return the workspace without the scratch of the step, which is with gradients."""
        return {Category.WORKSPACE: self.workspace} if alone.name is InstantName.STEP else {}

    def reduced(self, alone: Instant) -> Term:
        """Return gradients: whole up to stage 1, and from stage 2 on this GPU's part."""
        if alone.name is InstantName.STEP:
            return Term(self.step_gradient_bytes, lambda: "in two types, while they are flattened")
        return self._gradients(self._buckets.gradient_bytes(alone))

    def _gradients(self, size: Count) -> Term:
        part = "" if self._stage < 2 else "this GPU's part of "
        return Term(size, lambda: f"{part}{count_text(self.trained)} x {BFLOAT16_BYTES} B, ...")

    def gathered(self, alone: Instant) -> Term:
        """Return bucket, reduced copy, buffer of what is offloaded, and gathered weights: one GPU uses its own."""
        buckets, weights = self._buckets.communicated(alone), self._gathered_weights(alone)
        is_in_place = both(self.spec.num_processes == 1, not self._offloads_weights)  # `NoGatherHandle` of DeepSpeed
        size = buckets.size + self._offload_buffer_bytes + where(is_in_place, 0, weights.size)
        return Term(size, lambda: f"{buckets.text or 'the buffer of what is offloaded'}{weights.text}")

    def _gathered_weights(self, alone: Instant) -> Term:
        if self._stage != 3 or alone.name in _NOTHING_IS_GATHERED:
            return NOTHING
        if alone.phase is Phase.ROLLOUT:
            return self._gathered_for_rollout(alone)
        before_head = alone.phase is Phase.SCORE or alone.name is InstantName.FORWARD_LAYER
        size = self._gathered_in_a_pass(at_head=alone.name in _AT_HEAD, before_head=before_head)
        if self.spec.logprobs.pair_loss is not None:
            # Each layer of a pass without backward is released when it has run; at its end there is the LM head.
            left = {InstantName.SCORE_HEAD: BFLOAT16_BYTES * self._embedding, InstantName.SCORE_LOSS: 0}
            size = left.get(alone.name, size)
        if alone.phase is Phase.SCORE and not self.spec.recipe.facts.has_rollout:
            # What the policy has gathered ahead for its backward waits while the reference runs.
            size = size + where(self._knows_order(), BFLOAT16_BYTES * smaller(self.whole, MOST_LIVE), 0)
        return Term(size, lambda: ", gathered layers")

    def _gathered_for_rollout(self, alone: Instant) -> Term:
        """Return what is gathered for a rollout: all, but for vLLM one tensor after the other.

        Adapters are merged for vLLM, for which all are gathered (`_iter_named_params` of `VLLMGeneration` in trl 1.16).
        Where the host has the weights, a copy of this GPU's part lives until the last weight is gathered. By hand,
        qwen2.5-0.5b full on 4 GPUs: 494,032,768 x 2 B, and a quarter of it once more.

        Source: `GatheredParameters` in trl's `models/utils.py`, and `_allgather_params_coalesced` in DeepSpeed's
        `partition_parameters.py`.
        """
        everything = BFLOAT16_BYTES * self.whole
        if alone.name is InstantName.GATHERING:
            own_part = BFLOAT16_BYTES * self._share(self.whole)
            return Term(everything + own_part, lambda: ", the gathered model, this GPU's part")
        if self.spec.use_vllm and self._trains_everything:
            return Term(BFLOAT16_BYTES * self._embedding, lambda: ", the gathered embedding")
        return Term(everything, lambda: ", the gathered model")

    def _gathered_in_a_pass(self, *, at_head: bool, before_head: bool) -> Count:
        """Return the bytes of the weights that stage 3 has gathered while the model computes.

        After one recorded pass DeepSpeed knows the order of the modules, and gathers ahead up to `MOST_LIVE`, and then
        the whole of one tensor more. The LM head is such a tensor if it runs as a module, which trl's fused
        log-probabilities do without; from the host it comes through a copy of this GPU's part. In a training pass this
        is so in the layers before the head: when it runs, layers that backward needs last are released
        (`stage3_max_reuse_distance`). Each generation makes DeepSpeed begin again. Before it knows the order it gathers
        the weights of one module: of the LM head, or the largest of a layer.

        By hand, qwen2.5-7b on 4 GPUs with `logprobs=full`: 10^9 parameters and 152,064 x 3,584 of the head, x 2 B.

        Args:
            at_head: Whether the LM head runs, forwards or backwards.
            before_head: Whether the LM head is gathered ahead.

        Source: `PartitionedParameterCoordinator.reset_step`, which each forward calls first, and
        `_fetch_sub_module_impl`; `_all_gather_sequential` in `partition_parameters.py`; and `add_hooks` of trl 1.16.
        """
        head = self._embedding if before_head and self.spec.logprobs is not Logprobs.FUSED else 0
        ahead = smaller(self.whole, MOST_LIVE + head)
        if self._offloads_weights:
            ahead = ahead + self._share(head)
        module = self._embedding if at_head else self._largest_module
        return BFLOAT16_BYTES * where(self._knows_order(), larger(ahead, module), module)

    def _knows_order(self) -> Flag:
        """Return whether two passes come after one another, so that the second gathers ahead."""
        if not self.spec.recipe.facts.has_rollout:
            return self.spec.gradient_accumulation_steps * self.spec.steps >= _PASSES
        return self.spec.steps_per_generation >= _PASSES

    def at_load(self, alone: Instant) -> tuple[Instant, ...]:
        """Return loading, and then the instant at which DeepSpeed takes the model over.

        Stage 3 has sharded the model while it was made. vLLM starts before DeepSpeed has the model, so that in the
        other stages the host has it.
        """
        if alone.name is InstantName.LOADED:
            return (*(() if self._stage == 3 else (alone,)), self._taken_over(alone))
        if alone.name is InstantName.ENGINE_START:
            started = replace(alone, terms={Category.ENGINE: alone.terms[Category.ENGINE]})
            return (started.with_terms({Category.WEIGHTS: self.weights}) if self._stage == 3 else started,)
        return (self.shared(alone),)

    def _taken_over(self, loaded: Instant) -> Instant:
        """Return the instant at which DeepSpeed takes the model over.

        Stage 0 takes a step, which makes states. Stages 1 and 2 copy the trained weights into one tensor, and then
        allocate the gradients of this GPU's part once. So does stage 3, a group at a time, before it allocates its
        buffers. With these it gathers each trained tensor for its hooks (`create_reduce_and_remove_grad_hooks`).
        """
        states: Count = 0
        gradients: Count = 0
        copied: Count = 0
        if self._stage == 0:
            states, gradients = self.states.size, self.step_gradient_bytes
        elif self._stage == 3:
            states = self.master_bytes
            hooked = BFLOAT16_BYTES * self._largest_tensor if self._trains_everything else 0
            group = smaller(self.master_bytes, FLOAT32_BYTES * SUB_GROUP)
            copied = larger(BUCKET_BYTES + self.kept_gradient_bytes + hooked, group)
        else:
            copied = larger(BFLOAT16_BYTES * self.trained, 2 * self.master_bytes)
        there = (Category.WEIGHTS, Category.REFERENCE)
        return replace(loaded, name=InstantName.SHARDING, terms=_only(loaded.terms, there)).with_terms(
            {
                **self._models(loaded),
                Category.OPTIMIZER_STATE: Term(states, self.states.words),
                Category.GRADIENTS: self._gradients(gradients),
                Category.COMMUNICATION: Term(copied, lambda: "while DeepSpeed takes the model over"),
            }
        )

    def before(self, earlier: tuple[Instant, ...], alone: Instant) -> tuple[Instant, ...]:
        """Return the gathering of offloaded weights before a rollout, and the reduction of a full bucket."""
        if alone.name is InstantName.PREFILL and self.spec.offload_param_device is OffloadDevice.CPU:
            there = (Category.INPUTS, Category.WORKSPACE, Category.REFERENCE)
            return (self.shared(replace(alone, name=InstantName.GATHERING, terms=_only(alone.terms, there))),)
        last = next((each for each in reversed(earlier) if each.name is InstantName.BACKWARD_LAYER), None)
        if alone.name is InstantName.BACKWARD_FIRST_LAYER and last is not None:
            return (self.shared(self._buckets.reduction(last, alone)),)
        return ()

    def _share(self, count: Count) -> Count:
        return whole_units(count, self.spec.num_processes)


def _only(terms: Terms, there: Collection[Category]) -> Terms:
    return {category: term for category, term in terms.items() if category in there}
