"""Seams of vLLM."""

from profiler.seams.expectations import Exists, Uses
from profiler.seams.seam import Absence, Seam

_ALLOCATOR = "vllm.device_allocator.cumem:CuMemAllocator"
_UNMAPPED = ("measurement/counters/unmapped.py",)

VLLM: tuple[Seam, ...] = (
    Seam(
        owner=_ALLOCATOR,
        name="instance",
        expected=Exists(),
        used_by=_UNMAPPED,
        why="the allocator of sleep mode; absent where vLLM is not installed",
        since="0.31",
        absent_in=Absence.SOME_BUILDS,
    ),
    Seam(
        owner=_ALLOCATOR,
        name="sleep",
        expected=Uses("pointer_to_data", "data.is_asleep"),
        used_by=_UNMAPPED,
        why="wrapped: notes for each segment whether it is unmapped, which torch does not know",
        since="0.31",
        absent_in=Absence.SOME_BUILDS,
    ),
    Seam(
        owner=_ALLOCATOR,
        name="wake_up",
        expected=Uses("pointer_to_data", "data.is_asleep"),
        used_by=_UNMAPPED,
        why="wrapped: maps segments again, at which the counters of a phase begin anew",
        since="0.31",
        absent_in=Absence.SOME_BUILDS,
    ),
    Seam(
        owner=_ALLOCATOR,
        name="use_memory_pool",
        expected=Uses("allocator_and_pools", "snapshot"),
        used_by=_UNMAPPED,
        why="keeps torch's pool of each part, and unmaps segments that torch goes on counting",
        since="0.31",
        absent_in=Absence.SOME_BUILDS,
    ),
)
