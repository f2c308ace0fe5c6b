"""FlashAttention-2's functions for the simulated GPU, where the package is not installed.

transformers calls them through `lazy_import_flash_attention`; a test tells when that seam moves.
"""

from contextlib import AbstractContextManager
from typing import Any

import torch
from transformers import PreTrainedModel, modeling_utils
from transformers import modeling_flash_attention_utils as hf_flash

from profiler.simulation import attention_scratch
from profiler.simulation.attention import FusedAttention, Kernel, Launch, Scratch
from profiler.simulation.recorder import Recorder
from profiler.simulation.stand_ins import standing_in


def _dense(query: torch.Tensor, key: torch.Tensor) -> tuple[int, ...]:
    return attention_scratch.flash_backward(query.shape, key.shape, query.element_size())


def _packed(sequences: int) -> Scratch:
    def blocks(query: torch.Tensor, key: torch.Tensor) -> tuple[int, ...]:
        return attention_scratch.flash_packed_backward(query.shape, key.shape, sequences, query.element_size())

    return blocks


def _launch(recorder: Recorder, scratch: Scratch) -> Launch:
    return Launch(kernel=Kernel.FLASH, keeps_logsumexp=True, backward_scratch=scratch, recorder=recorder)


def _flash_functions(recorder: Recorder) -> tuple[Any, Any]:
    dense = _launch(recorder, _dense)

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
        packed = (states.unsqueeze(0).transpose(1, 2) for states in (q, k, v))
        output = FusedAttention.apply(*packed, None, _launch(recorder, _packed(cu_seqlens_q.numel() - 1)))
        return output.transpose(1, 2).squeeze(0)

    return flash_attn_func, flash_attn_varlen_func


def simulated_flash_attention(recorder: Recorder) -> AbstractContextManager[None]:
    """While active, transformers finds FlashAttention-2 installed, and it runs on the simulated GPU."""
    dense, varlen = _flash_functions(recorder)
    functions = (dense, varlen, None, hf_flash._pad_input, hf_flash._unpad_input)
    process = hf_flash._lazy_define_process_function(varlen)
    found = (functions, (process, process))
    return standing_in(
        [
            (PreTrainedModel, "_flash_attn_can_dispatch", lambda *_, **__: True),
            (hf_flash, "lazy_import_flash_attention", lambda *_, **__: found),
            # Imported there by name, to see at the model's making that the package is there.
            (modeling_utils, "lazy_import_flash_attention", lambda *_, **__: found),
        ]
    )
