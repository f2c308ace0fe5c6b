"""The choice of the attention kernel, and its allocations, block by block."""

import pytest
import torch
from emulated.compared import CARDS, recorded, simulated
from emulated.scenarios import ATTENTION

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.simulation.cuda.fused_attention.attention import (
    Kernel,
    Mask,
    Request,
    choose_kernel,
    laid_out_like,
    logsumexp_shape,
)
from profiler.simulation.session import Simulation

BF16 = torch.bfloat16
HOPPER, AMPERE, TURING, ADA, BLACKWELL = (9, 0), (8, 0), (7, 5), (8, 9), (10, 0)


MASK = Mask(shape=torch.Size((4, 1, 100, 100)))


def request(*, width: int = 64, heads: int = 16, tokens: int = 100, **changes: object) -> Request:
    """Causal attention of 16 query heads; `heads` are those of key and value, `tokens` those of the query."""
    values: dict[str, object] = {
        "query": torch.Size((4, 16, tokens, width)),
        "key": torch.Size((4, heads, 100, width)),
        "value": torch.Size((4, heads, 100, width)),
        "dtype": BF16,
        "is_causal": True,
        "enable_gqa": heads != 16,
        "compute_capability": HOPPER,
    }
    return Request(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, Kernel.CUDNN),
        ({"mask": MASK, "is_causal": False}, Kernel.CUDNN),
        ({"compute_capability": AMPERE}, Kernel.FLASH),
        ({"compute_capability": ADA, "heads": 2}, Kernel.FLASH),
        ({"compute_capability": AMPERE, "mask": MASK, "is_causal": False}, Kernel.EFFICIENT),
        # The memory-efficient kernel supports no grouped-query heads, so math runs.
        ({"compute_capability": AMPERE, "mask": MASK, "heads": 2}, Kernel.MATH),
        ({"dtype": torch.float32}, Kernel.EFFICIENT),
        ({"compute_capability": TURING}, Kernel.MATH),
        ({"compute_capability": TURING, "dtype": torch.float16}, Kernel.EFFICIENT),
        ({"width": 256}, Kernel.CUDNN),
        ({"width": 256, "compute_capability": BLACKWELL}, Kernel.FLASH),
        ({"width": 264}, Kernel.EFFICIENT),
        ({"width": 20}, Kernel.FLASH),
        ({"tokens": 1, "is_causal": False}, Kernel.CUDNN),
        # DeepSeek's widths: values narrower than keys.
        ({"width": 192, "value": torch.Size((4, 16, 100, 128)), "compute_capability": BLACKWELL}, Kernel.CUDNN),
        ({"width": 192, "value": torch.Size((4, 16, 100, 128)), "compute_capability": AMPERE}, Kernel.EFFICIENT),
        # cuDNN's dropout is a multiple of 1/16.
        ({"dropout": 0.1}, Kernel.FLASH),
        ({"dropout": 0.125}, Kernel.CUDNN),
        # Cards with less shared memory have no backward of flash for these widths.
        ({"compute_capability": ADA, "width": 208, "wants_gradient": True}, Kernel.EFFICIENT),
        ({"compute_capability": ADA, "width": 208}, Kernel.FLASH),
        ({"compute_capability": ADA, "width": 256, "wants_gradient": True}, Kernel.FLASH),
        ({"compute_capability": ADA, "width": 256, "wants_gradient": True, "dropout": 0.1}, Kernel.EFFICIENT),
        ({"compute_capability": AMPERE, "width": 208, "wants_gradient": True}, Kernel.FLASH),
        # Alignment of the memory-efficient kernel: 16 bytes with tensor cores, none for float32 on an old card.
        ({"dtype": torch.float32, "width": 20}, Kernel.EFFICIENT),
        ({"dtype": torch.float32, "width": 18}, Kernel.MATH),
        ({"dtype": torch.float32, "width": 18, "compute_capability": TURING}, Kernel.EFFICIENT),
    ],
)
def test_the_kernel_by_mask_type_width_heads_and_card(changes: dict[str, object], kernel: Kernel) -> None:
    assert choose_kernel(request(**changes)) is kernel


