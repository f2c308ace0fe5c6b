"""Compute capabilities, one row each: what cards of one generation have in common; and the cards that were measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from profiler.domain.memory import KIB, MIB

_Fact = TypeVar("_Fact")


@dataclass(frozen=True, kw_only=True)
class SharedMemory:
    """Shared memory of the multiprocessors of one compute capability."""

    per_multiprocessor_kib: int
    reserved_per_block_kib: int = 1
    """The part that a kernel cannot ask for."""

    @property
    def per_multiprocessor_bytes(self) -> int:
        """All of it."""
        return self.per_multiprocessor_kib * KIB

    @property
    def per_block_bytes(self) -> int:
        """The most that a kernel can ask for."""
        return (self.per_multiprocessor_kib - self.reserved_per_block_kib) * KIB


@dataclass(frozen=True, kw_only=True)
class NcclMemory:
    """What NCCL takes of each card for a group of GPUs, outside of torch's allocator. ASSUMED, as `card.nccl_bytes`."""

    of_two_bytes: int
    of_more_bytes: int
    """Of a group of more than two: rings and trees have two neighbours, however many GPUs there are."""
    source: str
    """Where it was measured, or counted."""


@dataclass(frozen=True, kw_only=True)
class Capability:
    """What is known of one compute capability. None: as of the nearest lower one that has it.

    Source of threads and shared memory: CUDA C++ Programming Guide, table of technical specifications.
    """

    version: tuple[int, int]
    """(major, minor)."""
    threads_per_multiprocessor: int | None = None
    """Most resident threads of one multiprocessor."""
    shared_memory: SharedMemory | None = None
    """It decides which configurations Triton compiles and which attention kernels fit."""
    context_bytes: int | None = None
    """ASSUMED bytes of the CUDA context, as `card.cuda_context_bytes` explains."""
    context_source: str = ""
    """Where it was measured; or in use - allocated - reserved in an out-of-memory message, and where it was printed."""
    nccl: NcclMemory | None = None
    """Of a group of these cards."""
    large_workspace_since: tuple[int, int] | None = None
    """The first torch with the large workspace of cuBLAS; None: no torch has it. Sources: `card.py`."""


_NCCL_CONNECTION_BYTES = 4 * MIB + 640 * 120 * 8 * 8 + 512 * 8 * 8 * 16
"""The buffers of one connection: 4 MiB (`NCCL_BUFFSIZE`) and those of the protocols LL128 and LL, in all 9,633,792 B.

Source: NCCL 2.21, `ncclParamBuffSize` and `computeBuffSizes` in `src/init.cc`, `src/include/device.h`; its host buffers
of 9,641,984 B, with a page for a connection's head, in tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark#8.
"""

_WITHOUT_NVLINK = NcclMemory(
    of_two_bytes=2 * _NCCL_CONNECTION_BYTES,
    of_more_bytes=2 * 2 * _NCCL_CONNECTION_BYTES,
    source="counted: 2 channels, as a log of NCCL shows (ultralytics/ultralytics#12905), without NCCL's kernels",
)
"""Two channels with the buffers of one neighbour, or of two."""

_WITH_NVLINK = NcclMemory(
    of_two_bytes=544 * MIB,
    of_more_bytes=688 * MIB,
    source="groups of 2, 3 and 4 A100 with NVLink after an all-reduce of 4 MB (NVIDIA/nccl#964)",
)

