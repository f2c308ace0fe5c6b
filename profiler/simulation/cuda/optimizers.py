"""Kernels of optimizers and of 4-bit weights on the simulated GPU: those of torch for CUDA, and of bitsandbytes.

The only file that uses their private names; a test fails if they move.

Products with 4-bit weights: bitsandbytes reads the weights directly, or widens them first, by size and card, as a table
of bitsandbytes says that is used here. Before bitsandbytes 0.50 its Python code widened every weight.

On CUDA the code that widens the weight runs under autocast. Therefore the product is a kernel of the same dispatch key
as the simulation's autocast, where autocast is still active.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any, TypeAlias

import bitsandbytes
import bitsandbytes.functional as bnb_functional
import bitsandbytes.optim.optimizer as bnb_optimizer
import torch
from torch.library import Library
from torch.nn.utils import clip_grad
from torch.optim import optimizer as torch_optimizer
from torch.utils import _foreach_utils

from profiler.domain.cards.gpu import Chip
from profiler.domain.trials.optimizers import Kernels
from profiler.seams.checked import bitsandbytes_cuda
from profiler.seams.patching import patched
from profiler.simulation.cuda.autocast import AUTOCAST_KEY, autocast_dtype
from profiler.simulation.cuda.composites import CublasWorkspaces
from profiler.simulation.cuda.scratch.deferred_scratch import Rule, ScratchCall, Sizes
from profiler.simulation.tracing.recorder import Recorder

Patch: TypeAlias = tuple[Any, str, Any]
"""Owner, name, and what takes its place."""


def _with_meta(supported: Any) -> Any:
    return lambda: [*supported(), "meta"]


def _managed(*shape: int, dtype: torch.dtype = torch.float32, **_: Any) -> torch.Tensor:
    """Return a paged state. It is in CUDA managed memory, outside torch's allocator: here on the host, not counted."""
    state = torch.empty(0, dtype=dtype, device="cpu").set_(
        torch.empty(0, dtype=dtype, device="cpu").untyped_storage(), 0, (0,), (1,)
    )
    state.is_paged = True  # type: ignore[attr-defined]
    state.page_deviceid = 0  # type: ignore[attr-defined]
    return state


def _no_kernel(*_: Any, **__: Any) -> None:
    """Do nothing: the kernel updates in place and allocates nothing."""


def _update_32bit(optimizer_name: str, gradient: torch.Tensor, *_: Any, **__: Any) -> None:
    """Update in place; raise `ValueError` without a kernel for the gradient's type, as RMSprop for bfloat16."""
    # Three: for float32, float16 and bfloat16 (`backends/cuda/ops.py`).
    if gradient.dtype is torch.bfloat16 and len(bitsandbytes_cuda().str2optimizer32bit[optimizer_name]) < 3:
        raise ValueError(f"bitsandbytes has no kernel of {optimizer_name} for gradients in bfloat16")


def _torch_patches() -> Sequence[Patch]:
    """Let torch choose its fused and foreach kernels for `meta`, as it does for CUDA."""
    return [
        (module, name, _with_meta(getattr(module, name)))
        for module in (torch_optimizer, _foreach_utils, clip_grad)
        for name in ("_get_fused_kernels_supported_devices", "_get_foreach_kernels_supported_devices")
        if hasattr(module, name)
    ]


def _bitsandbytes_patches() -> Sequence[Patch]:
    """Replace the kernels of bitsandbytes, and the managed memory of its paged states."""
    return [
        (bnb_functional, "get_paged", _managed),
        (bnb_functional, "fill", _no_kernel),
        (bnb_functional, "prefetch_tensor", _no_kernel),
        (bnb_functional, "optimizer_update_8bit_blockwise", _no_kernel),
        (bnb_functional, "optimizer_update_32bit", _update_32bit),
        # It keeps which parameters have 32-bit states by their position and address, for the life of the process.
        (bnb_optimizer.GlobalOptimManager, "_instance", None),
    ]


PATCHES: Mapping[Kernels, Callable[[], Sequence[Patch]]] = {
    Kernels.TORCH: _torch_patches,
    Kernels.BITSANDBYTES: _bitsandbytes_patches,
}
"""By library of kernels. Every library that `profiler.domain.trials.optimizers` names has an entry."""


def cuda_optimizers() -> AbstractContextManager[None]:
    """While active, optimizers take the paths for `meta` that they take for CUDA."""
    return patched([patch for patches in PATCHES.values() for patch in patches()])


assert bitsandbytes  # importing it defines the operation
PRODUCT = "gemm_4bit"
"""The name of bitsandbytes' operation."""

MADE_LAST_FIRST = (torch.ops.bitsandbytes.quantize_4bit.default, torch.ops.bitsandbytes.quantize_blockwise.default)
"""On CUDA they make the scales before the packed values (`backends/cuda/ops.py`), but return them after these."""

_chosen: list[Callable[..., torch.Tensor]] = []
"""The product of the current session."""


@contextmanager
def four_bit_products(
    recorder: Recorder,
    chip: Chip,
    others: Collection[Chip],
    *,
    workspaces: CublasWorkspaces,
    run_alone: Callable[[Callable[..., object]], Rule],
) -> Iterator[None]:
    """While active, products with 4-bit weights run as on `chip`.

    Args:
        recorder: Keeps the trace.
        chip: The simulated chip.
        others: Other chips that the run covers.
        workspaces: Those of cuBLAS, for products that are left open.
        run_alone: Returns the rule of a part of the program.
    """
    _register()

    def product(inputs: torch.Tensor, weight: Any, shape: Any, absmax: Any, block_size: int, *rest: Any) -> Any:
        widens = _widens(chip, inputs, shape, block_size)
        recorder.diverged.update(other for other in others if _widens(other, inputs, shape, block_size) != widens)
        arguments = (inputs, weight, shape, absmax, block_size, *rest)
        if recorder.leaves_scratch_open and inputs.is_contiguous() and autocast_dtype() in (None, inputs.dtype):
            rule = _of_chosen_kernel(run_alone(_by_a_widened_weight))
            call = ScratchCall.of(rule, chip, arguments, {"autocast": autocast_dtype()})
            recorder.deferred(call)
            result = inputs.new_empty((*inputs.shape[:-1], shape[0]))
            if widens:
                workspaces.product(with_bias=len(rest) > 1 and rest[1] is not None)
            recorder.deferred(call.end)
            return result
        if widens:
            return _by_a_widened_weight(*arguments)
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


@cache
def _of_chosen_kernel(widened: Rule) -> Rule:
    """Return what a product takes in addition to its result: a widened weight if many rows read it, or nothing."""
    kept: dict[ScratchCall, Sizes] = {}

    def rule(arguments: Any, kwargs: Any, chip: Chip) -> Sizes:
        inputs, _, shape, _, block_size = arguments[:5]
        if not _widens(chip, inputs, shape, block_size):
            return (), (), ()
        # It is the same for one row, so it runs once.
        row = inputs.new_empty((*[1] * (inputs.dim() - 1), inputs.shape[-1]))
        call = ScratchCall.of(widened, chip, (row, *arguments[1:]), kwargs)
        if call not in kept:
            kept[call] = call.sizes()
        return kept[call]

    return rule


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
    with patched([(operators, name, _no_product_kernel) for name in names]):
        return operators._dequant_linear_fallback(*args)


def _no_product_kernel(*_: Any, **__: Any) -> None:
    """A kernel that writes into a tensor of its caller."""
