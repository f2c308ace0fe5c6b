"""What verl's passes and its engine need on one GPU, however weights are sharded. Estimated, not yet measured."""

from dataclasses import replace

from profiler.analytical.formulas.layers.decoder_layer import layer_input_bytes, layer_saved_bytes
from profiler.analytical.formulas.layers.layer_backward import mlp_backward_bytes, recomputation_bytes
from profiler.analytical.formulas.layers.layer_without_gradient import layer_without_gradient_bytes
from profiler.analytical.formulas.models.parameters import (
    cached_widths,
    expert_weights,
    is_mixture,
    layer_parameter_count,
    mlp_width,
    parameter_count,
)
from profiler.analytical.formulas.models.trained import BFLOAT16_BYTES, FLOAT32_BYTES
from profiler.analytical.formulas.sizes.quantities import whole_units
from profiler.analytical.formulas.sizes.trial_keys import Batch
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.trials.trial import Attention, Backend, DistributedType, Logprobs, TrialSpec, Tuning
from profiler.domain.verl import Strategy, TrainedModel, VerlJob

_EAGER_ENTROPY_BACKWARD_BYTES = 24
"""Bytes per logit at the peak of the backward of an entropy that is not compiled, without logits and one gradient."""
_EAGER_ENTROPY_KEPT_BYTES = 10
"""The same where the entropy is computed and not in the loss: its peak is in forward, before there is a gradient."""
_EAGER_ENTROPY_SCRATCH = 3
"""Float32 tensors of all logits without gradient: their copy, and two of softmax, product and exponentials."""
_LAYERS_KEPT_ON_GPU = 2


def stack_bytes(job: VerlJob, architecture: Architecture, kept: TrainedModel) -> int:
    """Return what all layers keep of one forward over `max_tokens`: everything, or with checkpointing their inputs.

    By the formulas for one GPU, with FlashAttention without padding, in bfloat16. Activation offloading keeps two
    layers on the GPU. Tensor parallelism divides (with sequence parallelism, as verl sets it). The first stage of a
    pipeline keeps as many micro-batches as there are stages, each for its part of the layers: the sum is that of all
    layers.

    By hand, qwen2.5-7b, 1,000 tokens, checkpointing: 28 x 1,000 x 3,584 x 2 = 200,704,000 B; offloaded 14,336,000 B.
    """
    layers = architecture.num_hidden_layers
    stacked = min(layers, _LAYERS_KEPT_ON_GPU) if kept.activation_offload else layers
    one = layer_input_bytes if kept.gradient_checkpointing else layer_saved_bytes
    return stacked * int(one(_spec(job, kept), architecture, _batch(kept.max_tokens))) // _sharing(job)


def layer_backward_bytes(job: VerlJob, architecture: Architecture, kept: TrainedModel) -> int:
    """Return what one layer's backward adds: the gradients of the MLP, and with checkpointing the recomputed layer.

    Of a layer with experts or with adapters that count, the recomputation itself may need more than these gradients.
    """
    spec, batch = _spec(job, kept), _batch(kept.max_tokens)
    backward = int(mlp_backward_bytes(spec, architecture, batch))
    recomputed = 0
    if kept.gradient_checkpointing:
        recomputed = int(layer_saved_bytes(spec, architecture, batch))
        if _has_whole_layers(spec, architecture):
            backward = max(backward, int(recomputation_bytes(spec, architecture, batch)))
    return (backward + recomputed) // _sharing(job)


def _batch(tokens: int) -> Batch:
    return Batch(rows=1, prompt_tokens=tokens, completion_tokens=0, scored_tokens=tokens, has_mask=False)


def _sharing(job: VerlJob) -> int:
    """Return the GPUs that share what a layer computes."""
    return job.tensor_model_parallel_size


