"""Seams of bitsandbytes."""

from profiler.seams.seam import Absence, Exists, Expectation, Parameters, Seam

_CUDA = "bitsandbytes.backends.cuda.ops"
_FUNCTIONAL = "bitsandbytes.functional"
_OPERATIONS = "bitsandbytes.functional:torch.ops.bitsandbytes"
"""Registered by the import of bitsandbytes."""

_OPTIMIZERS = "simulation/cuda/optimizers.py"


def _seam(owner: str, name: str, expected: Expectation, used_by: str | tuple[str, ...], why: str) -> Seam:
    files = (used_by,) if isinstance(used_by, str) else used_by
    return Seam(owner=owner, name=name, expected=expected, used_by=files, why=why, since="0.46")


def _since_0_50(name: str, expected: Expectation, why: str) -> Seam:
    """Return a seam of the product with 4-bit weights, which older versions lack: they widened every weight."""
    return Seam(
        owner=_CUDA,
        name=name,
        expected=expected,
        used_by=(_OPTIMIZERS,),
        why=why,
        since="0.50",
        absent_in=Absence.OLDER_VERSIONS,
    )


_OPTIMIZER = (
    _seam(
        _FUNCTIONAL, "get_paged", Parameters("shape", "dtype", "device"), _OPTIMIZERS,
        "allocates managed memory, outside torch's allocator",
    ),
    _seam(
        _FUNCTIONAL, "fill", Parameters("A", "value", "device", "prefetch"), _OPTIMIZERS, "a kernel on paged memory"
    ),
    _seam(
        _FUNCTIONAL, "prefetch_tensor", Parameters("A", "to_cpu"), _OPTIMIZERS, "a call of the driver for paged memory"
    ),
    _seam(
        _FUNCTIONAL, "optimizer_update_8bit_blockwise", Parameters("optimizer_name", "g", "p", "state1", more=True),
        _OPTIMIZERS, "a kernel, which allocates nothing",
    ),
    _seam(
        _FUNCTIONAL, "optimizer_update_32bit", Parameters("optimizer_name", "g", "p", "state1", more=True), _OPTIMIZERS,
        "a kernel, which allocates nothing",
    ),
    _seam(
        "bitsandbytes.optim.optimizer:GlobalOptimManager", "_instance", Exists(), _OPTIMIZERS,
        "which parameters have 32-bit states, by position and address, kept for the life of the process",
    ),
    _seam(
        _FUNCTIONAL, "name2qmap", Exists(), _OPTIMIZERS, "the table of 8-bit values, kept for the life of the process"
    ),
)  # fmt: skip

_PRODUCTS = (
    _since_0_50(
        "_gemm_4bit_use_custom_cuda", Parameters("device_index", "dtype", "M", "N", "K"),
        "the table that decides which products read 4-bit weights directly",
    ),
    _seam(_CUDA, "str2optimizer32bit", Exists(), _OPTIMIZERS, "for which types of gradients an optimizer has a kernel"),
    _since_0_50("_gemm_4bit_custom_max_m", Exists(), "rows above which every product widens its weight"),
    _since_0_50(
        "_gpu_dispatch_props", Parameters("device_index"), "multiprocessors and compute capability of the card"
    ),
    _since_0_50(
        "_dequant_linear_fallback", Parameters("A", "B", "shapeB", "absmax", "blocksize", "quant_type", more=True),
        "the product by a widened weight",
    ),
    _since_0_50(
        "_dequantize_blockwise_impl", Parameters("A", "absmax", "code", "blocksize", "dtype", "out"),
        "a kernel, which allocates nothing",
    ),
    _since_0_50(
        "_dequantize_4bit_impl", Parameters("A", "absmax", "blocksize", "quant_type", "dtype", "out"),
        "a kernel, which allocates nothing",
    ),
    _seam(
        f"{_OPERATIONS}.quantize_4bit", "default", Parameters("A", "blocksize", "quant_type", "quant_storage"),
        _OPTIMIZERS, "makes its scales before its packed values on CUDA",
    ),
    _seam(
        f"{_OPERATIONS}.quantize_blockwise", "default", Parameters("A", "code", "blocksize"), _OPTIMIZERS,
        "makes its scales before its packed values on CUDA",
    ),
    Seam(
        owner=f"{_OPERATIONS}.gemm_4bit",
        name="default",
        expected=Parameters(
            "A", "B", "shapeB", "absmax", "blocksize", "quant_type", "bias", "absmax_8bit", "absmax_code",
            "absmax_offset",
        ),
        used_by=(_OPTIMIZERS,),
        why="the product with 4-bit weights, which gets a kernel of the simulation",
        since="0.50",
        absent_in=Absence.OLDER_VERSIONS,
    ),
    _seam(
        "bitsandbytes.nn.modules:Params4bit", "_quantize", Parameters("self", "device"),
        ("training/models/model.py", "simulation/script/session.py"),
        "quantises one weight that was made on the device",
    ),
    _seam(
        "bitsandbytes.nn.modules:Linear4bit", "_apply", Parameters("self", "fn", "recurse"),
        "simulation/script/session.py", "moves a layer; torch cannot swap its 4-bit weight",
    ),
)  # fmt: skip

BITSANDBYTES: tuple[Seam, ...] = (*_OPTIMIZER, *_PRODUCTS)
