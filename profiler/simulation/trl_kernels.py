"""trl's fused LM head on the simulated GPU: the Triton path, with kernels that compute nothing.

The only file that touches `trl.kernels`; a test tells when its names move. The kernels allocate nothing of their own:
what the fused head allocates, trl's own Python code allocates around them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils

from profiler.domain.memory import Category
from profiler.simulation.recorder import Recorder


class _Launch:
    """A compiled Triton kernel: `kernel[grid](...)`."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *_, **__: None


def _accumulate_in_place(acc: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """`acc += a @ b` in float32: on CUDA one cuBLAS call into `acc`, nothing else."""


def _attributed(function: Any, recorder: Recorder) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        with recorder.attributed(Category.LOGITS):
            return function(*args, **kwargs)

    return run


def _attributed_backward(function: Any, recorder: Recorder) -> Any:
    """The fused head's backward, with the weight's gradient attributed as what it is."""

    def run(ctx: Any, *gradients: Any) -> Any:
        with recorder.attributed(Category.LOGITS), _GradientBuffers(recorder, ctx.saved_tensors[1].shape):
            return function(ctx, *gradients)

    return run


class _GradientBuffers:
    """Watches `torch.zeros` for the float32 buffer of the weight's gradient."""

    def __init__(self, recorder: Recorder, weight: torch.Size) -> None:
        self._recorder, self._weight = recorder, weight

    def __enter__(self) -> None:
        self._zeros = torch.zeros

        def zeros(*size: Any, **kwargs: Any) -> torch.Tensor:
            made = self._zeros(*size, **kwargs)
            if made.shape == self._weight:
                self._recorder.attribute([made], Category.GRADIENTS)
            return made

        chunked_logprob.torch = _TorchWith(zeros)

    def __exit__(self, *_: object) -> None:
        chunked_logprob.torch = torch


class _TorchWith:
    """The module torch, but for `zeros`."""

    def __init__(self, zeros: Any) -> None:
        self.zeros = zeros

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def triton_path(recorder: Recorder) -> Iterator[None]:
    """While active, trl scores tokens as it does on a CUDA device."""
    head = chunked_logprob.ChunkedLogProbFunction
    on_gpu = lambda device: device.type == "meta"  # noqa: E731
    replaced: list[tuple[Any, str, Any]] = [
        (chunked_logprob, "_use_triton", on_gpu),
        (trl_utils, "_use_triton", on_gpu),
        (chunked_logprob, "_forward_kernel", _Launch()),
        (chunked_logprob, "_backward_kernel", _Launch()),
        (chunked_logprob, "_addmm_fp32", _accumulate_in_place),
        (chunked_logprob, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b))),
        (head, "forward", staticmethod(_attributed(head.forward, recorder))),
        (head, "backward", staticmethod(_attributed_backward(head.backward, recorder))),
    ]
    originals = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in replaced]
    for owner, name, value in replaced:
        setattr(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in originals:
            setattr(owner, name, value) if value is not None else delattr(owner, name)
