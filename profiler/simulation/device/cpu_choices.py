"""Kernel choices of the CPU, to compare a simulated trial with the same trial on the CPU.

All differences from CUDA are here: the attention kernel, autocast's lists, the optimizers' paths and trl's LM head. The
scratch of CPU kernels is not; the test that compares them lists it with its bytes.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from enum import StrEnum
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _disable_current_modes

from profiler.domain.memory import Category
from profiler.seams.patching import patched
from profiler.simulation.cuda.autocast import AUTOCAST_OPERATIONS, LOWER_PRECISION, autocast_on_meta
from profiler.simulation.tracing.recorder import Recorder

_FLASH = 1
"""torch's number of the flash kernel (`sdp::SDPBackend`)."""


class Choices(StrEnum):
    """The device whose kernel choices the simulation makes."""

    CUDA = "cuda"
    CPU = "cpu"
    """Only for comparisons with a real run on the CPU."""


@contextmanager
def cpu_choices(recorder: Recorder) -> Iterator[None]:
    """While active, kernels for `meta` are chosen as on the CPU instead of as on CUDA."""
    with ExitStack() as stack:
        stack.enter_context(_cpu_optimizers())
        stack.enter_context(_attributed_head(recorder))
        attention = {"scaled_dot_product_attention": _attend}
        stack.enter_context(autocast_on_meta(attention, queried_as="cpu", untouched=_not_autocast()))
        yield


def _cpu_optimizers() -> AbstractContextManager[None]:
    """Fused optimizers on request; foreach never by default, but in gradient clipping, as on the CPU."""

    def with_meta(supported: Callable[[], list[str]]) -> Callable[[], list[str]]:
        return lambda: [*supported(), "meta"]

    fused, foreach = "_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices"
    return patched(
        [
            (torch_optimizer, fused, with_meta(getattr(torch_optimizer, fused))),
            (_foreach_utils, foreach, with_meta(getattr(_foreach_utils, foreach))),
        ]
    )


def _attributed_head(recorder: Recorder) -> AbstractContextManager[None]:
    """Attribute the memory of trl's LM head, which runs without Triton: uncompacted, with float32 copies."""
    from trl.kernels import chunked_logprob  # a script that is not compared may have a trl without it

    head = chunked_logprob.ChunkedLogProbFunction

    def attributed(function: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with recorder.attributed(Category.LOGITS, "trl's fused LM head"):
                return function(*args, **kwargs)

        return staticmethod(run)

    return patched([(head, name, attributed(getattr(head, name))) for name in ("forward", "backward")])


def _not_autocast() -> frozenset[str]:
    """Return the operations that autocast changes on CUDA but not on the CPU, as registered by the installed torch.

    Operations of lower precision are never among them: those missing in the CPU's list (einsum) consist of listed ones.
    """
    registered = torch._C._dispatch_has_kernel_for_dispatch_key
    return frozenset(
        name
        for name in AUTOCAST_OPERATIONS
        if name not in LOWER_PRECISION and not registered(f"aten::{name}", "AutocastCPU")
    )


def _attend(
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
    """Run `aten::scaled_dot_product_attention` by the kernel that torch chooses for CPU tensors of these shapes."""
    with _disable_current_modes():
        chosen = torch._fused_sdp_choice(
            _like(query),
            _like(key),
            _like(value),
            None if attn_mask is None else _like(attn_mask),
            dropout_p,
            is_causal,
            enable_gqa=enable_gqa,
        )
    if chosen != _FLASH or query.device.type != "meta":
        return torch.ops.aten.scaled_dot_product_attention.default(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        blocked = torch.full((), float("-inf"), dtype=query.dtype, device=query.device)
        attn_mask = torch.where(attn_mask, 0.0, blocked)
    output: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
    )[0]
    return output


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Make a CPU tensor of the same shape, strides and type."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
