"""vLLM in the process that trains: its own accounting, and buffers that its sleep mode does not return."""

from dataclasses import dataclass

from profiler.analytical.formulas.models.parameters import (
    cached_widths,
    norm_count,
    parameter_count,
    projections,
)
from profiler.analytical.formulas.models.trained import element_bytes
from profiler.analytical.formulas.sizes.quantities import (
    NOTHING,
    Count,
    Flag,
    Term,
    both,
    chosen,
    holds,
    larger,
    looked_up,
    rounded_down,
    smaller,
    where,
    whole_units,
)
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys, layer_kinds
from profiler.domain.cards.card import cublas_workspace_bytes
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.trials.trial import VllmMode

DEFAULT_CARD = "h100-80gb"
"""The card that is assumed where none is named."""

ENGINE_TOKENS = 4096
"""Tokens of a forward of the engine, at most: `max_num_batched_tokens`, as `VLLMGeneration._init_vllm` in trl 1.16."""

BLOCK_TOKENS = 16
"""Tokens of one block of vLLM's paged KV cache, with FlashAttention."""

_INT32_BYTES, _FLOAT32_BYTES = 4, 4

_INPUT_BYTES = 4 + 8 + 1 + 8
"""Bytes per token of a forward: its id, its position, whether it pads, and its place in the KV cache.

Source: `InputBuffers` in vLLM's `v1/worker/gpu/input_batch.py`, and `slot_mappings` of `BlockTables`.
"""

_TOP_P_BYTES = 64 * 32 * (4 + 5 * 8 * 3) * _FLOAT32_BYTES
"""Statistics of up to 64 rows in 32 parts each: 4 per part, and 3 for each of 8 candidates in 5 rounds.

Source: `_apply_topp_split` in vLLM's `v1/sample/ops/topk_topp_triton.py`; 32,768 and 983,040 B on an emulated card.
"""

_DOUBLINGS = 8
"""Doublings of 1 to more than the multiprocessors of any card."""


def buffer_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the workspace of the CUDA graphs, scratch of the sampler, inputs, and tables of blocks.

    By hand, qwen2.5-1.5b, 16 sequences of up to 131,072 tokens on an H100: 33,554,432 + 16 x 151,936 x 4 + 1,015,808
    + 4,096 x 21 + 2 x 16 x 8,192 x 4 = 45,428,736 B. Left out are tensors of 512 B each (0.3 MB), and the remainder of
    the workspace's block: vLLM keeps the allocator from splitting blocks above 20 MiB in the profile run, and one of
    52,428,800 B was seen to serve the 33,554,432.
    """
    workspace = looked_up(spec.gpu, _workspace_bytes)
    scratch = _sampler_rows(spec) * architecture.vocab_size * _FLOAT32_BYTES + _TOP_P_BYTES
    blocks = whole_units(accepted_tokens(spec, architecture), BLOCK_TOKENS)
    tables = 2 * engine_sequences(spec) * blocks * _INT32_BYTES
    return workspace + scratch + ENGINE_TOKENS * _INPUT_BYTES + tables


def engine_sequences(spec: TrialKeys) -> Count:
    """Return the sequences that the engine runs at once: those of all GPUs that share it.

    Source: `max_num_seqs` of `GRPOTrainer.__init__` in trl 1.16.
    """
    return spec.generation_batch_size * spec.vllm_tensor_parallel_size


def accepted_tokens(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the tokens of the longest sequence that the engine accepts: the context of the model if not stated."""
    length = 0 if spec.vllm_max_model_length is None else spec.vllm_max_model_length
    return where(length > 0, length, architecture.context)


def _sampler_rows(spec: TrialKeys) -> Count:
    """Return the rows of logits that the kernel of top-k and top-p keeps: one per program.

    They are the sequences, rounded up to a power of two, and at most the card's multiprocessors.

    Source: `apply_top_k_top_p_triton` in vLLM's `v1/sample/ops/topk_topp_triton.py`.
    """
    processors = looked_up(spec.gpu, _multiprocessors)
    programs = smaller(engine_sequences(spec), processors)
    rows: Count = 1
    for _ in range(_DOUBLINGS):
        rows = where(rows < programs, 2 * rows, rows)
    return smaller(rows, processors)


def _workspace_bytes(gpu: str | None) -> int:
    """Return the workspace of cuBLAS on the stream on which CUDA graphs are captured."""
    return cublas_workspace_bytes(gpu_named(gpu or DEFAULT_CARD).compute_capability)


