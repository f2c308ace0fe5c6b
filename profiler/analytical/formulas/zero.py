"""DeepSpeed's ZeRO on one of its GPUs: what is sharded, the buckets of gradients, and gathered weights.

The model is in bfloat16, adapters too. Trained weights have a float32 copy, which the optimizer updates; it is sharded
over W GPUs from stage 1 on, and so are the optimizer's states. Gradients are accumulated in bfloat16: whole up to
stage 1, and from stage 2 on only what this GPU updates. Buckets have DeepSpeed's default sizes.

By hand, qwen2.5-0.5b full on 4 GPUs, stage 2: weights 494,032,768 x 2 B, master weights x 4 B / 4.

Source: `DeepSpeedZeroOptimizer` in DeepSpeed 0.19's `runtime/zero/stage_1_and_2.py`, `DeepSpeedZeroOptimizer_Stage3` in
`stage3.py`, `PartitionedParameterCoordinator` in `partitioned_param_coordinator.py`, `FP16_UnfusedOptimizer` in
`runtime/fp16/unfused_optimizer.py`, and the defaults in `runtime/zero/config.py`.
"""

from profiler.analytical.formulas.parameters import base_tensors, expert_weights, is_mixture
from profiler.analytical.formulas.quantities import Count, Flag, larger, smaller, where, whole_units
from profiler.analytical.formulas.trained import BFLOAT16_BYTES, FLOAT32_BYTES, trained_tensors, trains_everything
from profiler.analytical.formulas.trial_keys import DecoderShape, TrialKeys
from profiler.analytical.formulas.weights import weights_bytes
from profiler.domain.trial import Logprobs, OffloadDevice, Tuning

BUCKET = 500_000_000
"""Gradients that are reduced at a time (`reduce_bucket_size`)."""
MOST_LIVE = 1_000_000_000
"""Weights that are gathered at a time (`stage3_max_live_parameters`)."""
SUB_GROUP = 1_000_000_000
"""Weights of this GPU that stage 3 updates at a time (`sub_group_size`)."""
BUCKET_BYTES = BUCKET * BFLOAT16_BYTES


def trained(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the number of trained parameters."""
    return sum(group.total for group in trained_tensors(spec, architecture))


def own(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the number of trained parameters that this GPU updates."""
    return where(spec.zero_stage == 0, trained(spec, architecture), _share(spec, trained(spec, architecture)))


def base_weight_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the base model's weights, or of their shards; weights in 4 bits stay as they are."""
    if spec.tuning is Tuning.QLORA:
        return weights_bytes(spec, architecture)
    return _weight_bytes(spec, sum(group.total for group in base_tensors(architecture)))


def adapter_weight_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the adapters, or of their shards."""
    return 0 if trains_everything(spec) else _weight_bytes(spec, trained(spec, architecture))


def _weight_bytes(spec: TrialKeys, count: Count) -> Count:
    if spec.zero_stage != 3:
        return BFLOAT16_BYTES * count
    return 0 if spec.offload_param_device is OffloadDevice.CPU else BFLOAT16_BYTES * _share(spec, count)


def master_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the float32 copies of the weights that this GPU updates; 0 where the host has them."""
    return 0 if is_offloaded(spec) else FLOAT32_BYTES * own(spec, architecture)


def is_offloaded(spec: TrialKeys) -> bool:
    """Return whether the host has the optimizer's states, the master weights and their gradients."""
    return spec.offload_optimizer_device is OffloadDevice.CPU and spec.zero_stage != 0


def kept_gradient_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the gradients that stages 1 and 2 keep of a reduction: whole tensors of this GPU's part.

    The first GPU has the embedding, which it keeps whole even if other GPUs update a part of it.
    """
    if is_offloaded(spec):
        return 0
    first = embedding(architecture) if trains_everything(spec) else 0
    return BFLOAT16_BYTES * larger(first, own(spec, architecture))


def offload_buffer_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the tensor through which stages 1 and 2 offload a gradient: as large as the largest.

    Source: `temp_grad_buffer_for_gpu_offload` of `DeepSpeedZeroOptimizer`.
    """
    if spec.zero_stage not in (1, 2) or not is_offloaded(spec) or not trains_everything(spec):
        return 0
    return BFLOAT16_BYTES * largest_tensor(architecture)


def embedding(architecture: DecoderShape) -> Count:
    """Return the parameters of the embedding."""
    return architecture.vocab_size * architecture.hidden_size


def largest_tensor(architecture: DecoderShape) -> Count:
    """Return the parameters of the largest tensor: the embedding, or gate and up of all experts of a layer."""
    table = embedding(architecture)
    return larger(table, 2 * expert_weights(architecture)) if is_mixture(architecture) else table


def _largest_module(architecture: DecoderShape) -> Count:
    """Return the parameters of the largest module of a layer: a linear layer, or all its experts, which are one."""
    hidden = architecture.hidden_size
    return 3 * expert_weights(architecture) if is_mixture(architecture) else hidden * architecture.intermediate_size


def gathered_bytes(spec: TrialKeys, architecture: DecoderShape, *, at_head: bool, before_head: bool) -> Count:
    """Return the bytes of the weights that stage 3 has gathered while the model computes.

    After one recorded pass DeepSpeed knows the order of the modules, and gathers ahead up to `MOST_LIVE`, and then the
    whole of one tensor more. The LM head is such a tensor if it runs as a module, which trl's fused log-probabilities
    do without; from the host it comes through a copy of this GPU's part. In a training pass this is so in the layers
    before the head: when it runs, layers that backward needs last are released (`stage3_max_reuse_distance`). Each
    generation makes DeepSpeed begin again. Before it knows the order it gathers the weights of one module: of the LM
    head, or the largest of a layer.

    By hand, qwen2.5-7b on 4 GPUs with `logprobs=full`: 10^9 parameters and 152,064 x 3,584 of the head, x 2 B.

    Args:
        spec: The trial.
        architecture: Its model.
        at_head: Whether the LM head runs, forwards or backwards.
        before_head: Whether the LM head is gathered ahead.

    Source: `PartitionedParameterCoordinator.reset_step`, which each forward calls first, and `_fetch_sub_module_impl`;
    `_all_gather_sequential` in `partition_parameters.py`; and `add_hooks` of trl 1.16.
    """
    if spec.zero_stage != 3:
        return 0
    head = embedding(architecture) if before_head and spec.logprobs is not Logprobs.FUSED else 0
    ahead = smaller(whole(spec, architecture), MOST_LIVE + head)
    if spec.offload_param_device is OffloadDevice.CPU:
        ahead = ahead + _share(spec, head)
    module = embedding(architecture) if at_head else _largest_module(architecture)
    ahead = larger(ahead, module)
    return BFLOAT16_BYTES * where(knows_order(spec), ahead, module)


def knows_order(spec: TrialKeys) -> Flag:
    """Return whether two passes come after one another, so that the second gathers ahead."""
    if not spec.recipe.facts.has_rollout:
        return spec.gradient_accumulation_steps * spec.steps >= _PASSES
    return spec.steps_per_generation >= _PASSES


_PASSES = 2


def whole(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the number of all parameters, with adapters."""
    base = sum(group.total for group in base_tensors(architecture))
    return base + (0 if trains_everything(spec) else trained(spec, architecture))


def _share(spec: TrialKeys, count: Count) -> Count:
    return whole_units(count, spec.num_processes)
