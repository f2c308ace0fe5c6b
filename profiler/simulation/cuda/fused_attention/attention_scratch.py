"""Scratch of the fused attention kernels, in bytes, with FlashAttention-2's splits of the keys.

Shapes are [rows, heads, tokens, head_dim], as `aten::scaled_dot_product_attention` has them. If rows and heads do not
fill the card (few completions, a decoding step), several blocks share the keys of one row, and each of them writes a
float32 output and logsumexp of its own. Source: `set_params_splitkv` and `num_splits_heuristic` in
`aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`; the same in flash-attn's own `flash_api.cpp`.
"""

from dataclasses import dataclass
from math import ceil

import torch

from profiler.domain.cards.gpu import Chip

_FLOAT32_BYTES, _HALF = 4, (torch.float16, torch.bfloat16)


def flash_backward(query: torch.Size, key: torch.Size, element_bytes: int) -> tuple[int, ...]:
    """Return the blocks of FlashAttention-2's backward, in the order of allocation.

    The row sums of gradient times output and an accumulator of the query's gradient, both float32, with tokens rounded
    up to 128 and head_dim to 32 (to 64 above 128); with grouped-query heads also the gradients of keys and values for
    every query head.

    Source: `mha_bwd` in `aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`, not deterministic.
    """
    rows, heads, tokens, _ = query
    rounded_tokens = _rounded(tokens, 128)
    return _flash_blocks(query, key, rows * heads * rounded_tokens, element_bytes)


def flash_packed_backward(query: torch.Size, key: torch.Size, sequences: int, element_bytes: int) -> tuple[int, ...]:
    """Return the same for `sequences` packed into one row: 128 more rows per sequence instead of rounding.

    Source: `mha_varlen_bwd`, same file.
    """
    _, heads, tokens, _ = query
    return _flash_blocks(query, key, heads * (tokens + 128 * sequences), element_bytes)


def _flash_blocks(query: torch.Size, key: torch.Size, row_sums: int, element_bytes: int) -> tuple[int, ...]:
    heads, head_dim = query[1], query[3]
    accumulator = row_sums * _rounded(head_dim, 32 if head_dim <= 128 else 64)
    blocks = (row_sums * _FLOAT32_BYTES, accumulator * _FLOAT32_BYTES)
    if key[1] == heads:
        return blocks
    expanded = key[0] * key[2] * heads * head_dim * element_bytes
    return (*blocks, expanded, expanded)


def cudnn_backward(query: torch.Size) -> tuple[int, ...]:
    """Return cuDNN's workspace in backward: a float32 accumulator of the query's gradient and a float32 per row.

    Source: `CompositeSDPABackwardNode::get_fe_workspace_size_node` in `scaled_dot_product_flash_attention.h` of
    cudnn-frontend 1.10 to 1.23 (`dQ_accum_size` and `softmax_sum_size`; the gradients of grouped keys and values are
    virtual there). ASSUMED: cuDNN's own part, which is closed source, is negligible. Its forward needs none.
    """
    rows, heads, tokens, head_dim = query
    return (rows * heads * tokens * (head_dim + 1) * _FLOAT32_BYTES,)


@dataclass(frozen=True, kw_only=True)
class _CutlassKernel:
    """One kernel of the memory-efficient attention's backward."""

    queries: int
    """Queries of one tile (kBlockSizeI)."""
    keys: int
    """Keys of one tile (kBlockSizeJ)."""
    widest: int
    """Largest head_dim (kMaxK)."""


def _cutlass_kernel(head_dim: int, dtype: torch.dtype, compute_capability: tuple[int, int]) -> _CutlassKernel:
    """Return the first kernel for `head_dim` that fits into the card's shared memory.

    Source: `dispatch_cutlassB_*` in torch's `mem_eff_attention/kernels/cutlassB.h`. ASSUMED: the kernel with tiles of
    128 by 128 needs more than the 99 KiB of shared memory that compute capability 8.6, 8.9 and 12 give a block, which
    is why the list has one of 128 by 64 for 8.6 and 8.9; every other kernel fits wherever it is listed.
    """
    half, modern = dtype in _HALF, compute_capability >= (8, 0)
    small_memory = compute_capability in ((8, 6), (8, 9)) or compute_capability[0] == 12
    if head_dim <= 64:
        return _CutlassKernel(queries=64, keys=64, widest=64)
    if half and head_dim <= 96 and compute_capability in ((8, 6), (8, 9)):
        return _CutlassKernel(queries=128, keys=64, widest=96)
    if half and modern and head_dim <= 128:
        size = 64 if small_memory else 128
        return _CutlassKernel(queries=size, keys=size, widest=128)
    queries = 128 if half or modern else 64
    return _CutlassKernel(queries=queries, keys=64, widest=128 if head_dim <= 128 else 1 << 16)