def logits_bytes(job: VerlJob, architecture: Architecture, tokens: int, *, training: bool) -> int:
    """Return the bytes of logits of `tokens` positions in bfloat16 and, in training, of their gradient.

    0 with fused kernels, which do not allocate them. By hand, 1,000 tokens, V = 151,936: 303,872,000 B, twice that in
    training of 0.8. ASSUMED: the loss works in place, as flash-attn's cross-entropy does
    (`DataParallelPPOActor._forward_micro_batch` in verl).
    """
    if job.use_fused_kernels:
        return 0
    copies = job.workers.logits_in_update if training else job.workers.logits_in_scoring
    return tokens * architecture.vocab_size * BFLOAT16_BYTES * copies // job.tensor_model_parallel_size


def entropy_update_bytes(job: VerlJob, architecture: Architecture, tokens: int) -> int:
    """Return what the entropy in the update of the actor needs in addition to `logits_bytes`.

    By torch.compile it saves the logits and numbers per row, and its backward makes one more bfloat16 tensor of all
    logits. Without, it saves two float32 tensors (the softmax, and the logits that autocast casts for `logsumexp`), and
    its backward has 28 B per logit at its peak in place of 4; 14 B if it is not in the loss, or 6 B with
    `entropy_checkpointing`. With entropy, the cross-entropy does not write over its logits.

    By hand, 1,000 tokens, V = 100: 200,000 B compiled, 2,400,000 B not compiled, 1,000,000 B if it is only computed.

    Source: `_forward_micro_batch` in verl 0.7's `dp_actor.py`, `entropy_from_logits` in its `torch_functional.py`. The
    tensors that torch.compile saves are those of functorch's `min_cut_rematerialization_partition`; the bytes per logit
    without it are those of torch's CUDA build on an emulated driver.
    """
    entropy = job.entropy
    if not entropy.in_update or not _makes_logits(job):
        return 0
    each = BFLOAT16_BYTES
    if not entropy.is_compiled:
        kept = BFLOAT16_BYTES if entropy.checkpointing else _EAGER_ENTROPY_KEPT_BYTES
        each = _EAGER_ENTROPY_BACKWARD_BYTES if entropy.in_loss else kept
    return _entropy_tokens(job, tokens) * architecture.vocab_size * each


def entropy_log_prob_bytes(job: VerlJob, architecture: Architecture, tokens: int, *, of_actor: bool = True) -> int:
    """Return what scoring needs in addition to `logits_bytes`: the entropy of the actor's old log-probabilities.

    Nothing by torch.compile, which sums up row by row. Without, three float32 tensors of all logits, or of 2,048 rows
    with `entropy_from_logits_with_chunking`. By hand, 1,000 tokens, V = 100, not compiled: 1,200,000 B. Where padding
    is cut out of the logits by a copy, at least that, once the entropy is computed.

    Args:
        job: The job.
        architecture: Its model.
        tokens: Of the pass.
        of_actor: Whether the actor scores; a reference computes no entropy.
    """
    copied = tokens * architecture.vocab_size * BFLOAT16_BYTES
    least = copied if job.workers.repacks_logits and _makes_logits(job) else 0
    if not of_actor or job.entropy.is_compiled or not _makes_logits(job):
        return least
    rows = _entropy_tokens(job, tokens)
    rows = min(rows, job.workers.entropy_chunk) if job.entropy.chunking else rows
    return max(least, rows * architecture.vocab_size * _EAGER_ENTROPY_SCRATCH * FLOAT32_BYTES)


def _makes_logits(job: VerlJob) -> bool:
    """Return whether FSDP's actor has logits; Megatron's entropy has no formula."""
    return not job.use_fused_kernels and job.strategy is not Strategy.MEGATRON


def _entropy_tokens(job: VerlJob, tokens: int) -> int:
    """Return the tokens of a pass whose entropy is computed."""
    if not job.entropy.only_responses:
        return tokens
    return tokens * job.max_response_length // (job.max_prompt_length + job.max_response_length)


