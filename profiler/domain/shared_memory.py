"""Shared memory of the multiprocessors of a card."""

from dataclasses import dataclass

from profiler.domain.units import KIB


@dataclass(frozen=True, kw_only=True)
class SharedMemory:
    """Shared memory of one compute capability."""

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


SHARED_MEMORY = {
    (7, 0): SharedMemory(per_multiprocessor_kib=96, reserved_per_block_kib=0),
    (7, 5): SharedMemory(per_multiprocessor_kib=64, reserved_per_block_kib=0),
    (8, 0): SharedMemory(per_multiprocessor_kib=164),
    (8, 6): SharedMemory(per_multiprocessor_kib=100),
    (8, 9): SharedMemory(per_multiprocessor_kib=100),
    (9, 0): SharedMemory(per_multiprocessor_kib=228),
    (10, 0): SharedMemory(per_multiprocessor_kib=228),
    (10, 3): SharedMemory(per_multiprocessor_kib=228),
    (12, 0): SharedMemory(per_multiprocessor_kib=100),
    (12, 1): SharedMemory(per_multiprocessor_kib=100),
}
"""By compute capability. Source: CUDA C++ Programming Guide, table of technical specifications. It decides which
configurations Triton compiles and which attention kernels fit."""


def shared_memory(capability: tuple[int, int]) -> SharedMemory:
    """Return that of the capability, or of the nearest lower one."""
    known = [each for each in SHARED_MEMORY if each <= capability] or [min(SHARED_MEMORY)]
    return SHARED_MEMORY[max(known)]
