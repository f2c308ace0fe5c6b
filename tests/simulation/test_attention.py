"""Which attention kernel runs where, and its scratch."""

import pytest
import torch

from profiler.simulation.attention import (
    Kernel,
    Request,
    choose_kernel,
    flash_backward_scratch_bytes,
    logsumexp_shape,
)

BF16 = torch.bfloat16
HOPPER, AMPERE, TURING, ADA = (9, 0), (8, 0), (7, 5), (8, 9)


def request(**changes: object) -> Request:
    values: dict[str, object] = {
        "query": torch.Size((4, 16, 100, 64)),
        "key": torch.Size((4, 16, 100, 64)),
        "dtype": BF16,
        "has_mask": False,
        "is_causal": True,
        "compute_capability": HOPPER,
    }
    return Request(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "kernel"),
    [
        ({}, Kernel.CUDNN),
        ({"has_mask": True, "is_causal": False}, Kernel.CUDNN),
        ({"compute_capability": AMPERE}, Kernel.FLASH),
        ({"compute_capability": ADA, "key": torch.Size((4, 2, 100, 64))}, Kernel.FLASH),
        ({"compute_capability": AMPERE, "has_mask": True, "is_causal": False}, Kernel.EFFICIENT),
        # The memory-efficient kernel takes no grouped-query heads; math it is.
        ({"compute_capability": AMPERE, "has_mask": True, "key": torch.Size((4, 2, 100, 64))}, Kernel.MATH),
        ({"dtype": torch.float32}, Kernel.EFFICIENT),
        ({"compute_capability": TURING}, Kernel.MATH),
        ({"compute_capability": TURING, "dtype": torch.float16}, Kernel.EFFICIENT),
        ({"query": torch.Size((4, 16, 100, 256)), "key": torch.Size((4, 16, 100, 256))}, Kernel.FLASH),
        ({"query": torch.Size((4, 16, 100, 20)), "key": torch.Size((4, 16, 100, 20))}, Kernel.FLASH),
        ({"query": torch.Size((4, 16, 1, 64)), "is_causal": False}, Kernel.CUDNN),
    ],
)
def test_the_kernel_by_mask_type_width_heads_and_card(changes: dict[str, object], kernel: Kernel) -> None:
    assert choose_kernel(request(**changes)) is kernel


def test_scratch_of_flash_backward_by_hand() -> None:
    # 2 rows, 4 heads, 100 tokens (128), 64 wide: 2*128*4*64*4 B accumulator and 2*4*128*4 B row sums.
    query = torch.Size((2, 4, 100, 64))
    assert flash_backward_scratch_bytes(query, query, 2) == 262_144 + 4_096
    # With 2 key heads also keys and values for 4 heads in bfloat16: 2 * 2*100*4*64 * 2 B.
    grouped = torch.Size((2, 2, 100, 64))
    assert flash_backward_scratch_bytes(query, grouped, 2) == 262_144 + 4_096 + 204_800


def test_log_sum_exp_of_the_memory_efficient_kernel_is_padded() -> None:
    assert logsumexp_shape(Kernel.EFFICIENT, torch.Size((4, 16, 100, 64))) == (4, 16, 128)
    assert logsumexp_shape(Kernel.CUDNN, torch.Size((4, 16, 100, 64))) == (4, 16, 100)