def forward_bytes(job: VerlJob, architecture: Architecture, tokens: int, *, adapted: bool = True) -> int:
    """Return the bytes of one layer's forward without gradient: four [T, H] and three [T, I], in bfloat16.

    More where the layer has experts, or adapters that count; a reference has none (`adapted`).
    """
    spec = _spec(job, job.actor)
    if _has_whole_layers(spec, architecture):
        batch = _batch(tokens)
        return int(layer_without_gradient_bytes(spec, architecture, batch, adapted=adapted, autocast=False))
    return tokens * (4 * architecture.hidden_size + 3 * architecture.intermediate_size) * BFLOAT16_BYTES


def head_bytes(job: VerlJob, architecture: Architecture, tokens: int) -> int:
    """Return what is there next to the logits of a forward without gradient: the final norm's [T, H], in bfloat16.

    By hand, 1,000 tokens, H = 4,096: 8,192,000 B. Source: `Qwen3ForCausalLM.forward` in transformers.
    """
    return tokens * architecture.hidden_size * BFLOAT16_BYTES // _sharing(job)


def pool_bytes(job: VerlJob, card_bytes: int) -> int:
    """Return the bytes of the pool of an active rollout engine, including its weights; 0 if it has none.

    They are `gpu_memory_utilization` of the card, rounded down. By hand, 0.5 of 80 x 10^9: 40 x 10^9 B.
    """
    return int(card_bytes * job.gpu_memory_utilization) if job.engine.has_pool else 0


def reward_pool_bytes(job: VerlJob, card_bytes: int) -> int:
    """Return the same of the engine of a reward model on these GPUs; 0 without one."""
    reward = job.workers.reward
    return 0 if reward is None else int(card_bytes * reward.gpu_memory_utilization)


def sync_bytes(job: VerlJob, architecture: Architecture, shard_bytes: int, outside: int) -> int:
    """Return what sending weights to the rollout engine needs next to the shards: the bucket, and one whole tensor.

    The largest is the embedding, or with experts the gates and up projections of one layer. FSDP 1 also keeps the
    state dictionary, a copy of all shards, until the last is sent; it has a tied embedding under both of its names, and
    making it may need more. On a single GPU these copies are whole themselves. By hand, V = 100, H = 10 in float32,
    FSDP 1 on 8 GPUs, shards of 500 B and a bucket of 1,000 B: 1,000 + 4,000 + 500 = 5,500 B; tied, 6,000 B; on one GPU,
    shards of 4,000 B: 5,000 B.

    With LoRA only adapters are sent. FSDP 1 gathers what is outside of layers to find them, and then makes a state
    dictionary of the layers, tensor by tensor: `layered_summon` finds nothing, as the unit of an adapter's matrix calls
    it "weight". By hand, qwen3-8b with rank 64 on 2 GPUs: shards of 16,730,646,528 B, of which 1,244,663,808 x 4 / 2
    are outside; 14,241,318,912 + 12,288 x 4,096 x 4 = 14,442,645,504 B, and 4,978,655,232 B are gathered before.

    Args:
        job: Of which weights are sent.
        architecture: Of its model.
        shard_bytes: The actor's weights on one GPU.
        outside: Parameters outside of layers.

    Source: `BucketedWeightSender`, `FSDPEngine.get_per_tensor_param` and `collect_lora_params` in verl 0.9.1;
    `_sharded_post_state_dict_hook`, `_full_post_state_dict_hook` and `FlatParamHandle.param_module_names` of torch's
    FSDP.
    """
    bucket = job.workers.update_bucket_bytes
    element = BFLOAT16_BYTES if job.strategy is Strategy.MEGATRON else job.actor.weight_bytes
    experts = 2 * int(expert_weights(architecture)) if is_mixture(architecture) else 0
    if job.workers.sends_adapters:
        if job.strategy is not Strategy.FSDP:
            return bucket
        layers = shard_bytes - int(whole_units(outside, job.fsdp_size)) * element
        largest = max(architecture.hidden_size * int(mlp_width(architecture)), experts)
        return max(bucket, outside * element, layers + largest * element)
    embedding = architecture.vocab_size * architecture.hidden_size
    whole = max(embedding, experts) * element
    if job.strategy is not Strategy.FSDP:
        return bucket + whole
    again = embedding if architecture.tie_word_embeddings else 0
    copied = shard_bytes + int(whole_units(again, job.fsdp_size)) * element
    if job.n_gpus == 1:
        return bucket + copied
    made = _state_dictionary_bytes(job, architecture, copied, outside) * (job.fsdp_size > 1)
    return max(bucket + whole + copied, made)


