"""Buffers of vLLM that its sleep mode does not return: it made them after it had loaded the model."""

from profiler.analytical.formulas.sizes.quantities import Count, looked_up, smaller, where, whole_units
from profiler.analytical.formulas.sizes.trial_keys import DecoderShape, TrialKeys
from profiler.domain.cards.cublas import cublas_workspace_bytes
from profiler.domain.cards.gpu_names import gpu_named

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
