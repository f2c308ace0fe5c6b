"""Scratch of FlashAttention's forward for split keys, compared with torch's CUDA build (emulated/README.md)."""

import gzip
import json
from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from profiler.domain.cards.gpu import KNOWN_GPUS, Chip
from profiler.simulation.cuda.fused_attention.attention_scratch import flash_forward, more_keys_alike

TABLE = Path(__file__).parent / "emulated" / "flash_splits.json.gz"
CARDS = (
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA B200",
    "NVIDIA GeForce RTX 3090",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5090",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA L40S",
)
A100 = KNOWN_GPUS["a100-80gb"].chip


@cache
def recorded() -> Mapping[str, Any]:
    return json.loads(gzip.decompress(TABLE.read_bytes()))


def chip_of(card: str) -> Chip:
    major, minor, multiprocessors = recorded()["chips"][card]
    return Chip(compute_capability=(major, minor), multiprocessors=multiprocessors)


def blocks(
    rows: int, heads: int, queries: int, keys: int, width: int, *, key_heads: int | None = None, dropout: float = 0.0
) -> tuple[int, ...]:
    key = torch.Size((rows, key_heads or heads, keys, width))
    return flash_forward(torch.Size((rows, heads, queries, width)), key, A100, dropout)


@pytest.mark.parametrize("card", CARDS)
def test_the_blocks_are_those_of_torch(card: str) -> None:
    chip, differing = chip_of(card), []
    for axes, answers in zip(recorded()["axes"], recorded()["answers"][card], strict=True):
        for point, taken in zip(product(*axes.values()), answers, strict=True):
            rows, (heads, key_heads), queries, keys, width, dropout = point
            query, key = torch.Size((rows, heads, queries, width)), torch.Size((rows, key_heads, keys, width))
            # With dropout torch makes seed and offset a second time, which are 16 bytes.
            expected = [] if dropout else taken
            assert not dropout or taken == [16]
            if list(flash_forward(query, key, chip, dropout)) != expected:
                differing.append((point, taken))
    assert not differing


def test_the_table_has_thousands_of_requests_that_are_split_and_not() -> None:
    assert sorted(recorded()["answers"]) == list(CARDS)
    for first, _ in recorded()["answers"].values():
        assert len(first) == 3840
        assert sum(map(bool, first)) > 1000


def test_by_hand() -> None:
    """4 x 16 heads, 1 token, 300 keys, width 128, on the 108 multiprocessors of an A100.

    64 blocks of queries, less than 0.8 x 216 places; 300 keys are 3 blocks of 128. Efficiency by parts: 64 / 216 =
    0.296 in one, 128 / 216 = 0.593 in two, 192 / 216 = 0.889 in three, the best; two are less than 0.85 of it. So three
    parts: 3 x 64 float32 of logsumexp, and of outputs 128 times as much.
    """
    assert blocks(4, 16, 1, 300, 128) == (3 * 64 * 4, 3 * 64 * 128 * 4) == (768, 98_304)


def test_a_split_that_keeps_the_longest_part_is_skipped() -> None:
    # 7 blocks of 64 keys. In 4 parts the longest has 2 blocks, as in 5 and 6; 16 * 7 = 112 of 216 places: 0.519.
    # 0.85 of it is 0.441, which 6 parts would reach (96 / 216 = 0.444), but they are not a separate split.
    assert blocks(1, 16, 1, 448, 256) == (7 * 16 * 4, 7 * 16 * 256 * 4)


def test_grouped_heads_of_one_token_are_treated_as_tokens() -> None:
    # 1 x 2 heads with 7 tokens each, and not 14 heads with one: 2 blocks, and 20 key blocks of 64 in 20 parts.
    assert blocks(1, 14, 1, 1280, 256, key_heads=2) == (20 * 14 * 4, 20 * 14 * 256 * 4)
    # 54 pairs of rows and key heads on 216 places: 4 parts fill them. As 378 heads they would not be split.
    assert blocks(27, 14, 1, 1280, 256, key_heads=2) == (4 * 27 * 14 * 4, 4 * 27 * 14 * 256 * 4)
    assert blocks(27, 14, 2, 1280, 256, key_heads=2) == ()


def test_widths_are_rounded_to_32_up_to_128_and_to_64_beyond() -> None:
    for width, rounded in ((8, 32), (40, 64), (128, 128), (136, 192), (160, 192), (200, 256)):
        logsumexp, outputs = blocks(1, 16, 1, 1000, width)
        assert outputs == rounded * logsumexp


def test_dropout_splits_nothing() -> None:
    assert blocks(4, 16, 1, 300, 128, dropout=0.1) == ()


@given(some.integers(1, 64), some.integers(1, 64), some.integers(1, 300), some.integers(1, 9000))
def test_parts_are_whole_and_no_more_than_key_blocks(rows: int, heads: int, queries: int, keys: int) -> None:
    found = blocks(rows, heads, queries, keys, 128)
    query_blocks = rows * heads * -(-queries // 64)
    if query_blocks >= 0.8 * 2 * A100.multiprocessors or keys <= 128:
        assert found == ()
    if found:
        parts, left = divmod(found[0], rows * heads * queries * 4)
        assert left == 0
        assert 2 <= parts <= min(128, -(-keys // 128))
        assert found[1] == 128 * found[0]


@given(
    rows=some.integers(1, 8),
    heads=some.sampled_from([1, 2, 14]),
    head_dim=some.sampled_from([64, 128, 256]),
    keys=some.integers(1, 3000),
)
def test_nothing_changes_before_the_announced_length(rows: int, heads: int, head_dim: int, keys: int) -> None:
    query = torch.Size((rows, heads, 1, head_dim))

    def taken(length: int) -> tuple[int, ...]:
        return flash_forward(query, torch.Size((rows, heads, length, head_dim)), A100)

    more = more_keys_alike(query, torch.Size((rows, heads, keys, head_dim)), chip=A100)
    assert more >= 0
    assert {taken(length) for length in range(keys, keys + more + 1, max(1, more // 40))} == {taken(keys)}
    assert taken(keys + more) == taken(keys)


def test_one_row_is_split_from_257_keys_on() -> None:
    query, key = torch.Size((1, 2, 1, 64)), torch.Size((1, 2, 200, 64))
    assert flash_forward(query, key, A100) == ()
    assert more_keys_alike(query, key, chip=A100) == 56
    assert flash_forward(query, torch.Size((1, 2, 257, 64)), A100) != ()
