"""FlashAttention-2's functions for the simulated GPU, where the package is not installed.

transformers obtains them by `lazy_import_flash_attention`.
"""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from functools import cache, partial
from typing import Any

import torch
from transformers import PreTrainedModel, modeling_utils
from transformers import modeling_flash_attention_utils as hf_flash

from profiler.domain.cards.gpu import Chip
from profiler.domain.errors import UnsupportedTrialError
from profiler.seams.patching import patched
from profiler.simulation.cuda.fused_attention import attention_scratch
from profiler.simulation.cuda.fused_attention.attention import FusedAttention, Kernel, KernelScratch, Launch
from profiler.simulation.cuda.fused_attention.attention_scratch import flash_forward, more_keys_alike
from profiler.simulation.tracing.recorder import Recorder


@cache
def _dense(chip: Chip) -> KernelScratch:
    def forward(query: torch.Tensor, key: torch.Tensor, _: torch.Tensor) -> tuple[int, ...]:
        return flash_forward(query.shape, key.shape, chip)

    def backward(query: torch.Tensor, key: torch.Tensor, _: torch.Tensor) -> tuple[int, ...]:
        return attention_scratch.flash_backward(query.shape, key.shape, query.element_size())

    return KernelScratch(forward=forward, backward=backward, more_keys=partial(more_keys_alike, chip=chip))


@cache
def _packed(sequences: int) -> KernelScratch:
    """Scratch of packed sequences, whose keys are not split (`mha_varlen_fwd` splits only for a paged cache)."""

    def forward(*_: torch.Tensor) -> tuple[int, ...]:
        return ()

    def backward(query: torch.Tensor, key: torch.Tensor, _: torch.Tensor) -> tuple[int, ...]:
        return attention_scratch.flash_packed_backward(query.shape, key.shape, sequences, query.element_size())

    return KernelScratch(forward=forward, backward=backward)


_TAKEN = (torch.float16, torch.bfloat16)
"""Types that FlashAttention-2 takes ("FlashAttention only support fp16 and bf16 data type", `flash_api.cpp`)."""


def _check_types(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Refuse types that FlashAttention-2 refuses ("query and value must have the same dtype", `flash_api.cpp`).

    transformers casts the three of them only if the query is float32. Under autocast an adapter on `v_proj` alone makes
    the values float32 where a 4-bit layer leaves the query in float16. peft generates outside of autocast, so queries
    of float32 weights stay float32.

    Raises:
        UnsupportedTrialError: The types differ, or one is neither float16 nor bfloat16.
    """
    types = [states.dtype for states in (query, key, value)]
    if query.dtype not in _TAKEN or len(set(types)) > 1:
        found = ", ".join(str(dtype).removeprefix("torch.") for dtype in types)
        raise UnsupportedTrialError(
            f"FlashAttention-2 gets query, key and value as {found}; it takes one type for all three, float16 or "
            "bfloat16; use dtype=bfloat16 or attn_implementation=sdpa"
        )


def _flash_functions(recorder: Recorder, chip: Chip, others: Collection[Chip]) -> tuple[Any, Any]:
    def launch(scratch: KernelScratch, by_capability: Mapping[Chip, KernelScratch]) -> Launch:
        return Launch(
            kernel=Kernel.FLASH,
            wants_gradient=True,
            scratch=scratch,
            recorder=recorder,
            chip=chip,
            by_capability=by_capability,
        )

    dense = launch(_dense(chip), {other: _dense(other) for other in others})

    def flash_attn_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> torch.Tensor:
        """[rows, tokens, heads, head_dim] for all three, and for the output."""
        _check_types(q, k, v)
        output = FusedAttention.apply(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, dense)
        return output.transpose(1, 2)

    def flash_attn_varlen_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: Any = None,
        cu_seqlens_k: Any = None,
        max_seqlen_q: Any = None,
        max_seqlen_k: Any = None,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: Any = None,
    ) -> torch.Tensor:
        """[tokens of all rows, heads, head_dim]."""
        _check_types(q, k, v)
        packed = (states.unsqueeze(0).transpose(1, 2) for states in (q, k, v))
        output = FusedAttention.apply(*packed, None, launch(_packed(cu_seqlens_q.numel() - 1), {}))
        return output.transpose(1, 2).squeeze(0)

    return flash_attn_func, flash_attn_varlen_func


def simulated_flash_attention(recorder: Recorder, chip: Chip, others: Collection[Chip]) -> AbstractContextManager[None]:
    """While active, FlashAttention-2 appears to be installed and runs on the simulated GPU."""
    dense, varlen = _flash_functions(recorder, chip, others)
    functions = (dense, varlen, None, hf_flash._pad_input, hf_flash._unpad_input)
    process = hf_flash._lazy_define_process_function(varlen)
    found = (functions, (process, process))
    return patched(
        [
            (PreTrainedModel, "_flash_attn_can_dispatch", lambda *_, **__: True),
            (hf_flash, "lazy_import_flash_attention", lambda *_, **__: found),
            # Imported there by name, to check for the package when a model is built.
            (modeling_utils, "lazy_import_flash_attention", lambda *_, **__: found),
        ]
    )