def test_log_sum_exp_of_the_memory_efficient_kernel_is_padded() -> None:
    assert logsumexp_shape(Kernel.EFFICIENT, torch.Size((4, 16, 100, 64))) == (4, 16, 128)
    assert logsumexp_shape(Kernel.CUDNN, torch.Size((4, 16, 100, 64))) == (4, 16, 100)


def made_by_attention(
    gpu: str, *, kv_heads: int = 4, masked: bool = False, head_dim: int = 64
) -> tuple[list[int], list[int]]:
    """Sizes of the blocks of forward and backward for 2 rows, 4 heads and 100 tokens in bfloat16."""
    simulation = Simulation(KNOWN_GPUS[gpu])
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        shapes = [(2, 100, heads, head_dim) for heads in (4, kv_heads, kv_heads)]
        # As a model makes them: by tokens in memory.
        states = [torch.empty(shape, dtype=BF16, device="meta").transpose(1, 2).requires_grad_() for shape in shapes]
        mask = torch.ones((2, 1, 100, 100), dtype=torch.bool, device="meta") if masked else None
        gradient = torch.empty(shapes[0], dtype=BF16, device="meta").transpose(1, 2)
        start = len(simulation.recorder.finished().sizes_bytes)
        output = torch.nn.functional.scaled_dot_product_attention(
            *states, attn_mask=mask, is_causal=not masked, enable_gqa=kv_heads != 4
        )
        middle = len(simulation.recorder.finished().sizes_bytes)
        output.backward(gradient)
        trace = simulation.recorder.finished()
    assert Category.INPUTS not in trace.categories[start if not masked else middle :]
    return list(trace.sizes_bytes[start:middle]), list(trace.sizes_bytes[middle:])


QUERY, HALF = 2 * 4 * 100 * 64 * 2, 2 * 2 * 100 * 64 * 2  # bytes of the query, and of 2 key heads
LOGSUMEXP = 2 * 4 * 100 * 4
SCALARS = [2, 2]  # what stands for "masked" and for "not masked", bfloat16
ADDITIVE = 2 * 100 * 100 * 2  # a mask in bfloat16


def test_cudnn_makes_seeds_first_and_one_workspace_in_backward() -> None:
    forward, backward = made_by_attention("h100-80gb", kv_heads=2)
    assert forward == [8, 8, QUERY, LOGSUMEXP]
    assert backward == [QUERY, HALF, HALF, 2 * 4 * 100 * 65 * 4]


def test_flash_allocates_gradients_of_every_query_head_in_backward() -> None:
    forward, backward = made_by_attention("a100-40gb", kv_heads=2)
    assert forward == [QUERY, LOGSUMEXP, 16, 8]
    assert backward == [QUERY, HALF, HALF, 2 * 4 * 128 * 4, 2 * 128 * 4 * 64 * 4, QUERY, QUERY]


