"""trl's fused LM head on the simulated GPU: the Triton path, with kernels that compute nothing.

The kernels allocate nothing: trl's own Python code around them makes every allocation of the fused head.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from trl.trainer import utils as trl_utils

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.gpu import Chip
from profiler.domain.kernels import FUSED_HEAD
from profiler.domain.memory import Category
from profiler.seams.patching import patched
from profiler.simulation.cuda.libraries import CublasWorkspaces
from profiler.simulation.tracing.recorder import Recorder
from profiler.simulation.tracing.work import product_flops

_KERNELS = "trl.kernels"


class _Launch:
    """A compiled Triton kernel: `kernel[grid](...)`."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *_, **__: None


def _accumulated(
    recorder: Recorder, workspaces: CublasWorkspaces, chip: Chip
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    """`acc += a @ b` in float32: on CUDA one cuBLAS call into `acc`, nothing else."""

    def accumulate(acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        if a.dtype is torch.bfloat16 and not chip.multiplies_bfloat16_into_float32:
            raise UnsupportedTrialError(
                f"{FUSED_HEAD.name} multiplies into float32 in backward, which torch cannot do on compute capability "
                f"below 8.0. {FUSED_HEAD.hint}"
            )
        workspaces.product()
        if recorder.work is not None:
            # It reads what it adds to.
            recorder.work.product(product_flops(a, b), (acc, a, b, acc))

    return accumulate


def _attributed(function: Any, recorder: Recorder) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.attributed(Category.LOGITS, "trl's fused LM head"):
            return function(*args, **kwargs)

    return run


def triton_path(recorder: Recorder, workspaces: CublasWorkspaces, chip: Chip) -> AbstractContextManager[None]:
    """While active, trl scores tokens as it does on a CUDA device with `chip`."""
    # A script may have a trl from before its fused LM head. A trial is refused then, because the head is a seam.
    if find_spec(_KERNELS) is None:
        return nullcontext()
    from trl.kernels import chunked_logprob

    head = chunked_logprob.ChunkedLogProbFunction
    return patched(
        [
            (chunked_logprob, "_use_triton", _is_gpu),
            (trl_utils, "_use_triton", _is_gpu),
            (chunked_logprob, "_forward_kernel", _Launch()),
            (chunked_logprob, "_backward_kernel", _Launch()),
            (chunked_logprob, "_addmm_fp32", _accumulated(recorder, workspaces, chip)),
            (chunked_logprob, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b))),
            (head, "forward", staticmethod(_attributed(head.forward, recorder))),
            (head, "backward", staticmethod(_attributed(head.backward, recorder))),
        ]
    )


def _is_gpu(device: torch.device) -> bool:
    return device.type == "meta"