def efficient_backward(
    query: torch.Size, key: torch.Size, dtype: torch.dtype, compute_capability: tuple[int, int]
) -> tuple[int, ...]:
    """Return the blocks of the memory-efficient attention's backward: the row sums, and its kernel's workspace.

    Per head: float32 tiles that cover the query's gradient, with a lock of 16 bytes each; if the gradients of keys and
    values do not stay in registers, float32 tiles for these per split of the keys.

    Source: `_efficient_attention_backward` in `aten/src/ATen/native/transformers/cuda/attention_backward.cu` (delta,
    `num_splits_key`) and `Params::workspace_size` in torch's `mem_eff_attention/kernel_backward.h`. With float32 the
    row sums are made by an operation before, whose products of [rows, tokens, heads, head_dim] are gone by then.
    """
    rows, heads, tokens, head_dim = query
    kernel = _cutlass_kernel(head_dim, dtype, compute_capability)
    tiles = -(-tokens // kernel.queries) * -(-head_dim // kernel.keys)
    words = tiles * (4 + kernel.queries * kernel.keys)
    in_registers = kernel.widest <= kernel.queries
    if dtype in _HALF and not in_registers:
        words += 2 * _key_splits(rows * heads, key[2], kernel) * kernel.keys * _rounded(head_dim, kernel.queries)
    return rows * heads * tokens * _FLOAT32_BYTES, rows * heads * _rounded(words, 4) * _FLOAT32_BYTES


def _key_splits(blocks: int, keys: int, kernel: _CutlassKernel) -> int:
    """Return `num_splits_key` of a kernel that accumulates outside of registers."""
    splits = -(-keys // kernel.keys)
    if blocks >= 256 and keys <= 2 * kernel.keys:
        splits = 1
    return max(1, min(splits, 200 // blocks))


def _rounded(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


_QUERIES_OF_A_BLOCK = 64
_MOST_SPLITS = 128
_FULL_ENOUGH = 0.8
_GOOD_ENOUGH = 0.85
_BLOCKS_LOOKED_AHEAD = 32
_BLOCKS_PER_MULTIPROCESSOR = 2
"""Blocks have 128 threads."""


@dataclass(frozen=True, kw_only=True)
class _Queries:
    """The queries as the kernel treats them: [rows, heads, tokens, head_dim]."""

    rows: int
    heads: int
    tokens: int
    head_dim: int


def flash_forward(query: torch.Size, key: torch.Size, chip: Chip, dropout: float = 0.0) -> tuple[int, ...]:
    """Return the forward's blocks in bytes: logsumexp and output of every part; none if keys are not split.

    With dropout keys are never split.
    """
    if dropout > 0:
        return ()
    seen = _as_treated(query, key)
    parts = _parts(seen, key[2], chip) * seen.rows * seen.heads * seen.tokens
    if parts == seen.rows * seen.heads * seen.tokens:
        return ()
    step = 32 if seen.head_dim <= 128 else 64
    width = -(-seen.head_dim // step) * step
    return parts * _FLOAT32_BYTES, parts * width * _FLOAT32_BYTES


def more_keys_alike(query: torch.Size, key: torch.Size, *, chip: Chip) -> int:
    """Return by how many keys `key` may grow until the forward's blocks change, as far as it looks ahead.

    A decoding step adds one key, so the blocks of this many steps are equal.
    """
    seen = _as_treated(query, key)
    parts, size = _parts(seen, key[2], chip), _keys_of_a_block(seen)
    alike = -(-key[2] // size) * size
    for _ in range(_BLOCKS_LOOKED_AHEAD):
        if _parts(seen, alike + 1, chip) != parts:
            break
        alike += size
    return alike - key[2]


def _as_treated(query: torch.Size, key: torch.Size) -> _Queries:
    """Convert a single token with grouped heads into one token per head of a group."""
    rows, heads, tokens, head_dim = query
    groups = heads // key[1]
    if tokens == 1 and groups > 1 and head_dim % 8 == 0:
        return _Queries(rows=rows, heads=int(key[1]), tokens=groups, head_dim=head_dim)
    return _Queries(rows=rows, heads=heads, tokens=tokens, head_dim=head_dim)


def _keys_of_a_block(seen: _Queries) -> int:
    return 256 if seen.head_dim <= 64 else 128 if seen.head_dim <= 128 else 64


def _parts(seen: _Queries, keys: int, chip: Chip) -> int:
    key_blocks = ceil(keys / _keys_of_a_block(seen))
    blocks = seen.rows * seen.heads * ceil(seen.tokens / _QUERIES_OF_A_BLOCK)
    at_once = chip.multiprocessors * _BLOCKS_PER_MULTIPROCESSOR
    if blocks >= _FULL_ENOUGH * at_once:
        return 1
    # A split is useless if its longest part has as many key blocks as with one part fewer.
    useful = [
        parts
        for parts in range(1, min(_MOST_SPLITS, at_once, key_blocks) + 1)
        if parts == 1 or ceil(key_blocks / parts) != ceil(key_blocks / (parts - 1))
    ]
    filled = {parts: _filled(blocks * parts / at_once) for parts in useful}
    return next((parts for parts in useful if filled[parts] >= _GOOD_ENOUGH * max(filled.values())), 1)


def _filled(waves: float) -> float:
    """Return the average share of the card in use during `waves` rounds of blocks, the last of them not full."""
    return waves / ceil(waves)