def _multiprocessors(gpu: str | None) -> int:
    return gpu_named(gpu or DEFAULT_CARD).chip.multiprocessors


ENGINE_ELEMENT_BYTES = 2
"""vLLM computes in bfloat16 or float16; it reads a float32 checkpoint as one of these."""

_INT32_BYTES_VLLM_MEMORY, _BITS = 4, 32


def requested_bytes(spec: TrialKeys) -> Count:
    """Return the part of the card that vLLM may use, in bytes; 0 if it runs elsewhere.

    By hand, 0.3 of an H100 with 84,944,093,184 B: 25,483,227,955.2, so 25,483,227,956 B.

    Source: `request_memory` in vLLM's `v1/worker/utils.py`.
    """
    if not spec.use_vllm:
        return 0
    utilization = 0.0 if spec.vllm_gpu_memory_utilization is None else spec.vllm_gpu_memory_utilization
    part = utilization * looked_up(spec.gpu, _card_bytes)
    down = rounded_down(part)
    return where(is_colocated(spec), down + where(down < part, 1, 0), 0)


@dataclass(frozen=True, kw_only=True)
class VllmMemory:
    """What vLLM has on the GPU that trains while it generates; all of it is 0 if it runs elsewhere."""

    weights: Count
    state: Count
    """Counts of the tokens of each sequence, by which its sampler can penalise repetition."""
    buffers: Count
    """Workspace of the CUDA graphs, scratch of the sampler, inputs and tables of blocks; they do not sleep."""
    activations: Count
    """Most that a forward of the engine needs; its profile run determines it. Free while nothing is generated."""
    kv_cache: Count

    @property
    def resident(self) -> Count:
        """Bytes that are in use from one rollout to the next, unless the engine sleeps."""
        return self.weights + self.state + self.buffers + self.kv_cache

    @property
    def total(self) -> Count:
        """Bytes during generation."""
        return self.resident + self.activations


def vllm_memory(spec: TrialKeys, architecture: DecoderShape) -> VllmMemory:
    """Return the memory of vLLM by its own accounting, with which trl starts it.

    vLLM loads the weights, runs a forward of `ENGINE_TOKENS` tokens (the profile run), and gives its KV cache whole
    blocks of what is left of the part of the card that it may use. So the sum is known up to one block, without
    knowing the parts. CUDA graphs are in the sum since vLLM 0.21, and are counted as KV cache here.

    Source: `determine_available_memory` in vLLM's `v1/worker/gpu_worker.py`, and `memory_profiling` in its
    `utils/mem_utils.py`.
    """
    requested, there, gpus = requested_bytes(spec), is_colocated(spec), spec.vllm_tensor_parallel_size
    weights = where(there, ENGINE_ELEMENT_BYTES * sharded_parameters(architecture, gpus=gpus), 0)
    state = where(there, engine_sequences(spec) * token_count_bytes(architecture), 0)
    buffers = where(there, buffer_bytes(spec, architecture), 0)
    activations = where(there, profile_run_bytes(spec, architecture), 0)
    left = larger(requested - weights - state - buffers - activations, 0)
    block = kv_block_bytes(architecture, gpus=gpus)
    return VllmMemory(
        weights=weights, state=state, buffers=buffers, activations=activations, kv_cache=left // block * block
    )


def sharded_parameters(architecture: DecoderShape, *, gpus: Count) -> Count:
    """Return the parameters of the engine on one GPU of those that share it.

    Each has a part of every matrix and the whole of every norm. A head of keys and values is not divided: with more
    GPUs than such heads, several GPUs have the same. Of latent attention each has the whole of what makes the vectors.

    By hand, qwen2.5-0.5b on 2 GPUs: the norms have 49 x 896 = 43,904 elements, so (494,032,768 - 43,904) / 2 + 43,904
    = 247,038,336. Llama 3 8B: 7.48 GiB in bfloat16, as vLLM printed (docs/evidence.md).

    Source: `ColumnParallelLinear`, `RowParallelLinear` and `VocabParallelEmbedding` in vLLM's `model_executor/layers`,
    `Qwen2Attention` in its `model_executor/models/qwen2.py`, and `DeepseekV2MLAAttention` in `deepseek_v2.py`.
    """
    heads = architecture.num_key_value_heads
    layers, hidden = architecture.num_hidden_layers, architecture.hidden_size
    norms = norm_count(architecture)
    if architecture.latent is not None:
        vectors = {"q_a_proj", "kv_a_proj_with_mqa"}
        whole = layers * sum(part.weights for part in projections(architecture) if part.name in vectors)
        return norms + whole + whole_units(parameter_count(architecture) - norms - whole, gpus)
    of_head = 2 * layers * architecture.head_dim * (hidden + where(architecture.qkv_bias, 1, 0))
    divided = parameter_count(architecture) - norms - heads * of_head
    return norms + whole_units(divided, gpus) + _heads_of_keys(architecture, gpus) * of_head


