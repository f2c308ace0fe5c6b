"""The attention kernel that CUDA would run, and its tensors in forward and backward.

Sources, in torch's `aten/src/ATen/native/transformers/`: `cuda/sdp_utils.cpp` (`check_prefer_cudnn_attention`,
`can_use_*_attention`), `attention.cpp` (masks, padding), `cuda/attention.cu` (outputs, seeds and offsets).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache, partial
from math import prod
from typing import Any

import torch

from profiler.domain.cards.card import CUDNN_ATTENTION
from profiler.domain.cards.gpu import Chip
from profiler.domain.memory import Category
from profiler.simulation.cuda.autocast import composed_within
from profiler.simulation.cuda.fused_attention import attention_scratch
from profiler.simulation.cuda.fused_attention.attention_scratch import flash_forward, more_keys_alike
from profiler.simulation.cuda.scratch.deferred_scratch import Rule, ScratchCall, Sizes
from profiler.simulation.tracing.backward import math_attention
from profiler.simulation.tracing.recorder import Recorder
from profiler.simulation.tracing.work import attention_flops

_HALF = (torch.float16, torch.bfloat16)
_LARGEST_NEGATIVE_OF_CUDNN = -65504.0

MASK_ALIGNMENT = 8
"""The memory-efficient kernel reads masks whose rows begin at multiples of it (`preprocess_mask`)."""


class Kernel(StrEnum):
    """torch's backends of `scaled_dot_product_attention`."""

    CUDNN = "cudnn"
    FLASH = "flash"
    EFFICIENT = "efficient"
    MATH = "math"


@dataclass(frozen=True, kw_only=True)
class Mask:
    """The properties of a mask that decide the kernel."""

    shape: torch.Size
    last_stride: int = 1
    requires_grad: bool = False


@dataclass(frozen=True, kw_only=True)
class Request:
    """The properties of a call that decide the kernel. Shapes are [rows, heads, tokens, head_dim]."""

    query: torch.Size
    key: torch.Size
    value: torch.Size
    dtype: torch.dtype
    compute_capability: tuple[int, int]
    mask: Mask | None = None
    is_causal: bool = False
    dropout: float = 0.0
    enable_gqa: bool = False
    wants_gradient: bool = False
    is_dense: bool = True
    """Whether the last dimension of query, key and value has stride 1."""

    @property
    def width(self) -> int:
        """Head size of query and key."""
        return self.query[-1]


def request_of(
    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    attn_mask: torch.Tensor | None,
    *,
    compute_capability: tuple[int, int],
    dropout: float,
    is_causal: bool,
    enable_gqa: bool,
) -> Request:
    """Describe a call of `scaled_dot_product_attention` for query, key and value."""
    query, key, value = tensors
    mask = None
    if attn_mask is not None:
        last_stride = attn_mask.stride(-1)
        mask = Mask(shape=attn_mask.shape, last_stride=last_stride, requires_grad=attn_mask.requires_grad)
    return Request(
        query=query.shape,
        key=key.shape,
        value=value.shape,
        dtype=query.dtype,
        compute_capability=compute_capability,
        mask=mask,
        is_causal=is_causal,
        dropout=dropout,
        enable_gqa=enable_gqa,
        wants_gradient=torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors),
        is_dense=all(tensor.stride(-1) == 1 for tensor in tensors),
    )


def choose_kernel(request: Request) -> Kernel:
    """Return the first kernel of cuDNN, flash, memory-efficient and math that torch accepts on the card.

    cuDNN comes first on compute capability 9 and 10 (torch with cuDNN 9.15 or later, as torch's own wheels for CUDA 13
    contain it) and supports masks; flash supports none; the memory-efficient kernel supports no grouped-query heads.
    """
    if _is_four_dimensional(request):
        for kernel, accepts in (
            (Kernel.CUDNN, _cudnn_accepts),
            (Kernel.FLASH, _flash_accepts),
            (Kernel.EFFICIENT, _efficient_accepts),
        ):
            if accepts(request):
                return kernel
    return Kernel.MATH


def _is_four_dimensional(request: Request) -> bool:
    """The condition of all fused kernels (`check_tensor_shapes`, `check_nonzero_sequence_lengths_dense`)."""
    shapes = (request.query, request.key, request.value)
    return all(len(shape) == 4 for shape in shapes) and request.query[2] > 0 and request.key[2] > 0


