"""Segments that a growing KV cache leaves behind.

`torch.cat` makes each layer's keys (and values) anew at every token, a little longer. From 10 MiB on the allocator
gives such a tensor a segment of its own, a multiple of 2 MiB, unless a free block has room. When the tensors outgrow
their segments they need new ones, and the old ones stay, free and too small for anything that follows: one generation
of segments for each 2 MiB of growth. What prefill has left, its activations and the first keys and values, lies in
large segments in which blocks merge again; tensors that find room there strand nothing.

Source of the rules: `c10/cuda/CUDACachingAllocator.cpp` (`get_allocation_size`, `get_free_block`, `free_block`).
"""

from dataclasses import dataclass

from profiler.analytical.formulas.quantities import Count, larger, smaller, where
from profiler.domain.units import MIB

_OWN_SEGMENT_BYTES = 10 * MIB
_STEP_BYTES = 2 * MIB
_SHARED_SEGMENT_BYTES = 20 * MIB
_MOST_IN_A_SEGMENT = 8
"""Where a segment of prefill holds more tensors than this, all of them find room."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Equal tensors that grow together, a little at every token."""

    tensors: Count
    """Keys and values of all layers."""
    first: Count
    """Bytes of one after prefill."""
    last: Count
    """Bytes of one at the end."""
    arena: Count
    """Bytes that prefill has left in segments in which freed blocks merge."""
    largest: Count
    """Bytes of the largest tensor of prefill, which is the size of those segments."""

    @property
    def room(self) -> Count:
        """Bytes of segments in which the tensors find room without stranding any."""
        return larger(self.arena, smaller(self.last, _OWN_SEGMENT_BYTES) * self.tensors)


def growth_segments_bytes(growth: Growth) -> Count:
    """Segments that stand when the tensors have grown: the room there was, and those of their own.

    By hand, 4 tensors from 10 to 15 MiB, an arena of 40 MiB in segments of 10 MiB: 40 + 168 = 208 MiB.
    """
    return growth.room + own_segments_bytes(growth)


def own_segments_bytes(growth: Growth) -> Count:
    """Segments that the tensors got for themselves alone, outgrown ones included.

    Below 10 MiB tensors share segments of 20 MiB, which are such an arena too. A segment of size g holds m = g // s
    tensors of size s, so of n tensors n - m x arena / g have segments of their own, s rounded up to 2 MiB, a new one
    for every 2 MiB.

    By hand, 4 tensors from 10 to 15 MiB, an arena of 40 MiB in segments of 10 MiB: none of them holds 12 MiB, so 4
    segments each of 12, 14 and 16 MiB: 4 x 42 = 168 MiB.

    Does not hold where something else asks for blocks of these sizes between two tokens, and not for a nearly full
    card, which gives stranded segments back.
    """
    first, last, room = growth.first, growth.last, growth.room
    segment = larger(growth.largest, first, where(first < _OWN_SEGMENT_BYTES, _SHARED_SEGMENT_BYTES, 0))
    highest = (last + _STEP_BYTES - 1) // _STEP_BYTES
    lowest = larger(first + _STEP_BYTES - 1, _OWN_SEGMENT_BYTES - 1) // _STEP_BYTES + 1
    total: Count = 0
    for held in range(_MOST_IN_A_SEGMENT + 1):
        below = segment // (_STEP_BYTES * (held + 1)) + 1
        above = segment // (_STEP_BYTES * held) if held else highest
        start, end = larger(lowest, below), smaller(highest, above)
        count = larger(0, end - start + 1)
        own = larger(0, growth.tensors - held * room // segment)
        total = total + own * _STEP_BYTES * (start + end) * count // 2
    # Of 9 MiB, say, they still share, though 9 MiB rounded up would be 10.
    return where(last < _OWN_SEGMENT_BYTES, 0, total)
