"""trl's fused LM head on the simulated GPU: the Triton path, with kernels that compute nothing.

The kernels allocate nothing: trl's own Python code around them makes every allocation of the fused head. What else of
trl asks for Triton is used by scripts only (`script/trl_functions.py`).
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from trl.trainer import utils as trl_utils

from profiler.domain.cards.gpu import Chip
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Category
from profiler.domain.trials.kernels import FUSED_HEAD, MissingKernel
from profiler.seams.patching import Patch, patched
from profiler.simulation.cuda.composites import CublasWorkspaces
from profiler.simulation.tracing.recorder import Recorder
from profiler.simulation.tracing.work import product_flops

_KERNELS = "trl.kernels"


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
