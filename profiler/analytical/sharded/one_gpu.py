"""Memory of one GPU of several: what sharding, parallelism and offloading leave there. Estimated, not yet measured.

Counted from torch's FSDP, Megatron's distributed optimizer and verl's workers as they are written; no figure was
compared with a run. NCCL's buffers (1 to 20 GB have been seen) and the CUDA context are not in here.
"""

from profiler.analytical.formulas.batch import Batch
from profiler.analytical.formulas.decoder_layer import layer_input_bytes, layer_saved_bytes, mlp_backward_bytes
from profiler.analytical.formulas.parameters import lora_parameter_count, parameter_count, projections
from profiler.analytical.formulas.quantities import whole_units
from profiler.domain.architecture import Architecture
from profiler.domain.trial import Attention, Backend, Logprobs, TrialSpec
from profiler.domain.verl import Strategy, TrainedModel, VerlJob

_COMPUTE_BYTES = 2
_FLOAT32_BYTES = 4
_ADAM_STATES = 2
_LOGITS_COPIES = 2
_LAYERS_KEPT_ON_GPU = 2


def model_shards(job: VerlJob) -> int:
    """GPUs that one copy of the weights is spread over: FSDP's shards, or tensor times pipeline parallel size.

    `fsdp_size=1` is a whole copy on every GPU, as with DDP.
    """
    if job.strategy is Strategy.MEGATRON:
        return job.tensor_model_parallel_size * job.pipeline_model_parallel_size
    return job.fsdp_size


def optimizer_shards(job: VerlJob) -> int:
    """GPUs that the optimizer's state is spread over: as the weights; in Megatron over the data parallel ones too."""
    return job.n_gpus if job.strategy is Strategy.MEGATRON else job.fsdp_size


def trained_count(job: VerlJob, architecture: Architecture) -> int:
    """Parameters that are updated."""
    if job.lora_rank:
        return int(lora_parameter_count(architecture, job.lora_rank, job.lora_target_modules))
    return int(parameter_count(architecture))


def critic_count(architecture: Architecture) -> int:
    """Parameters of a critic of the actor's model: one value in place of the vocabulary.

    By hand, toy (V = 100, H = 8, tied): its parameters and a head of 8. Untied: a head of 800 less, and 8 more.
    """
    head = 0 if architecture.tie_word_embeddings else architecture.vocab_size * architecture.hidden_size
    return int(parameter_count(architecture)) - head + architecture.hidden_size


def kept_weights_bytes(job: VerlJob, count: int, weight_bytes: int) -> int:
    """Weights that stay on a GPU between passes: `count` values of `weight_bytes` over the shards, rounded up.

    Megatron keeps bfloat16 to compute in; its float32 masters count as optimizer state. By hand, 7 x 10^9 in float32
    over 8: 3.5 x 10^9 B.

    Source: `ActorRolloutRefWorker._build_model_optimizer` in verl: float32 for what is trained, bfloat16 for a
    reference.
    """
    size = _COMPUTE_BYTES if job.strategy is Strategy.MEGATRON else weight_bytes
    return int(whole_units(count, model_shards(job))) * size


def kept_gradients_bytes(job: VerlJob, count: int, weight_bytes: int) -> int:
    """Gradients of `count` trained values: over the shards, in the weights' type; Megatron's in float32.

    Source: FSDP's `FlatParamHandle.prepare_gradient_for_optim` casts what is reduced to the parameter's type;
    Megatron's `grad_reduce_in_fp32`. ZeRO-2 shards them as ZeRO-3 does.
    """
    size = _FLOAT32_BYTES if job.strategy is Strategy.MEGATRON else weight_bytes
    return int(whole_units(count, model_shards(job))) * size


def optimizer_bytes(job: VerlJob, count: int, weight_bytes: int) -> int:
    """AdamW's two states over the shards, in the weights' type; Megatron's in float32, with the float32 masters.

    By hand, 7 x 10^9 in float32 over 8: 7 x 10^9 B. Megatron on 8: 7 x 10^9 x 12 / 8 = 10.5 x 10^9 B.
    """
    values = int(whole_units(count, optimizer_shards(job)))
    if job.strategy is Strategy.MEGATRON:
        return values * (_ADAM_STATES + 1) * _FLOAT32_BYTES
    return values * _ADAM_STATES * weight_bytes


def gathered_bytes(job: VerlJob, architecture: Architecture, *, training: bool) -> int:
    """Whole weights that FSDP has gathered at once, in bfloat16.

    ZeRO-3: two decoder layers, the one at work and the next, and what no layer holds (embedding, LM head, final norm).
    ZeRO-2 in training: everything. 0 in Megatron, which computes on what it keeps. By hand,
    qwen2.5-0.5b, ZeRO-3: 2 x 14,912,384 + 136,135,552 values x 2 B = 331,920,640 B.
    """
    if job.strategy is Strategy.MEGATRON:
        return 0
    whole = int(parameter_count(architecture))
    if training and not job.reshard_after_forward:
        return whole * _COMPUTE_BYTES
    return (2 * layer_parameters(architecture) + outside_parameters(architecture)) * _COMPUTE_BYTES


