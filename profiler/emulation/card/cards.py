"""Cards as the emulated driver reports them: their facts as CUDA and NVML name them."""

from dataclasses import replace

from profiler.domain.cards.capabilities import shared_memory
from profiler.domain.cards.card import Board
from profiler.domain.cards.context import cuda_context_bytes
from profiler.domain.cards.gpu import Gpu
from profiler.domain.units import KIB, MIB

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
    board = gpu.board or _unknown_board(gpu)
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


def _unknown_board(gpu: Gpu) -> Board:
    """Return the board of a card that is not in the table, such as a measured one: no part is the driver's own."""
    return Board(nvml_mib=gpu.memory_bytes // MIB, l2_kib=40_960, bus_bits=384, counts_errors=False)
