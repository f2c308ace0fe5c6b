"""Scratch of attention kernels, compared with bytes computed by hand."""

import torch

from profiler.simulation.cuda.fused_attention import attention_scratch
from profiler.simulation.cuda.fused_attention.attention import efficient_forward

BF16 = torch.bfloat16
NARROW = torch.Size((2, 4, 100, 64))  # 8 heads in all
WIDE = torch.Size((2, 4, 100, 128))


def test_flash_rounds_tokens_to_128() -> None:
    assert attention_scratch.flash_backward(NARROW, NARROW, 2) == (2 * 4 * 128 * 4, 2 * 128 * 4 * 64 * 4)
    # A width of 160 is rounded to 192.
    assert attention_scratch.flash_backward(torch.Size((2, 4, 100, 160)), NARROW, 2)[1] == 2 * 128 * 4 * 192 * 4


def test_packed_flash_leaves_128_rows_after_each_sequence() -> None:
    packed = torch.Size((1, 4, 150, 64))
    rows = 4 * (150 + 2 * 128)
    assert attention_scratch.flash_packed_backward(packed, packed, 2, 2) == (rows * 4, rows * 64 * 4)


def test_cudnn_accumulates_the_query_gradient_and_row_sums_in_float32() -> None:
    assert attention_scratch.cudnn_backward(NARROW) == (2 * 4 * 100 * 64 * 4 + 2 * 4 * 100 * 4,)


def workspace(shape: torch.Size, dtype: torch.dtype = BF16, card: tuple[int, int] = (8, 0)) -> int:
    row_sums, workspace = attention_scratch.efficient_backward(shape, shape, dtype, card)
    assert row_sums == 2 * 4 * 100 * 4
    return workspace


def test_the_memory_efficient_kernel_by_width_type_and_card() -> None:
    assert workspace(NARROW) == 8 * 2 * (64 * 64 * 4 + 16)
    assert workspace(NARROW, torch.float32) == 8 * 2 * (64 * 64 * 4 + 16)
    assert workspace(WIDE) == 8 * (128 * 128 * 4 + 16)  # one tile of 128 by 128
    # 8.9: tiles of 64 by 64, two by two; keys and values for each of 2 splits of 64 keys, 128 wide.
    assert workspace(WIDE, card=(8, 9)) == 8 * (4 * (64 * 64 * 4 + 16) + 2 * 2 * 64 * 128 * 4)
    # 256 wide: one tile of 128 queries by four of 64, and the same splits.
    gemma = torch.Size((2, 4, 100, 256))
    assert workspace(gemma) == 8 * (4 * (128 * 64 * 4 + 16) + 2 * 2 * 64 * 256 * 4)
    # A width of 96 has a kernel of its own on 8.9, with tiles of 128 by 64.
    assert workspace(torch.Size((2, 4, 100, 96)), card=(8, 9)) == 8 * 2 * (128 * 64 * 4 + 16)


def test_keys_are_not_split_with_enough_heads() -> None:
    many = torch.Size((8, 32, 100, 256))  # 256 heads in all: one split, not two
    _, size = attention_scratch.efficient_backward(many, many, BF16, (8, 0))
    assert size == 256 * (4 * (128 * 64 * 4 + 16) + 2 * 64 * 256 * 4)


def test_a_float32_output_only_for_heads_wider_than_128() -> None:
    assert efficient_forward(WIDE, BF16) == ()
    assert efficient_forward(torch.Size((2, 4, 100, 256)), BF16) == (2 * 4 * 100 * 256 * 4,)
    assert efficient_forward(torch.Size((2, 4, 100, 256)), torch.float32) == ()
