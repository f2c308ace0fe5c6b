"""Memory of one GPU of several, with sharding, parallelism and offloading. Estimated, not yet measured.

Counted in the source of torch's FSDP, Megatron's distributed optimizer and verl's workers; no figure was compared with
a run. The buffers of NCCL (1 to 20 GB were reported) and the CUDA context are not included.
"""

from profiler.analytical.formulas.batch import Batch
from profiler.analytical.formulas.decoder_layer import layer_input_bytes, layer_saved_bytes
from profiler.analytical.formulas.layer_backward import mlp_backward_bytes
from profiler.analytical.formulas.parameters import layer_parameter_count, lora_parameter_count, parameter_count
from profiler.analytical.formulas.quantities import whole_units
from profiler.domain.architecture import Architecture
from profiler.domain.trial import Attention, Backend, Logprobs, TrialSpec
from profiler.domain.verl import Strategy, TrainedModel, VerlJob

_COMPUTE_BYTES = 2
_FLOAT32_BYTES = 4
_ADAM_STATES = 2
_LOGITS_COPIES = 2
_ENTROPY_CHUNK = 2048
"""Rows of a chunk (`entropy_from_logits_with_chunking`)."""
_EAGER_ENTROPY_BACKWARD_BYTES = 24
"""Bytes per logit at the peak of the backward of an entropy that is not compiled, without logits and one gradient."""
_EAGER_ENTROPY_KEPT_BYTES = 10
"""The same where the entropy is computed and not in the loss: its peak is in forward, before there is a gradient."""
_EAGER_ENTROPY_SCRATCH = 3
"""Float32 tensors of all logits without gradient: their copy, and two of softmax, product and exponentials."""
_LAYERS_KEPT_ON_GPU = 2


def model_shards(job: VerlJob) -> int:
    """Return the number of GPUs that share one copy of the weights: FSDP's shards, or tensor x pipeline parallel size.

    `fsdp_size=1` is a whole copy on each GPU, as with DDP.
    """
    if job.strategy is Strategy.MEGATRON:
        return job.tensor_model_parallel_size * job.pipeline_model_parallel_size
    return job.fsdp_size


def optimizer_shards(job: VerlJob) -> int:
    """Return the number of GPUs that share one optimizer state: as the weights; in Megatron also data parallel GPUs."""
    return job.n_gpus if job.strategy is Strategy.MEGATRON else job.fsdp_size


def trained_count(job: VerlJob, architecture: Architecture) -> int:
    """Return the number of trained parameters."""
    if job.lora_rank:
        return int(lora_parameter_count(architecture, job.lora_rank, job.lora_target_modules))
    return int(parameter_count(architecture))


def kept_weights_bytes(job: VerlJob, count: int, weight_bytes: int) -> int:
    """Return the bytes of weights that a GPU keeps: `count` values of `weight_bytes` over the shards, rounded up.

    Megatron keeps bfloat16 weights for computation; its float32 masters count as optimizer state. By hand, 7 x 10^9 in
    float32 over 8: 3.5 x 10^9 B.

    Source: `ActorRolloutRefWorker._build_model_optimizer` in verl: float32 for what is trained, bfloat16 for a
    reference.
    """
    size = _COMPUTE_BYTES if job.strategy is Strategy.MEGATRON else weight_bytes
    return int(whole_units(count, model_shards(job))) * size


def kept_gradients_bytes(job: VerlJob, count: int, weight_bytes: int) -> int:
    """Return the bytes of gradients of `count` trained values over the shards.

    They have the type of the weights; in Megatron they are float32.

    Source: FSDP's `FlatParamHandle.prepare_gradient_for_optim` casts reduced gradients to the type of the parameter;
    Megatron's `grad_reduce_in_fp32`. ZeRO-2 shards them as ZeRO-3 does.
    """
    size = _FLOAT32_BYTES if job.strategy is Strategy.MEGATRON else weight_bytes
    return int(whole_units(count, model_shards(job))) * size