CAPABILITIES = (
    Capability(
        version=(0, 0),
        nccl=_WITHOUT_NVLINK,
        threads_per_multiprocessor=1024,
        shared_memory=SharedMemory(per_multiprocessor_kib=96, reserved_per_block_kib=0),
        context_bytes=501 * MIB,
        context_source="of cards that torch 2.13 does not support: as 7.0",
    ),
    Capability(
        version=(7, 0),
        nccl=_WITH_NVLINK,
        threads_per_multiprocessor=2048,
        shared_memory=SharedMemory(per_multiprocessor_kib=96, reserved_per_block_kib=0),
        context_bytes=501 * MIB,
        context_source="no message; as 8.0",
    ),
    Capability(
        version=(7, 5),
        nccl=_WITHOUT_NVLINK,
        threads_per_multiprocessor=1024,
        shared_memory=SharedMemory(per_multiprocessor_kib=64, reserved_per_block_kib=0),
        context_bytes=135 * MIB,
        context_source="4.11 GiB - 3.72 GiB - 264.21 MiB, T4 (Zheng-Chong/CatVTON#133)",
    ),
    Capability(
        version=(8, 0),
        nccl=_WITH_NVLINK,
        threads_per_multiprocessor=2048,
        shared_memory=SharedMemory(per_multiprocessor_kib=164),
        context_bytes=501 * MIB,
        context_source="14.25 GiB - 12.87 GiB - 912.01 MiB, A100 40 GB (TianheWu/CoSeR#10)",
    ),
    Capability(
        version=(8, 6),
        nccl=_WITHOUT_NVLINK,
        threads_per_multiprocessor=1536,
        shared_memory=SharedMemory(per_multiprocessor_kib=100),
        context_bytes=257 * MIB,
        context_source="9.43 GiB - 9.04 GiB - 142.12 MiB, 10 GB card (bcmi/libcom#54)",
    ),
    Capability(
        version=(8, 9),
        nccl=_WITHOUT_NVLINK,
        threads_per_multiprocessor=1536,
        shared_memory=SharedMemory(per_multiprocessor_kib=100),
        context_bytes=484 * MIB,
        context_source=(
            "between 23.47 GiB - 23.01 GiB - 10.46 MiB, RTX 4090 (WorldGen#25), and 0.50 GiB, "
            "L40 (QwenLM/Qwen3-VL#2097)"
        ),
    ),
    Capability(
        version=(9, 0),
        nccl=_WITH_NVLINK,
        threads_per_multiprocessor=2048,
        shared_memory=SharedMemory(per_multiprocessor_kib=228),
        context_bytes=808_255_488,
        context_source=(
            "measured in 56 of 61 trials on an H200 and in 23 of 25 on an H100 (results/reference); a "
            "message about an H100 NVL has 676 MiB: "
            "91.91 GiB - 86.10 GiB - 5.15 GiB (ali-vilab/VACE#56)"
        ),
        large_workspace_since=(2, 0),
    ),
    Capability(
        version=(10, 0),
        threads_per_multiprocessor=2048,
        shared_memory=SharedMemory(per_multiprocessor_kib=228),
        context_source="no message; as 9.0",
        large_workspace_since=(2, 12),
    ),
    Capability(
        version=(10, 3),
        threads_per_multiprocessor=2048,
        shared_memory=SharedMemory(per_multiprocessor_kib=228),
        large_workspace_since=(2, 12),
    ),
    Capability(version=(11, 0), large_workspace_since=(2, 14)),
    Capability(
        version=(12, 0),
        nccl=_WITHOUT_NVLINK,
        threads_per_multiprocessor=1536,
        shared_memory=SharedMemory(per_multiprocessor_kib=100),
        context_bytes=595 * MIB,
        context_source="31.34 GiB - 30.74 GiB - 19.41 MiB, RTX 5090 (Wan-Video/Wan2.1#465)",
        large_workspace_since=(2, 12),
    ),
    Capability(
        version=(12, 1),
        threads_per_multiprocessor=1536,
        shared_memory=SharedMemory(per_multiprocessor_kib=100),
        large_workspace_since=(2, 12),
    ),
)
"""In ascending order. The first row is for all cards below the second."""


def nearest_lower(capability: tuple[int, int], fact: Callable[[Capability], _Fact | None]) -> _Fact:
    """Return a fact of the compute capability, or of the nearest lower one that has it."""
    facts = (fact(row) for row in reversed(CAPABILITIES) if row.version <= capability)
    return next(found for found in facts if found is not None)


def shared_memory(capability: tuple[int, int]) -> SharedMemory:
    """Return that of the capability, or of the nearest lower one."""
    return nearest_lower(capability, lambda row: row.shared_memory)


def large_workspace_since(capability: tuple[int, int]) -> tuple[int, int] | None:
    """Return the first torch with the large workspace of cuBLAS; None if no torch has it, or the generation is unknown.

    Cards of one major version are alike in that.
    """
    same = [row for row in CAPABILITIES if row.version[0] == capability[0] and row.version <= capability]
    return same[-1].large_workspace_since if same else None


# ---- real cards on which trials were measured, and how far each method was from them ---------------------------------


@dataclass(frozen=True, kw_only=True)
class Within:
    """95th percentile of the absolute errors of one method; 0.01 is 1 %."""

    trials: int
    allocated_p95_ratio: float
    reserved_p95_ratio: float


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Trials that ended well on real cards: trl's GRPO, SFT, DPO, KTO and reward models on one GPU, without vLLM."""

    cards: Mapping[str, int]
    """How many were met, by kind."""
    simulated: Within
    """By the code before each card was met."""
    estimated: Within
    """With the bound of reserved memory, as tables of many trials have it."""
    replayed: Within
    """With the replay of reserved memory, as the estimate of one trial has it. It was written after the cards were met,
    by simulated trials."""


COMPARED = Compared(
    cards={"NVIDIA H200": 4, "NVIDIA H100 80GB HBM3": 1},
    simulated=Within(trials=205, allocated_p95_ratio=0.00027777, reserved_p95_ratio=0.01484684),
    estimated=Within(trials=205, allocated_p95_ratio=0.01445229, reserved_p95_ratio=0.11252592),
    replayed=Within(trials=203, allocated_p95_ratio=0.01384953, reserved_p95_ratio=0.04684944),
)
"""Kept rows: `rows.csv` of `results/reference/h200`, `h200_second`, `h200_third`, `h100` and `h200_fourth`."""
