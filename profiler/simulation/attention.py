"""Which attention kernel CUDA would run, and what it makes in forward and backward.

Sources, in torch's `aten/src/ATen/native/transformers/`: `cuda/sdp_utils.cpp` (`check_prefer_cudnn_attention`,
`can_use_*_attention`), `attention.cpp` (masks, padding), `cuda/attention.cu` (outputs, seeds and offsets).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch

from profiler.domain.gpu import Chip
from profiler.domain.memory import Category
from profiler.simulation import attention_scratch
from profiler.simulation.flash_splits import flash_forward
from profiler.simulation.in_place import math_attention
from profiler.simulation.recorder import Recorder

_HALF = (torch.float16, torch.bfloat16)
_LARGEST_NEGATIVE_OF_CUDNN = -65504.0


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
    wants_gradient: bool = False


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
        and not _flash_has_no_backward(request)
        and (not request.is_causal or request.query[2] == request.key[2])
    )


def _flash_has_no_backward(request: Request) -> bool:
    """Cards with less shared memory (`check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`)."""
    small = request.compute_capability in ((8, 6), (8, 9), (12, 0), (12, 1))
    return request.wants_gradient and small and 192 < request.query[-1] <= 224


def _efficient_accepts(request: Request) -> bool:
    half, modern = request.dtype in _HALF, request.compute_capability >= (8, 0)
    bfloat16_on_old_card = request.dtype is torch.bfloat16 and not modern
    # `minimum_gemm_alignment`: 16 bytes where tensor cores are used.
    alignment = 8 if half else 4 if modern else 1
    return request.query[1] == request.key[1] and request.query[-1] % alignment == 0 and not bfloat16_on_old_card


def logsumexp_shape(kernel: Kernel, query: torch.Size) -> tuple[int, ...]:
    """Shape of the float32 log-sum-exp that each kernel keeps for backward."""
    rows, heads, tokens, _ = query
    if kernel is Kernel.EFFICIENT:
        return (rows, heads, -(-tokens // 32) * 32)
    return (rows, heads, tokens)


Scratch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[int, ...]]
"""Query, key and value -> bytes of the blocks that a kernel takes while it runs, in the order they are taken."""


@dataclass(frozen=True, kw_only=True)
class KernelScratch:
    """What an attention kernel takes on one chip."""

    forward: Scratch
    backward: Scratch


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How a fused kernel runs."""

    kernel: Kernel
    wants_gradient: bool
    """Without, only flash makes the logsumexp."""
    scratch: KernelScratch
    recorder: Recorder
    elsewhere: Mapping[Chip, KernelScratch] = field(default_factory=dict)
    """What the kernel takes on the other chips that the run is to answer for."""


class FusedAttention(torch.autograd.Function):
    """A fused attention kernel: what it makes in forward and backward, without values."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        launch: Launch,
    ) -> torch.Tensor:
        """The output, shaped and laid out as the query but for the value's head_dim.

        Seed and offset of dropout are made without dropout too: by cuDNN before everything, by flash at the end (there
        the seed has room for both); the memory-efficient kernel keeps its own on the host.
        """
        seeds = _seeds(launch.recorder, ()) if launch.kernel is Kernel.CUDNN else []
        if launch.kernel is Kernel.EFFICIENT or query.shape[-1] != value.shape[-1]:
            output = _by_tokens(query, value.shape[-1])
        else:
            output = torch.empty_like(query)
        logsumexp = None
        if launch.wants_gradient or launch.kernel is Kernel.FLASH:
            logsumexp = torch.empty(
                logsumexp_shape(launch.kernel, query.shape), dtype=torch.float32, device=query.device
            )
        parts = launch.recorder.take(
            launch.scratch.forward(query, key, value),
            f"{launch.kernel} attention",
            elsewhere={chip: scratch.forward(query, key, value) for chip, scratch in launch.elsewhere.items()},
        )
        if launch.kernel is Kernel.FLASH:
            seeds = _seeds(launch.recorder, (2,))
        launch.recorder.give_back(parts[::-1])
        if launch.wants_gradient:
            # In the order in which torch's own node gives them up: its inputs by name, then its outputs.
            ctx.save_for_backward(bias, key, query, value, logsumexp, output, *seeds)
            ctx.launch = launch
            return output
        unused = [logsumexp, *seeds]
        del logsumexp, seeds
        while unused:
            del unused[0]
        return output

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Gradients of query, key and value, and the kernel's scratch while it runs.

        What was saved stays to the end, and goes last first: with checkpointing nothing else holds it by then.
        """
        saved = list(ctx.saved_tensors)
        made = _gradients(saved[2], saved[1], saved[3], ctx.launch)
        while saved:
            saved.pop()
        return (*made, None, None)


