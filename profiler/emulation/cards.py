"""Cards as the emulated driver reports them: what `Gpu` says, and what CUDA and NVML say beyond it."""

from dataclasses import dataclass, replace

from profiler.domain.capabilities import shared_memory
from profiler.domain.context import cuda_context_bytes
from profiler.domain.gpu import Gpu
from profiler.domain.units import KIB, MIB


@dataclass(frozen=True, kw_only=True)
class _Board:
    """What NVML and the properties of a card say beyond `Gpu`; none of it decides an allocation."""

    nvml_mib: int
    """Total of NVML, as `nvidia-smi` prints it."""
    l2_kib: int
    bus_bits: int
    counts_errors: bool
    """Whether the card counts memory errors (ECC)."""


_BOARDS = {
    "h100-80gb": _Board(nvml_mib=81_559, l2_kib=51_200, bus_bits=5120, counts_errors=True),
    "h200-141gb": _Board(nvml_mib=143_771, l2_kib=61_440, bus_bits=6144, counts_errors=True),
    "b200-180gb": _Board(nvml_mib=183_359, l2_kib=129_536, bus_bits=8192, counts_errors=True),
    "a100-40gb": _Board(nvml_mib=40_960, l2_kib=40_960, bus_bits=5120, counts_errors=True),
    "a100-80gb": _Board(nvml_mib=81_920, l2_kib=40_960, bus_bits=5120, counts_errors=True),
    "l40s-48gb": _Board(nvml_mib=46_068, l2_kib=98_304, bus_bits=384, counts_errors=True),
    "rtx-4090-24gb": _Board(nvml_mib=24_564, l2_kib=73_728, bus_bits=384, counts_errors=False),
    "rtx-5090-32gb": _Board(nvml_mib=32_607, l2_kib=98_304, bus_bits=512, counts_errors=False),
    "t4-16gb": _Board(nvml_mib=15_360, l2_kib=4096, bus_bits=256, counts_errors=True),
    "rtx-3080-laptop-16gb": _Board(nvml_mib=16_384, l2_kib=4096, bus_bits=256, counts_errors=False),
    "rtx-3060-12gb": _Board(nvml_mib=12_288, l2_kib=3072, bus_bits=192, counts_errors=False),
    "rtx-3090-24gb": _Board(nvml_mib=24_576, l2_kib=6144, bus_bits=384, counts_errors=False),
    "rtx-4060-ti-16gb": _Board(nvml_mib=16_380, l2_kib=32_768, bus_bits=128, counts_errors=False),
    "rtx-4070-12gb": _Board(nvml_mib=12_282, l2_kib=36_864, bus_bits=192, counts_errors=False),
    "rtx-4080-16gb": _Board(nvml_mib=16_376, l2_kib=65_536, bus_bits=256, counts_errors=False),
    "rtx-5080-16gb": _Board(nvml_mib=16_303, l2_kib=65_536, bus_bits=256, counts_errors=False),
    "rtx-a6000-48gb": _Board(nvml_mib=49_140, l2_kib=6144, bus_bits=384, counts_errors=False),
    "rtx-6000-ada-48gb": _Board(nvml_mib=46_068, l2_kib=98_304, bus_bits=384, counts_errors=True),
    "rtx-pro-6000-96gb": _Board(nvml_mib=97_887, l2_kib=131_072, bus_bits=512, counts_errors=True),
    "a10g-24gb": _Board(nvml_mib=23_028, l2_kib=6144, bus_bits=384, counts_errors=True),
    "a40-48gb": _Board(nvml_mib=46_068, l2_kib=6144, bus_bits=384, counts_errors=True),
    "l4-24gb": _Board(nvml_mib=23_034, l2_kib=49_152, bus_bits=192, counts_errors=True),
    "l40-48gb": _Board(nvml_mib=46_068, l2_kib=98_304, bus_bits=384, counts_errors=True),
    "v100-16gb": _Board(nvml_mib=16_160, l2_kib=6144, bus_bits=4096, counts_errors=True),
    "v100-32gb": _Board(nvml_mib=32_768, l2_kib=6144, bus_bits=4096, counts_errors=True),
    "h100-pcie-80gb": _Board(nvml_mib=81_559, l2_kib=51_200, bus_bits=5120, counts_errors=True),
    "h100-nvl-94gb": _Board(nvml_mib=95_830, l2_kib=51_200, bus_bits=6016, counts_errors=True),
    "h20-96gb": _Board(nvml_mib=97_871, l2_kib=61_440, bus_bits=6144, counts_errors=True),
    "gh200-96gb": _Board(nvml_mib=97_871, l2_kib=51_200, bus_bits=6144, counts_errors=True),
    "b300-288gb": _Board(nvml_mib=275_040, l2_kib=129_536, bus_bits=8192, counts_errors=True),
    "dgx-spark-128gb": _Board(nvml_mib=122_548, l2_kib=24_576, bus_bits=256, counts_errors=False),
}
"""By our name of the card. Sources: the vendor's data sheets, and `nvidia-smi` in public logs. A DGX Spark has no
total in NVML, because the CPU uses the same memory."""


UNLIMITED_BYTES = 1 << 42
"""More memory than any program takes. Not more than 4 TiB: with expandable segments torch reserves addresses for more
than a whole card, several times."""


def unlimited(gpu: Gpu) -> Gpu:
    """Return the card with more memory than any program takes."""
    return replace(gpu, memory_bytes=UNLIMITED_BYTES)


def card_description(gpu: Gpu) -> str:
    """Return a card as the emulated driver reads it: ``"name=...;memory_bytes=...;..."``."""
    major, minor = gpu.compute_capability
    shared = shared_memory(gpu.compute_capability)
    board = _BOARDS.get(gpu.name) or _unknown_board(gpu)
    fields = {
        "name": gpu.title.replace(";", ","),
        "memory_bytes": gpu.memory_bytes,
        "nvml_memory_bytes": max(board.nvml_mib * MIB, gpu.memory_bytes),
        "context_bytes": cuda_context_bytes(gpu.compute_capability),
        "capability_major": major,
        "capability_minor": minor,
        "multiprocessors": gpu.chip.multiprocessors,
        "shared_per_multiprocessor": shared.per_multiprocessor_bytes,
        "shared_per_block": shared.per_block_bytes,
        "l2_cache_bytes": board.l2_kib * KIB,
        "threads_per_multiprocessor": gpu.chip.threads_per_multiprocessor,
        "bus_bits": board.bus_bits,
        "ecc": int(board.counts_errors),
    }
    return ";".join(f"{key}={value}" for key, value in fields.items())


def _unknown_board(gpu: Gpu) -> _Board:
    """Return the board of a card that is not in the table, such as a measured one: no part is the driver's own."""
    return _Board(nvml_mib=gpu.memory_bytes // MIB, l2_kib=40_960, bus_bits=384, counts_errors=False)