def optimizer_bytes(job: VerlJob, count: int, weight_bytes: int) -> int:
    """Return the bytes of AdamW's two states over the shards, in the type of weights; in Megatron float32 with masters.

    By hand, 7 x 10^9 in float32 over 8: 7 x 10^9 B. Megatron on 8: 7 x 10^9 x 12 / 8 = 10.5 x 10^9 B.
    """
    values = int(whole_units(count, optimizer_shards(job)))
    if job.strategy is Strategy.MEGATRON:
        return values * (_ADAM_STATES + 1) * _FLOAT32_BYTES
    return values * _ADAM_STATES * weight_bytes


def gathered_bytes(job: VerlJob, architecture: Architecture, *, training: bool) -> int:
    """Return the bytes of weights that FSDP has gathered at one time, in bfloat16.

    ZeRO-3: two decoder layers, the current one and the next, and the parameters outside layers (embedding, LM head,
    final norm). ZeRO-2 in training: all weights. 0 in Megatron, which gathers no weights. By hand, qwen2.5-0.5b,
    ZeRO-3: (2 x 14,912,384 + 136,135,552) values x 2 B = 331,920,640 B.
    """
    if job.strategy is Strategy.MEGATRON:
        return 0
    whole = int(parameter_count(architecture))
    if training and not job.reshard_after_forward:
        return whole * _COMPUTE_BYTES
    return (2 * int(layer_parameter_count(architecture)) + outside_parameters(architecture)) * _COMPUTE_BYTES


def outside_parameters(architecture: Architecture) -> int:
    """Return the number of parameters outside decoder layers: embedding, LM head, final norm.

    By hand, qwen2.5-0.5b: 136,135,552.
    """
    in_layers = architecture.num_hidden_layers * layer_parameter_count(architecture)
    return int(parameter_count(architecture) - in_layers)


def unreduced_gradients_bytes(job: VerlJob, values: int, *, reducing: bool) -> int:
    """Return the bytes of unsharded gradients of `values` weights before FSDP reduces them.

    They are bfloat16, and also float32 while they are reduced. 0 in Megatron, whose gradients are in one buffer from
    the start, and for LoRA, where they are small. By hand, 1,000 values: 2,000 B, and 6,000 B while they are reduced.
    Source: FSDP's `reduce_dtype`, float32 in verl.
    """
    if job.strategy is Strategy.MEGATRON or job.lora_rank:
        return 0
    return values * (_COMPUTE_BYTES + (_FLOAT32_BYTES if reducing else 0))


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
    return stacked * int(one(_SPEC, architecture, _batch(kept))) // job.tensor_model_parallel_size


def layer_backward_bytes(job: VerlJob, architecture: Architecture, kept: TrainedModel) -> int:
    """Return what one layer's backward adds: the gradients of the MLP, and with checkpointing the recomputed layer."""
    backward = int(mlp_backward_bytes(_SPEC, architecture, _batch(kept)))
    recomputed = int(layer_saved_bytes(_SPEC, architecture, _batch(kept))) if kept.gradient_checkpointing else 0
    return (backward + recomputed) // job.tensor_model_parallel_size


def _batch(kept: TrainedModel) -> Batch:
    tokens = kept.max_tokens
    return Batch(rows=1, prompt_tokens=tokens, completion_tokens=0, scored_tokens=tokens, has_mask=False)