def _gradients(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, launch: Launch
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    by_tokens = launch.kernel is Kernel.EFFICIENT
    made = tuple(_by_tokens(x, x.shape[-1]) if by_tokens else torch.empty_like(x) for x in (query, key, value))
    launch.recorder.scratch(
        (launch.scratch.backward(query, key, value),),
        f"{launch.kernel} attention backward",
        elsewhere={chip: (scratch.backward(query, key, value),) for chip, scratch in launch.elsewhere.items()},
    )
    return made[0], made[1], made[2]


def _seeds(recorder: Recorder, seed_shape: tuple[int, ...]) -> list[torch.Tensor]:
    with recorder.attributed(Category.ACTIVATIONS, "seed and offset of attention's dropout"):
        return [torch.empty(shape, dtype=torch.int64, device="meta") for shape in (seed_shape, ())]


def _by_tokens(like: torch.Tensor, width: int) -> torch.Tensor:
    """[rows, heads, tokens, width], in memory [rows, tokens, heads, width]."""
    rows, heads, tokens, _ = like.shape
    return like.new_empty((rows, tokens, heads, width)).transpose(1, 2)


def scaled_dot_product_attention(
    recorder: Recorder, chip: Chip, others: Collection[Chip] = ()
) -> Callable[..., torch.Tensor]:
    """`aten::scaled_dot_product_attention` as a card with `chip` would run it.

    Chips of `others` that would run another kernel diverge from the run; of the rest the trace keeps what they take.
    """

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
        wanted = torch.is_grad_enabled() and any(part.requires_grad for part in (query, key, value))
        request = Request(
            query=query.shape,
            key=key.shape,
            dtype=query.dtype,
            has_mask=attn_mask is not None,
            is_causal=is_causal,
            compute_capability=chip.compute_capability,
            wants_gradient=wanted,
        )
        kernel = choose_kernel(request)
        if query.is_meta:
            recorder.diverged.update(
                other
                for other in others
                if choose_kernel(replace(request, compute_capability=other.compute_capability)) is not kernel
            )
        if query.device.type != "meta" or kernel is Kernel.MATH:
            with math_attention():
                return torch.ops.aten.scaled_dot_product_attention.default(
                    query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
                )
        bias = None if attn_mask is None else _bias(attn_mask, query.dtype, kernel)
        launch = Launch(
            kernel=kernel,
            wants_gradient=wanted,
            scratch=_scratch_of(kernel, chip),
            recorder=recorder,
            elsewhere={other: _scratch_of(kernel, other) for other in others},
        )
        if kernel is Kernel.FLASH and query.shape[-1] % 8:
            return _padded_flash(query, key, value, launch)
        return FusedAttention.apply(query, key, value, bias, launch)

    return attend


def _scratch_of(kernel: Kernel, chip: Chip) -> KernelScratch:
    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[int, ...]:
        if kernel is Kernel.FLASH:
            return flash_forward(query.shape, key.shape, chip)
        if kernel is Kernel.EFFICIENT:
            return attention_scratch.efficient_forward((*query.shape[:-1], value.shape[-1]), query.dtype)
        return ()

    def backward(query: torch.Tensor, key: torch.Tensor, _: torch.Tensor) -> tuple[int, ...]:
        if kernel is Kernel.FLASH:
            return attention_scratch.flash_backward(query.shape, key.shape, query.element_size())
        if kernel is Kernel.CUDNN:
            return attention_scratch.cudnn_backward(query.shape)
        return attention_scratch.efficient_backward(query.shape, key.shape, query.dtype, chip.compute_capability)

    return KernelScratch(forward=forward, backward=backward)


def _padded_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, launch: Launch) -> torch.Tensor:
    """Flash wants a head_dim that is a multiple of 8 (`pad_last_dim` and `post_process_flash_output`)."""
    missing = -query.shape[-1] % 8
    padded = [torch.nn.functional.pad(part, (0, missing)) for part in (query, key, value)]
    return FusedAttention.apply(*padded, None, launch)[..., : query.shape[-1]]


def _bias(mask: torch.Tensor, dtype: torch.dtype, kernel: Kernel) -> torch.Tensor:
    """The mask as the kernels want it: additive, in the compute type; aligned to 8 for the memory-efficient kernel.

    Every call makes its own, so that every layer keeps one for backward. Source: `convert_boolean_attn_mask_` (where
    the number that stands for "not this one" is a tensor), `preprocess_mask` and `pad_bias`, which adds 8 columns where
    the rows are unaligned although their length is a multiple of 8.
    """
    if mask.dtype is torch.bool:
        blocked = _LARGEST_NEGATIVE_OF_CUDNN if kernel is Kernel.CUDNN else float("-inf")
        mask = torch.where(mask, 0.0, torch.scalar_tensor(blocked, dtype=dtype, device=mask.device))
    aligned = all(stride % 8 == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1
    if kernel is Kernel.EFFICIENT and not aligned:
        width = mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, 8 - width % 8))[..., :width]
    return mask
