"""Which attention kernel CUDA would run, and what it allocates.

Sources: `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp` (`check_prefer_cudnn_attention`, `can_use_*_attention`),
`aten/src/ATen/native/transformers/attention.cpp` (masks), and of FlashAttention-2 `csrc/flash_attn/flash_api.cpp`
(`mha_bwd`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from profiler.domain.memory import Category
from profiler.simulation.recorder import Recorder

_HALF = (torch.float16, torch.bfloat16)
_FLOAT32_BYTES = 4


class Kernel(StrEnum):
    """torch's backends of `scaled_dot_product_attention`."""

    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    MATH = "math"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What decides the kernel. Shapes are [rows, heads, tokens, head_dim]."""

    query: torch.Size
    key: torch.Size
    dtype: torch.dtype
    has_mask: bool
    is_causal: bool
    compute_capability: tuple[int, int]


def choose_kernel(request: Request) -> Kernel:
    """The first of cuDNN, flash, memory-efficient and math that torch would accept on the card.

    cuDNN comes first on compute capability 9 and 10 (torch with cuDNN 9.15 or later, as torch's own wheels for CUDA 13
    bring it) and takes masks; flash takes none; the memory-efficient kernel takes no grouped-query heads.
    """
    for kernel, accepts in (
        (Kernel.CUDNN, _cudnn_accepts),
        (Kernel.FLASH, _flash_accepts),
        (Kernel.EFFICIENT, _efficient_accepts),
    ):
        if accepts(request):
            return kernel
    return Kernel.MATH


def _cudnn_accepts(request: Request) -> bool:
    return (
        request.compute_capability[0] in (9, 10)
        and request.dtype in _HALF
        and request.query[-1] <= 128
        and request.query[-1] % 8 == 0
        and request.key[2] != 1
    )


def _flash_accepts(request: Request) -> bool:
    return (
        request.compute_capability >= (8, 0)
        and request.dtype in _HALF
        and not request.has_mask
        and request.query[-1] <= 256
        and (not request.is_causal or request.query[2] == request.key[2])
    )


def _efficient_accepts(request: Request) -> bool:
    bfloat16_on_old_card = request.dtype is torch.bfloat16 and request.compute_capability < (8, 0)
    return request.query[1] == request.key[1] and request.query[-1] % 8 == 0 and not bfloat16_on_old_card


def flash_backward_scratch_bytes(query: torch.Size, key: torch.Size, element_bytes: int) -> int:
    """Scratch of FlashAttention-2's backward for [rows, heads, tokens, head_dim].

    A float32 accumulator of the query's gradient and the row sums of gradient times output, tokens rounded up to 128
    and head_dim to 32; with grouped-query heads also the keys' and values' gradients for every query head.
    """
    rows, heads, tokens, head_dim = query
    rounded_tokens, rounded_dim = -(-tokens // 128) * 128, -(-head_dim // 32) * 32
    accumulator = rows * rounded_tokens * heads * rounded_dim * _FLOAT32_BYTES
    row_sums = rows * heads * rounded_tokens * _FLOAT32_BYTES
    expanded = 2 * rows * key[2] * heads * head_dim * element_bytes if key[1] != heads else 0
    return accumulator + row_sums + expanded


def logsumexp_shape(kernel: Kernel, query: torch.Size) -> tuple[int, ...]:
    """Shape of the float32 log-sum-exp that each kernel keeps for backward."""
    rows, heads, tokens, _ = query
    if kernel is Kernel.EFFICIENT:
        return (rows, heads, -(-tokens // 32) * 32)
    return (rows, heads, tokens)


class FusedAttention(torch.autograd.Function):
    """A fused attention kernel: what it makes in forward and backward, without values."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        kernel: Kernel,
        recorder: Recorder,
    ) -> torch.Tensor:
        """The output, shaped and laid out as the query but for the value's head_dim."""
        output = query.new_empty((*query.shape[:-1], value.shape[-1])) if _lengths_differ(query, value) else None
        output = torch.empty_like(query) if output is None else output
        logsumexp = torch.empty(logsumexp_shape(kernel, query.shape), dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query, key, value, output, logsumexp, bias)
        ctx.kernel, ctx.recorder = kernel, recorder
        return output

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Gradients of query, key and value, and the kernel's scratch while it runs."""
        query, key, value = ctx.saved_tensors[:3]
        made = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        if ctx.kernel is Kernel.FLASH:
            scratch = flash_backward_scratch_bytes(query.shape, key.shape, query.element_size())
            ctx.recorder.temporary(scratch, Category.WORKSPACE)
        return (*made, None, None, None)


def _lengths_differ(query: torch.Tensor, value: torch.Tensor) -> bool:
    return query.shape[-1] != value.shape[-1]


def scaled_dot_product_attention(
    recorder: Recorder, compute_capability: tuple[int, int]
) -> Callable[..., torch.Tensor]:
    """`aten::scaled_dot_product_attention` as a card of `compute_capability` would run it."""

    def attend(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        kernel = choose_kernel(
            Request(
                query=query.shape,
                key=key.shape,
                dtype=query.dtype,
                has_mask=attn_mask is not None,
                is_causal=is_causal,
                compute_capability=compute_capability,
            )
        )
        if query.device.type != "meta" or kernel is Kernel.MATH:
            return torch.ops.aten.scaled_dot_product_attention.default(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        bias = None if attn_mask is None else _bias(attn_mask, query.dtype, kernel)
        return FusedAttention.apply(query, key, value, bias, kernel, recorder)

    return attend


def _bias(mask: torch.Tensor, dtype: torch.dtype, kernel: Kernel) -> torch.Tensor:
    """The mask as the kernels want it: additive, in the compute type; aligned to 8 for the memory-efficient kernel."""
    if mask.dtype is torch.bool:
        mask = torch.where(mask.logical_not(), torch.zeros((), dtype=dtype, device=mask.device), 0.0)
    unaligned = -mask.shape[-1] % 8
    if kernel is Kernel.EFFICIENT and unaligned:
        mask = torch.nn.functional.pad(mask, (0, unaligned))
    return mask