def logits_bytes(job: VerlJob, architecture: Architecture, tokens: int, *, training: bool) -> int:
    """Return the bytes of logits of `tokens` positions in bfloat16 and, in training, of their gradient.

    0 with fused kernels, which do not allocate them. By hand, 1,000 tokens, V = 151,936: 303,872,000 B, twice that in
    training. ASSUMED: the loss works in place, as flash-attn's cross-entropy does
    (`DataParallelPPOActor._forward_micro_batch` in verl).
    """
    if job.use_fused_kernels:
        return 0
    copies = _LOGITS_COPIES if training else 1
    return tokens * architecture.vocab_size * _COMPUTE_BYTES * copies // job.tensor_model_parallel_size


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
    each = _COMPUTE_BYTES
    if not entropy.is_compiled:
        kept = _COMPUTE_BYTES if entropy.checkpointing else _EAGER_ENTROPY_KEPT_BYTES
        each = _EAGER_ENTROPY_BACKWARD_BYTES if entropy.in_loss else kept
    return _entropy_tokens(job, tokens) * architecture.vocab_size * each


def entropy_log_prob_bytes(job: VerlJob, architecture: Architecture, tokens: int) -> int:
    """Return what the entropy of the actor's old log-probabilities needs in addition to `logits_bytes`.

    Nothing by torch.compile, which sums up row by row. Without, three float32 tensors of all logits, or of 2,048 rows
    with `entropy_from_logits_with_chunking`. By hand, 1,000 tokens, V = 100, not compiled: 1,200,000 B.
    """
    if job.entropy.is_compiled or not _makes_logits(job):
        return 0
    rows = _entropy_tokens(job, tokens)
    rows = min(rows, _ENTROPY_CHUNK) if job.entropy.chunking else rows
    return rows * architecture.vocab_size * _EAGER_ENTROPY_SCRATCH * _FLOAT32_BYTES


def _makes_logits(job: VerlJob) -> bool:
    """Return whether FSDP's actor has logits; Megatron's entropy has no formula."""
    return not job.use_fused_kernels and job.strategy is not Strategy.MEGATRON


def _entropy_tokens(job: VerlJob, tokens: int) -> int:
    """Return the tokens of a pass whose entropy is computed."""
    if not job.entropy.only_responses:
        return tokens
    return tokens * job.max_response_length // (job.max_prompt_length + job.max_response_length)


def forward_bytes(architecture: Architecture, tokens: int) -> int:
    """Return the bytes of one layer's forward without gradient: four [T, H] and three [T, I], in bfloat16."""
    return tokens * (4 * architecture.hidden_size + 3 * architecture.intermediate_size) * _COMPUTE_BYTES


def pool_bytes(job: VerlJob, card_bytes: int) -> int:
    """Return the bytes of the pool of an active rollout engine, including its weights.

    They are `gpu_memory_utilization` of the card, rounded down. By hand, 0.5 of 80 x 10^9: 40 x 10^9 B.
    """
    return int(card_bytes * job.gpu_memory_utilization)


def engine_weights_bytes(job: VerlJob, architecture: Architecture) -> int:
    """Return the bytes of the engine's own weights in its pool: bfloat16 over its tensor parallel size."""
    return int(whole_units(parameter_count(architecture), job.rollout_tensor_parallel_size)) * _COMPUTE_BYTES


def kv_demand_bytes(job: VerlJob, architecture: Architecture) -> int:
    """Return the bytes per GPU of a KV cache for all sequences of a rollout at once, at full length.

    The engine serves only the sequences that fit its pool and queues the others, so a job does not need this size. By
    hand, qwen2.5-7b, 1,024 x 8 sequences of 1,536 tokens on 8 GPUs: 2 x 28 x 512 x 2 = 57,344 B per token, 1,572,864
    tokens per GPU: 90,194,313,216 B.
    """
    per_token = 2 * architecture.num_hidden_layers * architecture.num_key_value_heads * architecture.head_dim
    tokens = job.train_batch_size * job.rollout_n * (job.max_prompt_length + job.max_response_length)
    return int(whole_units(tokens, job.n_gpus)) * per_token * _COMPUTE_BYTES


_SPEC = TrialSpec(
    backend=Backend.SIMULATED,
    gpu=None,
    model="",
    attn_implementation=Attention.FLASH_ATTENTION_2,
    logprobs=Logprobs.FUSED,
)
"""The keys of a trial that the formulas of a layer read."""
