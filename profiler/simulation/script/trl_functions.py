"""Functions of trl that scripts use, by their Triton paths: divergence from a teacher, and selected log-probabilities.

`cuda/trl_kernels.py` has the fused LM head, which trials use too, and what the paths have in common.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from trl.trainer import utils as trl_utils

from profiler.domain.trials.kernels import DIVERGENCE
from profiler.seams.patching import Patch
from profiler.simulation.cuda.trl_kernels import TRITON, Launch, Products, attributed, is_gpu
from profiler.simulation.tracing.recorder import Recorder

_DIVERGENCE = "trl.kernels.chunked_divergence"
_LOGPROBS = "trl.kernels.logprob_entropy"
_DISTILLATION = "trl.trainer.distillation_trainer"


def trl_functions(recorder: Recorder, products: Products) -> list[Patch]:
    """Return the patches by which functions of the installed trl run as they do on a CUDA device.

    It imports the functions, so call it before others of trl are replaced.
    """
    return [*_divergence(recorder, products), *_logprobs(recorder)]


def _divergence(recorder: Recorder, products: Products) -> list[Patch]:
    """Return the patches of trl's distillation, if this trl computes it without logits."""
    if find_spec(_DIVERGENCE) is None:
        return []
    kernels, trainer = import_module(_DIVERGENCE), sys.modules.get(_DISTILLATION)
    products = products.of(DIVERGENCE)
    return [
        (kernels, "_use_triton", is_gpu),
        # A trainer that is imported later takes the function of the fused LM head, which is replaced by then.
        *([] if trainer is None else [(trainer, "_use_triton", is_gpu)]),
        *((kernels, name, Launch()) for name in ("_stats_kernel", "_jsd_kernel", "_backward_kernel")),
        (kernels, "_addmm_fp32", products.accumulate),
        (kernels, "_project", products.project),
        (kernels, "triton", TRITON),
        *attributed(kernels.ChunkedDivergenceFunction, recorder, "trl's divergence from the teacher"),
    ]


def _logprobs(recorder: Recorder) -> list[Patch]:
    """Return the patches of `selective_log_softmax` and its relatives, if this trl has kernels for them."""
    if find_spec(_LOGPROBS) is None or not hasattr(trl_utils, "_supports_trl_loss_kernel"):
        return []
    kernels, supports = _imported_without_triton(_LOGPROBS), trl_utils._supports_trl_loss_kernel

    def supports_on_gpu(*tensors: torch.Tensor | None, **named: torch.Tensor | None) -> bool:
        return bool(supports(*map(_on_cuda, tensors), **{name: _on_cuda(one) for name, one in named.items()}))

    return [
        (trl_utils, "is_triton_available", lambda: True),
        (trl_utils, "_supports_trl_loss_kernel", supports_on_gpu),
        (trl_utils, "_fused_logprob_entropy", kernels.selective_log_softmax_and_entropy),
        (kernels, "_forward_kernel", Launch()),
        (kernels, "_backward_kernel", Launch()),
        (kernels, "triton", TRITON),
        *attributed(kernels._LogProbEntropyFunction, recorder, "trl's log-probabilities"),
    ]


def _on_cuda(tensor: torch.Tensor | None) -> Any:
    """Return what trl asks of a tensor to decide, as if it were on the card."""
    if tensor is None or not is_gpu(tensor.device):
        return tensor
    asked = {name: getattr(tensor, name) for name in ("dtype", "ndim", "shape", "stride")}
    return SimpleNamespace(device=torch.device("cuda", 0), **asked)


def _imported_without_triton(name: str) -> ModuleType:
    """Import a module of trl that imports Triton, with an empty one in its place where it is not installed."""
    if find_spec("triton") is not None:
        return import_module(name)
    with _empty_triton():
        return import_module(name)


@contextmanager
def _empty_triton() -> Iterator[None]:
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    language.constexpr = object  # type: ignore[attr-defined]
    triton.language, triton.jit = language, lambda kernel: kernel  # type: ignore[attr-defined]
    sys.modules |= {"triton": triton, "triton.language": language}
    try:
        yield
    finally:
        del sys.modules["triton"], sys.modules["triton.language"]
