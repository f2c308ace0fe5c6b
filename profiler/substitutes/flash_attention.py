"""The functions of the package flash-attn that models call, by torch's own FlashAttention kernels.

torch contains the kernels of flash-attn 2, with the same outputs, statistics and scratch. Arrangement of the tensors:
[rows, tokens, heads, head size], or without padding [tokens of all rows, heads, head size].
"""

from typing import Any

import torch

from profiler.domain.errors import UnsupportedTrialError

_WITHOUT_WINDOW = (-1, -1)


def flash_attn_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _WITHOUT_WINDOW,
    **_: Any,
) -> torch.Tensor:
    """Return the attention of rows of one length."""
    return _attend(q, k, v, None, None, q.shape[1], k.shape[1], dropout_p, softmax_scale, causal, window_size)


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _WITHOUT_WINDOW,
    **_: Any,
) -> torch.Tensor:
    """Return the attention of rows of any length, one after the other without padding."""
    return _attend(
        q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), dropout_p, softmax_scale, causal,
        window_size,
    )  # fmt: skip


def flash_attn_with_kvcache(*_: Any, **__: Any) -> torch.Tensor:
    """Refuse the attention of a paged cache, which `generate_batch` of transformers calls.

    Raises:
        UnsupportedTrialError: Always.
    """
    raise UnsupportedTrialError("flash-attn's attention with a paged cache is not substituted; install flash-attn")


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts_q: Any, starts_k: Any, longest_q: int, longest_k: int,
    dropout_p: float, scale: float | None, causal: bool, window: tuple[int, int],
) -> torch.Tensor:  # fmt: skip
    left, right = (None if size < 0 else size for size in window)
    output: torch.Tensor = torch.ops.aten._flash_attention_forward(
        q, k, v, starts_q, starts_k, longest_q, longest_k, dropout_p, causal, False, scale=scale,
        window_size_left=left, window_size_right=right,
    )[0]  # fmt: skip
    return output


def unpad_input(hidden_states: torch.Tensor, attention_mask: torch.Tensor, *_: Any) -> tuple[Any, ...]:
    """Return the tokens of all rows without padding: their states and places, and where rows begin.

    The last two are the longest row, and the tokens of each row.
    """
    lengths = attention_mask.sum(dim=-1, dtype=torch.int32)
    places = attention_mask.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return index_first_axis(hidden_states.flatten(0, 1), places), places, starts, int(lengths.max()), lengths


def index_first_axis(states: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Return the states at `places`."""
    return states[places]


def pad_input(states: torch.Tensor, places: torch.Tensor, batch: int, tokens: int) -> torch.Tensor:
    """Return states without padding as rows of `tokens`, zero where there are none."""
    padded = states.new_zeros((batch * tokens, *states.shape[1:]))
    return padded.index_put((places,), states).view(batch, tokens, *states.shape[1:])


def all_gather(states: torch.Tensor, group: Any) -> torch.Tensor:
    """Return the states of all ranks of a group below each other; each rank's gradient is the sum of theirs."""
    gathered: torch.Tensor = _AllGather.apply(states, group)
    return gathered


class _AllGather(torch.autograd.Function):
    """One tensor [ranks x rows, ...] forward, and [rows, ...] backward."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, group: Any) -> torch.Tensor:
        """Gather."""
        ctx.group = group
        ranks = torch.distributed.get_world_size(group)
        gathered = states.new_empty((ranks * states.shape[0], *states.shape[1:]))
        torch.distributed.all_gather_into_tensor(gathered, states.contiguous(), group=group)
        return gathered

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Add up, and keep the own part."""
        ranks = torch.distributed.get_world_size(ctx.group)
        own = gradient.new_empty((gradient.shape[0] // ranks, *gradient.shape[1:]))
        torch.distributed.reduce_scatter_tensor(own, gradient.contiguous(), group=ctx.group)
        return own, None


def cross_entropy_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    precomputed_lse: torch.Tensor | None = None,
    label_smoothing: float = 0.0,
    logit_scale: float = 1.0,
    lse_square_scale: float = 0.0,
    ignore_index: int = -100,
    inplace_backward: bool = False,
    process_group: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses and the squared normalizers of flash-attn's loss, both [tokens], with its memory and no values.

    The package computes them by a kernel of Triton (`flash_attn/ops/triton/cross_entropy.py` of 2.8.3): three numbers
    in float32 per token, and a gradient that takes the place of the logits or is as large as they are.

    Args:
        logits: [tokens, vocabulary].
        labels: [tokens].
        precomputed_lse: [tokens], the normalizers, which are computed otherwise.
        label_smoothing: Changes no memory, as the three after it.
        logit_scale: See above.
        lse_square_scale: See above.
        ignore_index: See above.
        inplace_backward: Whether the gradient takes the place of the logits.
        process_group: Of ranks that hold parts of the vocabulary.

    Raises:
        UnsupportedTrialError: The vocabulary is divided among ranks.
    """
    del lse_square_scale, ignore_index
    if process_group is not None:
        raise UnsupportedTrialError("flash-attn's loss of a divided vocabulary is not substituted; install flash-attn")
    known = precomputed_lse if logit_scale == 1.0 and label_smoothing == 0.0 else None
    losses, squares = _CrossEntropy.apply(logits, labels, known, inplace_backward)
    return losses, squares


_ALIGNED_BYTES = 16


class _CrossEntropy(torch.autograd.Function):
    """The memory of flash-attn's loss."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, known: torch.Tensor | None, inplace: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Make the losses and squares; keep the logits, the normalizers and the labels."""
        if labels.dtype is torch.long and labels.data_ptr() % _ALIGNED_BYTES:
            labels = torch.nn.functional.pad(labels, (0, 1))[..., :-1]
        if logits.stride(-1) != 1:
            logits = logits.contiguous()
        tokens = logits.shape[0]
        losses = torch.empty(tokens, dtype=torch.float32, device=logits.device)
        normalizers = torch.empty_like(losses) if known is None else known.contiguous()
        squares = torch.empty_like(losses)
        ctx.save_for_backward(logits, normalizers, labels)
        ctx.mark_non_differentiable(squares)
        ctx.inplace = inplace
        return losses, squares

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradient of the logits."""
        logits = ctx.saved_tensors[0]
        return logits if ctx.inplace else torch.empty_like(logits), None, None, None
