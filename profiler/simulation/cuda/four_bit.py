"""Products with 4-bit weights on the simulated GPU: bitsandbytes reads the weights directly, or widens them first.

The choice depends on the size and on the card, by a table of bitsandbytes that is used here. Before bitsandbytes 0.50
there was no choice: its Python code widened every weight.

On CUDA the code that widens the weight runs under autocast. Therefore the product is a kernel of the same dispatch key
as the simulation's autocast, where autocast is still active.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import bitsandbytes
import torch
from torch.library import Library

from profiler.domain.cards.gpu import Chip
from profiler.seams.checked.owners import bitsandbytes_cuda
from profiler.seams.patching import patched
from profiler.simulation.cuda.autocast import AUTOCAST_KEY
from profiler.simulation.tracing.recorder import Recorder

assert bitsandbytes  # importing it defines the operation
PRODUCT = "gemm_4bit"
"""The name of bitsandbytes' operation."""

MADE_LAST_FIRST = (torch.ops.bitsandbytes.quantize_4bit.default, torch.ops.bitsandbytes.quantize_blockwise.default)
"""On CUDA they make the scales before the packed values (`backends/cuda/ops.py`), but return them after these."""

_chosen: list[Callable[..., torch.Tensor]] = []
"""The product of the current session."""


@contextmanager
def four_bit_products(recorder: Recorder, chip: Chip, others: Collection[Chip]) -> Iterator[None]:
    """While active, products with 4-bit weights run as on `chip`."""
    _register()

    def product(inputs: torch.Tensor, weight: Any, shape: Any, absmax: Any, block_size: int, *rest: Any) -> Any:
        widens = _widens(chip, inputs, shape, block_size)
        recorder.diverged.update(other for other in others if _widens(other, inputs, shape, block_size) != widens)
        if widens:
            return _by_a_widened_weight(inputs, weight, shape, absmax, block_size, *rest)
        inputs.contiguous()
        return inputs.new_empty((*inputs.shape[:-1], shape[0]))

    _chosen.append(product)
    try:
        # bitsandbytes keeps its map of 8-bit values as long as the process, which on a card runs one trial.
        with patched([(bitsandbytes.functional, "name2qmap", {})]):
            yield
    finally:
        _chosen.pop()


@cache
def _register() -> Library | None:
    """Register the kernel, once per process: it lives as long as the returned library."""
    if not hasattr(torch.ops.bitsandbytes, PRODUCT):
        return None
    library = Library("bitsandbytes", "IMPL")
    library.impl(PRODUCT, lambda *args: _chosen[-1](*args), AUTOCAST_KEY)
    return library


def _widens(chip: Chip, inputs: torch.Tensor, shape: tuple[int, int], block_size: int) -> bool:
    """Whether the weight is widened to the type of the inputs: for many rows, by a table per family of cards."""
    operators: Any = bitsandbytes_cuda()
    outputs, width = shape
    rows = inputs.numel() // width
    if rows > operators._gemm_4bit_custom_max_m or width % block_size:
        return True
    with patched([(operators, "_gpu_dispatch_props", _properties)]):
        # The first argument is only passed on to the function that is replaced here.
        return not operators._gemm_4bit_use_custom_cuda(chip, inputs.dtype, rows, outputs, width)


def _properties(chip: Chip) -> tuple[int, int, int]:
    return chip.multiprocessors, *chip.compute_capability


def _by_a_widened_weight(*args: Any) -> Any:
    operators: Any = bitsandbytes_cuda()
    names = ("_dequantize_blockwise_impl", "_dequantize_4bit_impl")
    with patched([(operators, name, _no_kernel) for name in names]):
        return operators._dequant_linear_fallback(*args)


def _no_kernel(*_: Any, **__: Any) -> None:
    """A kernel that writes into a tensor of its caller."""
