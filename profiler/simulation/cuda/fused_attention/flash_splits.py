"""Number of parts into which FlashAttention-2 splits the keys, and the scratch to combine them.

If rows and heads do not fill the card (few completions, a decoding step), several blocks share the keys of one row.
Each writes a float32 output and logsumexp of its own. Source: `set_params_splitkv` and `num_splits_heuristic` in
`aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp`; the same in flash-attn's own `flash_api.cpp`.
"""

from dataclasses import dataclass
from math import ceil

import torch

from profiler.domain.cards.gpu import Chip

_FLOAT32_BYTES = 4
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