def _heads_of_keys(architecture: DecoderShape, gpus: Count) -> Count:
    """Return the heads of keys and values on one GPU (`ModelConfig.get_num_kv_heads` in vLLM)."""
    return larger(architecture.num_key_value_heads // gpus, 1)


def profile_run_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the bytes of the activations of vLLM's profile run: in an MLP, or at the logits.

    In an MLP there are the outputs of gate and up, their product, and four hidden states. At the logits there are one
    row of them per sequence, and the hidden states. What torch.compile takes beyond this is left out.

    By hand, qwen2.5-0.5b, 16 sequences: 4,096 x (3 x 4,864 + 4 x 896) x 2 B = 148,897,792 B, which is 2,048 B less than
    vLLM 0.31 has in its profile run without torch.compile, on an emulated card.

    Source: `GPUModelRunner.profile_run` in vLLM's `v1/worker/gpu/model_runner.py`.
    """
    hidden = ENGINE_TOKENS * architecture.hidden_size
    mlp = 3 * ENGINE_TOKENS * whole_units(architecture.intermediate_size, spec.vllm_tensor_parallel_size) + 4 * hidden
    logits = engine_sequences(spec) * architecture.vocab_size + hidden
    return ENGINE_ELEMENT_BYTES * larger(mlp, logits)


def token_count_bytes(architecture: DecoderShape) -> Count:
    """Return the bytes of the counts of one sequence: an integer per token of the vocabulary, and a bit.

    By hand, qwen2.5-0.5b: 4 x (151,936 + 4,748) B = 626,736 B.

    Source: `PenaltiesState` in vLLM's `v1/worker/gpu/sample/penalties.py`.
    """
    return _INT32_BYTES_VLLM_MEMORY * (architecture.vocab_size + whole_units(architecture.vocab_size, _BITS))


def kv_block_bytes(architecture: DecoderShape, *, gpus: Count) -> Count:
    """Return the bytes of one block of the paged KV cache on one GPU: `BLOCK_TOKENS` tokens in every layer.

    By hand, qwen2.5-0.5b: 2 x 24 layers x 2 heads x 64 x 16 tokens x 2 B = 196,608 B, and half of it on each of 2 GPUs.
    DeepSeek-V3, of which each GPU has what all heads are made of: 61 x (512 + 64) x 16 x 2 B = 1,124,352 B.
    """
    if architecture.latent is not None:
        width = sum(cached_widths(architecture))
        return architecture.num_hidden_layers * width * BLOCK_TOKENS * ENGINE_ELEMENT_BYTES
    of_head = 2 * architecture.num_hidden_layers * architecture.head_dim * BLOCK_TOKENS * ENGINE_ELEMENT_BYTES
    return _heads_of_keys(architecture, gpus) * of_head


def needed_cache_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the smallest KV cache with which vLLM starts: that of one sequence of the accepted length.

    By hand, qwen2.5-0.5b, 32,768 tokens: 2,048 blocks x 196,608 B = 402,653,184 B.

    Source: `_check_enough_kv_cache_memory` in vLLM's `v1/core/kv_cache_utils.py`.
    """
    block = kv_block_bytes(architecture, gpus=spec.vllm_tensor_parallel_size)
    return whole_units(accepted_tokens(spec, architecture), BLOCK_TOKENS) * block


def lacks_cache(spec: TrialKeys, architecture: DecoderShape) -> Flag:
    """Return whether vLLM would refuse to start, because its part of the card leaves too small a KV cache."""
    missing: Flag = vllm_memory(spec, architecture).kv_cache < needed_cache_bytes(spec, architecture)
    return both(is_colocated(spec), missing)


def engine(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return vLLM on the GPU that trains, while it generates; 0 if it runs elsewhere."""
    if not spec.use_vllm:
        return NOTHING
    return Term(vllm_memory(spec, architecture).total, lambda: _part_text(spec))


def awake_engine(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return vLLM while it generates nothing and does not sleep; 0 if it runs elsewhere."""
    if not spec.use_vllm:
        return NOTHING
    return Term(vllm_memory(spec, architecture).resident, lambda: f"{_part_text(spec)} less activations")


def resident_engine(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return vLLM while the model trains: its buffers only in sleep mode, else everything resident.

    trl puts the engine to sleep at level 2 after each rollout (`VLLMGeneration.generate` in trl 1.16). That frees the
    KV cache and all that vLLM made while it loaded the model, the state of its sampler included.
    """
    if not spec.use_vllm:
        return NOTHING
    asleep = Term(vllm_memory(spec, architecture).buffers, lambda: "asleep: buffers of its graphs and sampler")
    return chosen(engine_sleeps(spec), asleep, awake_engine(spec, architecture))


PACKED_BYTES, PACKED_AT_ONCE = 1 << 30, 2
"""Weights that pass this size are sent together, and so many packed tensors exist at once.

Source: `DEFAULT_PACKED_BUFFER_SIZE_BYTES` and `DEFAULT_PACKED_NUM_BUFFERS` in vLLM's
`distributed/weight_transfer/packed_tensor.py`.
"""


def sent_weights(spec: TrialKeys, architecture: DecoderShape) -> Term:
    """Return the packed copies of weights on their way to an engine on another GPU, at most; 0 without one.

    vLLM copies the weights in their order into one tensor until they pass 1 GiB, while the tensor before it may still
    be read. Such a tensor ends with a matrix of a layer or with the LM head. Which weights are in which is not
    followed, so that it is at most a GiB and a matrix less. trl before 1.11 sends each weight as it is, and is
    counted alike.

    By hand, qwen2.5-0.5b in float32: 494,032,768 x 4 B, which are less than 2 GiB. qwen2.5-7b in bfloat16: 2 GiB, a
    matrix of 3,584 x 18,944 x 2 B and the head of 152,064 x 3,584 x 2 B: 3,373,268,992 B.

    Source: `packed_nccl_broadcast_producer` in vLLM 0.24, and `VLLMClient.update_named_params` in trl 1.16.
    """
    element = element_bytes(spec).weight
    embedding = architecture.vocab_size * architecture.hidden_size * element
    widest = element * larger(*(part.weights for kind in layer_kinds(architecture) for part in projections(kind)))
    first = larger(PACKED_BYTES + widest, embedding)
    last = PACKED_BYTES + where(architecture.tie_word_embeddings, widest, embedding)
    at_once = larger(first + PACKED_BYTES + widest, PACKED_BYTES + widest + last)
    size = smaller(parameter_count(architecture) * element, at_once)
    return Term(where(is_served(spec), size, 0), lambda: f"{PACKED_AT_ONCE} parts of sent weights")


_MOST_STREAMS = 32
"""Streams of a card that torch hands out in turn (`kStreamsPerPool` in `c10/cuda/CUDAStream.cpp`)."""


def cached_copies_bytes(spec: TrialKeys, architecture: DecoderShape) -> Count:
    """Return the cached copies of weights that a trainer has sent to an engine on another GPU.

    Each packed tensor is made on a stream of its own, and each synchronisation takes two new streams
    (`packed_nccl_broadcast_producer` in vLLM 0.24). A stream's cached segments serve no other stream, so the
    copies add up until torch hands out the first streams again, or a card is full. By hand, qwen2.5-0.5b in float32,
    6 steps: 6 x 494,032,768 x 4 B; emulated 6 x 1.842 GiB.
    """
    generations = whole_units(spec.steps * spec.gradient_accumulation_steps, spec.steps_per_generation)
    times = smaller(smaller(spec.steps, generations), _MOST_STREAMS // PACKED_AT_ONCE)
    return times * sent_weights(spec, architecture).size


def is_served(spec: TrialKeys) -> Flag:
    """Return whether vLLM runs on GPUs of its own, behind a server."""
    return both(spec.use_vllm, holds(spec.vllm_mode, lambda mode: mode is VllmMode.SERVER))


def _part_text(spec: TrialKeys) -> str:
    return f"{spec.vllm_gpu_memory_utilization} of {spec.gpu}"


def is_colocated(spec: TrialKeys) -> Flag:
    """Return whether vLLM runs in the process that trains."""
    return holds(spec.vllm_mode, lambda mode: mode is VllmMode.COLOCATE)


def engine_sleeps(spec: TrialKeys) -> Flag:
    """Return whether vLLM gives its memory back while the model trains."""
    sleep = spec.vllm_enable_sleep_mode
    return both(is_colocated(spec), False if sleep is None else sleep)


def _card_bytes(gpu: str | None) -> int:
    return gpu_named(gpu or DEFAULT_CARD).memory_bytes