def _state_dictionary_bytes(job: VerlJob, architecture: Architecture, copied: int, outside: int) -> int:
    """Return the most that is there while FSDP 1 makes the state dictionary, of which `copied` bytes are kept.

    What is outside of layers is gathered throughout, in the type of the weights, and copied last; each layer is
    gathered for its own. A tensor is copied whole before its shard is. By hand, V = 100, H = 10 in float32, of layers
    that are smaller: 2,000 values outside and 500 B of copies are 8,000 + 4,000 + 500 = 12,500 B.

    Source: `_sharded_pre_state_dict_hook` and `_create_chunk_dtensor` of torch's FSDP.
    """
    element = job.actor.weight_bytes
    experts = 2 * int(expert_weights(architecture)) if is_mixture(architecture) else 0
    of_layer = max(architecture.hidden_size * int(mlp_width(architecture)), experts)
    layers = copied - int(whole_units(outside, job.fsdp_size)) * element
    in_layer = layers + (int(layer_parameter_count(architecture)) + of_layer) * element
    return outside * element + max(in_layer, copied + architecture.vocab_size * architecture.hidden_size * element)


def engine_weights_bytes(job: VerlJob, architecture: Architecture) -> int:
    """Return the bytes of the engine's own weights in its pool: bfloat16 over its tensor parallel size."""
    return int(whole_units(parameter_count(architecture), job.rollout_tensor_parallel_size)) * BFLOAT16_BYTES


def kv_demand_bytes(job: VerlJob, architecture: Architecture) -> int:
    """Return the bytes per GPU of a KV cache for all sequences of a rollout at once, at full length.

    The engine serves only the sequences that fit its pool and queues the others, so a job does not need this size. By
    hand, qwen2.5-7b, 1,024 x 8 sequences of 1,536 tokens on 8 GPUs: 2 x 28 x 512 x 2 = 57,344 B per token, 1,572,864
    tokens per GPU: 90,194,313,216 B.
    """
    per_token = architecture.num_hidden_layers * int(sum(cached_widths(architecture)))
    tokens = job.train_batch_size * job.rollout_n * (job.max_prompt_length + job.max_response_length)
    return int(whole_units(tokens, job.n_gpus)) * per_token * BFLOAT16_BYTES


_SPEC = TrialSpec(
    backend=Backend.SIMULATED,
    gpu=None,
    model="",
    attn_implementation=Attention.FLASH_ATTENTION_2,
    logprobs=Logprobs.FUSED,
)
"""The keys of a trial that the formulas of a layer read."""


def _spec(job: VerlJob, model: TrainedModel) -> TrialSpec:
    """Return the keys of a trial that the formulas of a layer read; the critic of a job has no adapters."""
    if not job.workers.counts_adapters or model is not job.actor:
        return _SPEC
    return replace(
        _SPEC,
        tuning=Tuning.LORA,
        lora_rank=job.lora_rank,
        lora_target_modules=job.lora_target_modules,
        lora_dropout=0.0,
        distributed_type=DistributedType.FSDP,
    )


def _has_whole_layers(spec: TrialSpec, architecture: Architecture) -> bool:
    """Return whether a layer is counted with the peak of its forward, which those of dense full training are below."""
    return spec.tuning is not Tuning.FULL or architecture.num_experts > 1