def _cudnn_accepts(request: Request) -> bool:
    return (
        request.compute_capability[0] in CUDNN_ATTENTION
        and request.dtype in _HALF
        and _cudnn_accepts_widths(request)
        and _cudnn_accepts_mask(request)
        and _cudnn_accepts_dropout(request)
        and request.key[2] != 1
        and _strides_are_one(request)
        and _heads_fit(request, grouped=request.enable_gqa, equal_values=False)
    )


def _cudnn_accepts_widths(request: Request) -> bool:
    """Multiples of 8 up to 256 on Hopper, up to 128 on Blackwell, where 192 with values of 128 is allowed, too.

    Source: `check_cudnn_tensor_shapes` in torch 2.13, with cuDNN 9.11 or later.
    """
    widths = (request.width, request.value[-1])
    if request.compute_capability == (9, 0):
        limit = 256
    else:
        limit = 192 if request.compute_capability[0] == 10 and widths == (192, 128) else 128
    return all(width <= limit and width % 8 == 0 for width in widths)


def _cudnn_accepts_mask(request: Request) -> bool:
    """Two or four dimensions that broadcast to the scores, without a gradient (`check_attn_mask_shape`)."""
    if request.mask is None:
        return True
    rows, heads, queries, _ = request.query
    scores = (rows, heads, queries, request.key[2])
    shape = request.mask.shape
    broadcasts = all(size in (1, whole) for size, whole in zip(shape[::-1], scores[::-1], strict=False))
    return not request.mask.requires_grad and len(shape) in (2, 4) and broadcasts


def _cudnn_accepts_dropout(request: Request) -> bool:
    """Multiples of 1/16, and more than one query (`check_cudnn_dropout`, `check_cudnn_tensor_shapes`)."""
    return request.dropout == 0 or (request.query[2] != 1 and (request.dropout * 16).is_integer())


def _flash_accepts(request: Request) -> bool:
    return (
        request.compute_capability >= (8, 0)
        and request.dtype in _HALF
        and request.mask is None
        and request.width == request.key[-1] == request.value[-1] <= 256
        and not _flash_has_no_backward(request)
        and (not request.is_causal or request.query[2] == request.key[2])
        and (_strides_are_one(request) or request.width == 1)
        and _heads_fit(request, grouped=request.enable_gqa)
    )


def _flash_has_no_backward(request: Request) -> bool:
    """Cards with less shared memory (`check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`)."""
    small = request.compute_capability in ((8, 6), (8, 9), (12, 0), (12, 1))
    widest_without = 256 if request.dropout > 0 else 224
    return request.wants_gradient and small and 192 < request.width <= widest_without


def _efficient_accepts(request: Request) -> bool:
    half, modern = request.dtype in _HALF, request.compute_capability >= (8, 0)
    bfloat16_on_old_card = request.dtype is torch.bfloat16 and not modern
    # `minimum_gemm_alignment`: 16 bytes where tensor cores are used.
    alignment = 8 if half else 4 if modern else 1
    return (
        request.width == request.key[-1]
        and request.width % alignment == 0
        and request.value[-1] % alignment == 0
        and not bfloat16_on_old_card
        and _strides_are_one(request)
        and _heads_fit(request, grouped=False)
    )


def _strides_are_one(request: Request) -> bool:
    """Whether the last dimension of all tensors has stride 1 (`check_last_dim_stride_equals_1_dense`)."""
    return request.is_dense and (request.mask is None or request.mask.last_stride == 1)


def _heads_fit(request: Request, *, grouped: bool, equal_values: bool = True) -> bool:
    """Whether a kernel supports the heads (`check_batch_size_and_num_heads_dense`, `check_grouped_query_attention`).

    Args:
        request: The request.
        grouped: Whether keys and values may have fewer heads than queries.
        equal_values: Whether values need as many heads as keys.
    """
    (rows, heads), (key_rows, key_heads), (value_rows, value_heads) = (
        shape[:2] for shape in (request.query, request.key, request.value)
    )
    if not rows == key_rows == value_rows:
        return False
    if not grouped:
        return heads == key_heads == value_heads
    return heads % key_heads == 0 and (key_heads == value_heads if equal_values else heads % value_heads == 0)


