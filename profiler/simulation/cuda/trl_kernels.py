"""trl's Triton paths on the simulated GPU, with kernels that compute nothing: its fused LM head, and what scripts use.

The kernels allocate nothing: trl's own Python code around them makes every allocation.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from trl.trainer import utils as trl_utils

from profiler.domain.cards.gpu import Chip
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Category
from profiler.domain.trials.kernels import DIVERGENCE, FUSED_HEAD, MissingKernel
from profiler.seams.patching import Patch, patched
from profiler.simulation.cuda.composites import CublasWorkspaces
from profiler.simulation.tracing.recorder import Recorder
from profiler.simulation.tracing.work import product_flops

_KERNELS = "trl.kernels"
_DIVERGENCE = "trl.kernels.chunked_divergence"
_LOGPROBS = "trl.kernels.logprob_entropy"
_DISTILLATION = "trl.trainer.distillation_trainer"


def triton_path(recorder: Recorder, products: "Products") -> AbstractContextManager[None]:
    """While active, trl scores tokens as it does on a CUDA device."""
    # A script may have a trl from before its fused LM head. A trial is refused then, because the head is a seam.
    if find_spec(_KERNELS) is None:
        return nullcontext()
    from trl.kernels import chunked_logprob

    return patched(
        [
            (chunked_logprob, "_use_triton", is_gpu),
            (trl_utils, "_use_triton", is_gpu),
            (chunked_logprob, "_forward_kernel", Launch()),
            (chunked_logprob, "_backward_kernel", Launch()),
            (chunked_logprob, "_addmm_fp32", products.accumulate),
            (chunked_logprob, "triton", TRITON),
            *attributed(chunked_logprob.ChunkedLogProbFunction, recorder, "trl's fused LM head"),
            *_logprobs(recorder),
        ]
    )


class Launch:
    """A compiled Triton kernel: `kernel[grid](...)`."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *_, **__: None


TRITON = SimpleNamespace(cdiv=lambda a, b: -(-a // b))
"""What trl's code around the kernels calls of Triton."""


class Products:
    """Matrix products into float32: on CUDA one cuBLAS call into the result, nothing else."""

    def __init__(
        self, recorder: Recorder, workspaces: CublasWorkspaces, chip: Chip, kernel: MissingKernel = FUSED_HEAD
    ) -> None:
        self._recorder = recorder
        self._workspaces = workspaces
        self._chip = chip
        self._kernel = kernel

    def of(self, kernel: MissingKernel) -> "Products":
        """Return the products of another kernel, which a card without them refuses by its name."""
        return Products(self._recorder, self._workspaces, self._chip, kernel)

    def accumulate(self, acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """`acc += a @ b`; it reads what it adds to."""
        self._into_float32("in backward", a, b, (acc, a, b, acc))

    def project(
        self,
        tile: torch.Tensor,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        start: int,
        end: int,
        dtype: torch.dtype,
    ) -> None:
        """Logits of the vocabulary from `start` to `end` into `tile`, [rows, vocabulary] in float32."""
        columns = weight[start:end].to(dtype).t()
        self._into_float32("of a tile of logits", hidden, columns, (tile, hidden, columns))
        if bias is not None:
            tile.add_(bias[start:end].float())

    def _into_float32(self, where: str, a: torch.Tensor, b: torch.Tensor, moved: tuple[torch.Tensor, ...]) -> None:
        if a.dtype is torch.bfloat16 and not self._chip.multiplies_bfloat16_into_float32:
            raise UnsupportedTrialError(
                f"{self._kernel.name} multiplies into float32 {where}, which torch cannot do on compute capability "
                f"below 8.0. {self._kernel.hint}"
            )
        self._workspaces.product()
        if self._recorder.work is not None:
            self._recorder.work.product(product_flops(a, b), moved)


def attributed(function: Any, recorder: Recorder, name: str) -> list[Patch]:
    """Return patches by which the memory of an autograd function belongs to the logits."""

    def within(method: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            with recorder.attributed(Category.LOGITS, name):
                return method(*args, **kwargs)

        return staticmethod(run)

    return [(function, name, within(getattr(function, name))) for name in ("forward", "backward")]


def is_gpu(device: torch.device) -> bool:
    """Return whether a tensor there is on the simulated GPU."""
    return device.type == "meta"


def trl_functions(recorder: Recorder, products: Products) -> list[Patch]:
    """Return the patches by which what scripts use of the installed trl runs as it does on a CUDA device.

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
