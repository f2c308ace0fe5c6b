"""Kernels of Triton whose small results steer the host, computed on the CPU. A closed list, by module and name.

liger_kernel 0.8 counts how many tokens each expert gets, and the host allocates by the number of tiles that these need.
Those of vLLM are in `vllm_kernels.py`.
"""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

from profiler.emulation.inside.vllm_kernels import VLLM_EQUIVALENTS

Arguments = Mapping[str, Any]


def count_tokens(arguments: Arguments) -> None:
    """Count the tokens of each expert in each tile of tokens: a table of experts by tiles."""
    import torch

    tokens, experts = arguments["T"], arguments["E"]
    chosen = arguments["topk_indices_ptr"].reshape(tokens, arguments["K"])
    tiles = chosen.split(arguments["TOKENS_PER_TILE"])
    counts = [torch.bincount(tile.flatten(), minlength=experts)[:experts] for tile in tiles]
    arguments["partial_sum_ptr"].copy_(torch.stack(counts, dim=1))


def add_up_tokens(arguments: Arguments) -> None:
    """Turn counts into where each expert's tokens and tiles begin, and each tile's counts into those before it."""
    frequencies, size = arguments["expert_freq_ptr"], arguments["BLOCK_M_TOKEN"]
    for result, each in (
        (arguments["expert_freq_offs_ptr"], frequencies),
        (arguments["expert_tile_offset_ptr"], (frequencies + size - 1) // size),
    ):
        result[0] = 0
        result[1:] = each.cumsum(0)
    counts = arguments["partial_sum_ptr"]
    counts.copy_(counts.cumsum(1) - counts)


EQUIVALENTS: Mapping[tuple[str, str], tuple[Callable[[Arguments], None], frozenset[str], frozenset[str]]] = {
    **VLLM_EQUIVALENTS,
    ("liger_kernel.ops.fused_moe_kernels", "_moe_router_histogram_kernel"): (
        count_tokens,
        frozenset({"topk_indices_ptr"}),
        frozenset({"partial_sum_ptr"}),
    ),
    ("liger_kernel.ops.fused_moe_kernels", "_moe_router_prefix_sum_kernel"): (
        add_up_tokens,
        frozenset({"expert_freq_ptr", "partial_sum_ptr"}),
        frozenset({"expert_freq_offs_ptr", "expert_tile_offset_ptr", "partial_sum_ptr"}),
    ),
}
"""What computes a kernel, the arguments that it reads, and those that it writes."""


def on_host(tensor: Any) -> Any:  # noqa: ANN401  # torch is imported by the program
    """Return the bytes of a tensor on the emulated card as a tensor of the CPU."""
    import torch

    buffer = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    return torch.frombuffer(buffer, dtype=tensor.dtype).view(tensor.shape)