def logsumexp_shape(kernel: Kernel, query: torch.Size) -> tuple[int, ...]:
    """Return the shape of the float32 log-sum-exp that a kernel keeps for backward."""
    rows, heads, tokens, _ = query
    if kernel is Kernel.EFFICIENT:
        return (rows, heads, -(-tokens // 32) * 32)
    return (rows, heads, tokens)


Scratch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[int, ...]]
"""Query, key and value -> bytes of the scratch blocks of a kernel, in the order of allocation."""


@dataclass(frozen=True, kw_only=True)
class KernelScratch:
    """Scratch of an attention kernel on one chip."""

    forward: Scratch
    backward: Scratch
    more_keys: Callable[[torch.Size, torch.Size], int] | None = None
    """Shapes of query and key -> by how many keys the key may grow until the scratch changes; None: it never does."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """Parameters of a fused kernel."""

    kernel: Kernel
    wants_gradient: bool
    """Without it, only flash makes the logsumexp."""
    scratch: KernelScratch
    recorder: Recorder
    chip: Chip
    by_capability: Mapping[Chip, KernelScratch] = field(default_factory=dict)
    """Scratch on the other chips that the run covers."""

    @contextmanager
    def takes(
        self, scratch_of: Callable[[KernelScratch], Scratch], *tensors: torch.Tensor, name: str, last_first: bool
    ) -> Iterator[None]:
        """A context with the scratch of a pass for query, key and value; or a record of it, where it is left open."""
        here, recorder = scratch_of(self.scratch), self.recorder
        if recorder.leaves_scratch_open:
            call = ScratchCall.of(_rule(here, last_first=last_first), self.chip, tensors, {})
            recorder.deferred(call)
            yield
            recorder.deferred(call.end)
            return
        others = {chip: scratch_of(scratch)(*tensors) for chip, scratch in self.by_capability.items()}
        parts = recorder.take(here(*tensors), f"{self.kernel} {name}", by_capability=others)
        yield
        recorder.give_back(parts if last_first else parts[::-1])


@cache
def _rule(scratch: Scratch, *, last_first: bool) -> Rule:
    """Return the scratch of a pass as a rule. Kept, as calls are alike by the identity of their rule."""

    def rule(tensors: Any, _: Any, __: Chip) -> Sizes:
        sizes = tuple(size for size in scratch(*tensors) if size)
        numbers = range(1, len(sizes) + 1)
        return sizes, tuple(numbers), tuple(-number for number in (reversed(numbers) if last_first else numbers))

    return rule


class FusedAttention(torch.autograd.Function):
    """A fused attention kernel: its tensors in forward and backward, without values."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        bias: torch.Tensor | None,
        launch: Launch,
    ) -> torch.Tensor:
        """Return the output, with shape and layout of the query and the head_dim of the value.

        cuDNN and flash make seed and offset of dropout without dropout, too: cuDNN before everything else, flash at the
        end (its seed holds two numbers). The memory-efficient kernel keeps them on the host.
        """
        seeds = _seeds(launch.recorder, ()) if launch.kernel is Kernel.CUDNN else []
        make = _by_tokens if launch.kernel is Kernel.EFFICIENT else laid_out_like
        output = make(query, value.shape[-1])
        logsumexp = None
        if launch.wants_gradient or launch.kernel is Kernel.FLASH:
            logsumexp = torch.empty(
                logsumexp_shape(launch.kernel, query.shape), dtype=torch.float32, device=query.device
            )
        with launch.takes(lambda scratch: scratch.forward, query, key, value, name="attention", last_first=False):
            if launch.recorder.work is not None:
                launch.recorder.work.product(attention_flops(query, key, value), (query, key, value, output))
            if query.shape[2] == 1:
                _note_change_ahead(launch, query.shape, key.shape)
            if launch.kernel is Kernel.FLASH:
                seeds = _seeds(launch.recorder, (2,))
        if launch.wants_gradient:
            # In the order in which torch's own node frees them: its inputs by name, then its outputs.
            ctx.save_for_backward(bias, key, query, value, logsumexp, output, *seeds)
            ctx.launch = launch
            return output
        unused = [logsumexp, *seeds]
        del logsumexp, seeds
        while unused:
            del unused[0]
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradients of query, key and value; allocate the kernel's scratch meanwhile.

        Saved tensors are freed at the end, the last first: with checkpointing nothing else holds them.
        """
        saved = list(ctx.saved_tensors)
        made = _gradients(saved[2], saved[1], saved[3], saved[5], gradients[0], ctx.launch)
        if (work := ctx.launch.recorder.work) is not None:
            flops = attention_flops(saved[2], saved[1], saved[3], gradients[0])
            work.product(flops, (*saved[1:4], saved[5], gradients[0], *made))
        while saved:
            saved.pop()
        return (*made, None, None)


def _gradients(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    gradient: torch.Tensor,
    launch: Launch,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make the gradients. Meanwhile the kernel holds its scratch and copies of inputs in a layout it cannot read."""
    by_tokens = launch.kernel is Kernel.EFFICIENT
    read: list[torch.Tensor] = []
    if launch.kernel is Kernel.FLASH:
        # `_flash_attention_backward` in `cuda/attention_backward.cu` needs both by tokens.
        read = [tensor.transpose(1, 2).contiguous() for tensor in (gradient, output)]
    made = tuple(_by_tokens(x, x.shape[-1]) if by_tokens else torch.empty_like(x) for x in (query, key, value))
    row_sums = _row_sums(output, gradient) if by_tokens and query.dtype is torch.float32 else None
    with launch.takes(
        lambda scratch: scratch.backward, query, key, value, name="attention backward", last_first=not by_tokens
    ):
        del row_sums
    while read:
        read.pop()
    return made[0], made[1], made[2]