def test_each_call_makes_its_own_additive_mask() -> None:
    forward, _ = made_by_attention("h100-80gb", masked=True)
    assert forward == [*SCALARS, ADDITIVE, 8, 8, QUERY, LOGSUMEXP]
    forward, backward = made_by_attention("a100-40gb", masked=True)
    # Rows of 100 are not aligned to 8: another mask with rows of 104. The log-sum-exp has 128 for 100.
    assert forward == [*SCALARS, ADDITIVE, ADDITIVE // 100 * 104, QUERY, 2 * 4 * 128 * 4]
    # Two tiles of 64 by 64 and 16 bytes, for each of 8 heads.
    assert backward == [QUERY, QUERY, QUERY, LOGSUMEXP, 8 * 2 * (64 * 64 * 4 + 16)]


def test_the_memory_efficient_kernel_accumulates_wide_heads_in_float32() -> None:
    forward, _ = made_by_attention("a100-40gb", masked=True, head_dim=256)
    assert forward[-1] == 2 * 4 * 100 * 256 * 4


def test_flash_pads_the_width_of_heads_to_8() -> None:
    forward, _ = made_by_attention("a100-40gb", head_dim=20)
    padded = 2 * 4 * 100 * 24 * 2
    assert forward == [padded, padded, padded, padded, LOGSUMEXP, 16, 8]


def test_without_gradient_no_log_sum_exp_is_kept() -> None:
    simulation = Simulation(KNOWN_GPUS["h100-80gb"])
    with simulation.running(), torch.no_grad():
        simulation.recorder.enter(Phase.SCORE)
        states = torch.empty((2, 4, 100, 64), dtype=BF16, device="meta")
        torch.nn.functional.scaled_dot_product_attention(states, states, states, is_causal=True)
        assert simulation.recorder.finished().sizes_bytes == (QUERY, 8, 8, QUERY)


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_allocates_what_torch_allocates(gpu: str, name: str) -> None:
    """Forward and backward, with the order in which saved tensors are freed."""
    assert simulated(gpu, name, ATTENTION[name]) == recorded(gpu, name)


@pytest.mark.parametrize(
    ("gpu", "masked", "dtype"),
    [
        ("h100-80gb", False, BF16),  # cuDNN
        ("a100-40gb", False, BF16),  # flash
        ("a100-40gb", True, BF16),  # memory-efficient
        ("a100-40gb", False, torch.float32),
    ],
)
def test_the_output_stays_for_backward(gpu: str, masked: bool, dtype: torch.dtype) -> None:
    """Even if its user frees it: the kernel's node reads it again."""
    simulation = Simulation(KNOWN_GPUS[gpu])
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        states = torch.empty((2, 4, 100, 64), dtype=dtype, device="meta", requires_grad=True)
        mask = torch.ones((2, 1, 100, 100), dtype=torch.bool, device="meta") if masked else None
        output = torch.nn.functional.scaled_dot_product_attention(states, states, states, attn_mask=mask)
        block = simulation.recorder.blocks_in_use()[output.untyped_storage()._cdata]
        loss = output.sum()  # whose gradient needs the shape only
        del output
        assert block in simulation.recorder.blocks_in_use().values()
        loss.backward()
        assert block not in simulation.recorder.blocks_in_use().values()


def test_float32_makes_the_row_sums_before_the_kernel_by_hand() -> None:
    found = simulated("a100-80gb", "attention, float32", ATTENTION["attention, float32"])
    products, row_sums = 2 * 4 * 100 * 64 * 4, 2 * 4 * 100 * 4
    workspace = 8 * 2 * (64 * 64 * 4 + 16)
    start = found.index(workspace) - 5
    assert found[start : start + 8] == [
        *(products, row_sums, row_sums, -row_sums, -products),
        *(workspace, -row_sums, -workspace),
    ]


def test_a_narrower_output_of_cudnn_is_laid_out_like_queries() -> None:
    """`torch._fused_sdp_choice` says cuDNN for heads of 96 and 64; its output has the strides of torch's CUDA build."""
    query = torch.empty((4, 16, 512, 96), device="meta")
    assert laid_out_like(query, 64).stride() == (524_288, 32_768, 64, 1)
    by_tokens = torch.empty((4, 512, 16, 96), device="meta").transpose(1, 2)
    assert laid_out_like(by_tokens, 64).stride() == (524_288, 64, 1_024, 1)


def test_flash_copies_what_is_not_laid_out_by_tokens() -> None:
    """Widths that are padded come out by heads; so do their gradients."""
    name, padded = "attention, width 20", 2 * 4 * 100 * 24 * 2
    forward = [padded] * 4  # query, key, value, output
    backward = [padded] * 6  # gradient, its copy, the output's copy, and three gradients
    assert [size for size in simulated("a100-80gb", name, ATTENTION[name]) if size == padded] == forward + backward