def outside_parameters(architecture: Architecture) -> int:
    """Parameters that no decoder layer holds: embedding, LM head, final norm. By hand, qwen2.5-0.5b: 136,135,552."""
    return int(parameter_count(architecture)) - architecture.num_hidden_layers * layer_parameters(architecture)


def unreduced_gradients_bytes(job: VerlJob, values: int, *, reducing: bool) -> int:
    """Gradients of `values` weights whole, before FSDP has reduced them: bfloat16, and to reduce them float32 beside.

    0 in Megatron, whose gradients are in one buffer from the start, and for LoRA, where they are small. By hand, 1,000
    values: 2,000 B, and 6,000 B while they are reduced. Source: FSDP's `reduce_dtype`, float32 in verl.
    """
    if job.strategy is Strategy.MEGATRON or job.lora_rank:
        return 0
    return values * (_COMPUTE_BYTES + (_FLOAT32_BYTES if reducing else 0))


def layer_parameters(architecture: Architecture) -> int:
    """Parameters of one decoder layer. By hand, qwen2.5-0.5b: 14,912,384."""
    linear = sum(part.weights for part in projections(architecture))
    biases = sum(part.out_features for part in projections(architecture) if part.has_bias)
    norms = 2 * architecture.hidden_size + (2 * architecture.head_dim if architecture.qk_norm else 0)
    return int(linear + biases + norms)


def stack_bytes(job: VerlJob, architecture: Architecture, kept: TrainedModel) -> int:
    """What all layers keep of one forward over `max_tokens`: everything, or with checkpointing their inputs.

    The formulas of one GPU, FlashAttention without padding, in bfloat16. Activation offloading leaves two layers' part.
    Tensor parallelism divides (with sequence parallelism, as verl sets it); a pipeline's first stage holds as many
    micro-batches as there are stages, each of its part of the layers: the same in all.

    By hand, qwen2.5-7b, 1,000 tokens, checkpointing: 28 x 1,000 x 3,584 x 2 = 200,704,000 B; offloaded 14,336,000 B.
    """
    layers = architecture.num_hidden_layers
    stacked = min(layers, _LAYERS_KEPT_ON_GPU) if kept.activation_offload else layers
    one = layer_input_bytes if kept.gradient_checkpointing else layer_saved_bytes
    return stacked * int(one(_SPEC, architecture, _batch(kept))) // job.tensor_model_parallel_size


def layer_backward_bytes(job: VerlJob, architecture: Architecture, kept: TrainedModel) -> int:
    """One layer's backward above the stack: the MLP's gradients, and with checkpointing the layer made anew."""
    backward = int(mlp_backward_bytes(_SPEC, architecture, _batch(kept)))
    anew = int(layer_saved_bytes(_SPEC, architecture, _batch(kept))) if kept.gradient_checkpointing else 0
    return (backward + anew) // job.tensor_model_parallel_size


def _batch(kept: TrainedModel) -> Batch:
    tokens = kept.max_tokens
    return Batch(rows=1, prompt_tokens=tokens, completion_tokens=0, scored_tokens=tokens, has_mask=False)


def logits_bytes(job: VerlJob, architecture: Architecture, tokens: int, *, training: bool) -> int:
    """Logits of `tokens` positions in bfloat16 and, in training, their gradient; fused kernels never make them.

    By hand, 1,000 tokens, V = 151,936: 303,872,000 B, twice that in training. ASSUMED: the loss works in place, as
    flash-attn's cross-entropy does (`DataParallelPPOActor._forward_micro_batch` in verl).
    """
    if job.use_fused_kernels:
        return 0
    copies = _LOGITS_COPIES if training else 1
    return tokens * architecture.vocab_size * _COMPUTE_BYTES * copies // job.tensor_model_parallel_size


def forward_bytes(architecture: Architecture, tokens: int) -> int:
    """One layer's forward without gradient: the stream twice and the MLP's three, in bfloat16."""
    return tokens * (4 * architecture.hidden_size + 3 * architecture.intermediate_size) * _COMPUTE_BYTES


def pool_bytes(job: VerlJob, card_bytes: int) -> int:
    """What the rollout engine takes of a card while it is awake: `gpu_memory_utilization` of it, weights included.

    By hand, 0.5 of 80 x 10^9: 40 x 10^9 B. In whole bytes, rounded down.
    """
    return int(card_bytes * job.gpu_memory_utilization)


def engine_weights_bytes(job: VerlJob, architecture: Architecture) -> int:
    """The engine's own weights on a GPU, inside its pool: bfloat16 over its tensor parallel size."""
    return int(whole_units(parameter_count(architecture), job.rollout_tensor_parallel_size)) * _COMPUTE_BYTES


def kv_demand_bytes(job: VerlJob, architecture: Architecture) -> int:
    """The KV cache that all sequences of a rollout would fill, on a GPU, if they were served at once at full length.

    The engine serves what its pool has room for and lets the rest wait, so this is a wish and no need. By hand,
    qwen2.5-7b, 1,024 x 8 sequences of 1,536 tokens on 8 GPUs: 2 x 28 x 512 x 2 = 57,344 B a token, 1,572,864 tokens a
    GPU: 90,194,313,216 B.
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
"""The layers' formulas ask for no more of a trial than this."""