def _note_change_ahead(launch: Launch, query: torch.Size, key: torch.Size) -> None:
    """In a decoding step, announce for how many more steps the scratch stays the same on every chip."""
    for scratch in (launch.scratch, *launch.by_capability.values()):
        if scratch.more_keys is not None:
            launch.recorder.holds_for(scratch.more_keys(query, key))


def _row_sums(output: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Make the row sums, which the kernel itself makes in 16-bit types (`delta` in `attention_backward.cu`)."""
    products = gradient.transpose(1, 2) * output.transpose(1, 2)
    sums = products.sum(-1)
    row_sums = sums.transpose(-2, -1).contiguous()
    del sums
    return row_sums


def _seeds(recorder: Recorder, seed_shape: tuple[int, ...]) -> list[torch.Tensor]:
    with recorder.attributed(Category.ACTIVATIONS, "seed and offset of attention's dropout"):
        return [torch.empty(shape, dtype=torch.int64, device="meta") for shape in (seed_shape, ())]


def _by_tokens(like: torch.Tensor, width: int) -> torch.Tensor:
    """Make [rows, heads, tokens, width], in memory [rows, tokens, heads, width]."""
    rows, heads, tokens, _ = like.shape
    return like.new_empty((rows, tokens, heads, width)).transpose(1, 2)


def laid_out_like(like: torch.Tensor, width: int) -> torch.Tensor:
    """Make [rows, heads, tokens, width], in memory in the order of the dimensions of `like`.

    Source: `alloc_with_matching_layout` in `aten/src/ATen/native/cudnn/MHA.cpp`.
    """
    if width == like.shape[-1]:
        return torch.empty_like(like)
    order = sorted(range(like.dim()), key=like.stride)[::-1]
    shape = (*like.shape[:-1], width)
    made = like.new_empty([shape[dim] for dim in order])
    return made.permute([order.index(dim) for dim in range(like.dim())])


def scaled_dot_product_attention(
    recorder: Recorder, chip: Chip, others: Collection[Chip] = ()
) -> Callable[..., torch.Tensor]:
    """Return `aten::scaled_dot_product_attention` as a card with `chip` runs it.

    Chips of `others` that would run another kernel are recorded as diverged; for the rest the trace keeps the scratch.
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
        request = request_of(
            (query, key, value),
            attn_mask,
            compute_capability=chip.compute_capability,
            dropout=dropout_p,
            is_causal=is_causal,
            enable_gqa=enable_gqa,
        )
        kernel = choose_kernel(request)
        if query.is_meta:
            recorder.diverged.update(
                other
                for other in others
                if choose_kernel(replace(request, compute_capability=other.compute_capability)) is not kernel
            )
        if kernel is Kernel.MATH and query.is_meta and dropout_p > 0:
            mask = None if attn_mask is None else _bias(attn_mask, query.dtype, kernel)
            # Its dropout has to be that of CUDA, so its parts are replaced as well.
            with math_attention(), composed_within():
                return torch.ops.aten._scaled_dot_product_attention_math.default(
                    query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
                )[0]
        if query.device.type != "meta" or kernel is Kernel.MATH:
            with math_attention():
                return torch.ops.aten.scaled_dot_product_attention.default(
                    query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
                )
        bias = None if attn_mask is None else _bias(attn_mask, query.dtype, kernel)
        launch = Launch(
            kernel=kernel,
            wants_gradient=request.wants_gradient,
            scratch=_scratch_of(kernel, chip, dropout_p),
            recorder=recorder,
            chip=chip,
            by_capability={other: _scratch_of(kernel, other, dropout_p) for other in others},
        )
        if kernel is Kernel.FLASH and query.shape[-1] % 8:
            return _padded_flash(query, key, value, launch)
        return FusedAttention.apply(query, key, value, bias, launch)

    return attend


def efficient_forward(output: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """Return a float32 copy of the output, above a head_dim of 128 in 16-bit types only.

    Source: `kNeedsOutputAccumulatorBuffer` in torch's `mem_eff_attention/kernel_forward.h`.
    """
    if output[3] <= 128 or dtype not in _HALF:
        return ()
    return (prod(output) * torch.float32.itemsize,)


@cache
def _scratch_of(kernel: Kernel, chip: Chip, dropout: float) -> KernelScratch:
    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[int, ...]:
        if kernel is Kernel.FLASH:
            return flash_forward(query.shape, key.shape, chip, dropout)
        if kernel is Kernel.EFFICIENT:
            return efficient_forward((*query.shape[:-1], value.shape[-1]), query.dtype)
        return ()

    def backward(query: torch.Tensor, key: torch.Tensor, _: torch.Tensor) -> tuple[int, ...]:
        if kernel is Kernel.FLASH:
            return attention_scratch.flash_backward(query.shape, key.shape, query.element_size())
        if kernel is Kernel.CUDNN:
            return attention_scratch.cudnn_backward(query.shape)
        found = attention_scratch.efficient_backward(query.shape, key.shape, query.dtype, chip.compute_capability)
        # An operation makes the row sums before (`_row_sums`).
        return found[1:] if query.dtype is torch.float32 else found

    more_keys = partial(more_keys_alike, chip=chip) if kernel is Kernel.FLASH and not dropout else None
    return KernelScratch(forward=forward, backward=backward, more_keys=more_keys)


def _padded_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, launch: Launch) -> torch.Tensor:
    """Pad head_dim to a multiple of 8, which flash needs (`pad_last_dim` and `post_process_flash_output`)."""
    missing = -query.shape[-1] % 8
    padded = [torch.nn.functional.pad(part, (0, missing)) for part in (query, key, value)]
    return FusedAttention.apply(*padded, None, launch)[..., : query.shape[-1]]


def _bias(mask: torch.Tensor, dtype: torch.dtype, kernel: Kernel) -> torch.Tensor:
    """Return the additive mask in the compute type, aligned to 8 for the memory-efficient kernel.

    Every call makes a mask, so that every layer keeps one for backward. Source: `convert_boolean_attn_mask_` (where the
    number for blocked positions is a tensor), `preprocess_mask` and `pad_bias`, which adds 8 columns if the rows are
    unaligned although their length is a multiple of 8.
    """
    if mask.dtype is torch.bool:
        blocked = _LARGEST_NEGATIVE_OF_CUDNN if kernel is Kernel.CUDNN else float("-inf")
        mask = torch.where(mask, 0.0, torch.scalar_tensor(blocked, dtype=dtype, device=mask.device))
    aligned = all(stride % MASK_ALIGNMENT == 0 for stride in mask.stride()[:-1]) and mask.stride(-1) == 1
    if kernel is Kernel.EFFICIENT and not aligned:
        width = mask.shape[-1]
        mask = torch.nn.functional.pad(mask, (0, MASK_ALIGNMENT - width % MASK_ALIGNMENT))[..., :width]
    return mask
