"""KV-cache fragmentation: segments that a growing KV cache outgrows and that stay reserved.

`torch.cat` copies the keys (and the values) of each layer at every token into a tensor that is a little longer. From
10 MiB on, such a tensor gets a segment of its own, a multiple of 2 MiB, unless it fits a free block. Tensors that
outgrow their segments get new ones; the old segments stay reserved, free, and too small for the tensors that follow:
one generation of segments per 2 MiB of growth. The activations and the first keys and values of prefill leave large
segments behind, in which blocks merge again; tensors that fit there cause no fragmentation.

Source of the rules: `c10/cuda/CUDACachingAllocator.cpp` (`get_allocation_size`, `get_free_block`, `free_block`).
"""

from dataclasses import dataclass

from profiler.analytical.formulas.sizes.quantities import Count, larger, smaller, where
from profiler.domain.units import MIB

_OWN_SEGMENT_BYTES = 10 * MIB
_STEP_BYTES = 2 * MIB
_SHARED_SEGMENT_BYTES = 20 * MIB
_MOST_IN_A_SEGMENT = 8
"""If a segment of prefill holds more tensors than this, all tensors fit into the segments of prefill."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Growth of the KV cache: tensors of equal size that grow by one token at a time."""

    tensors: Count
    """Number of tensors: keys and values of all layers."""
    first: Count
    """Bytes of one tensor after prefill."""
    last: Count
    """Bytes of one tensor at the end of the rollout."""
    arena: Count
    """Bytes of the segments that prefill leaves behind, in which freed blocks merge."""
    largest: Count
    """Bytes of the largest tensor of prefill, which is the size of these segments."""

    @property
    def shared(self) -> Count:
        """Bytes of the segments that tensors share, which do not fragment."""
        return larger(self.arena, smaller(self.last, _OWN_SEGMENT_BYTES) * self.tensors)


def growth_segments_bytes(growth: Growth) -> Count:
    """Return the bytes of all segments at the end of the growth: shared ones, and those of single tensors.

    By hand, 4 tensors from 10 to 15 MiB, an arena of 40 MiB in segments of 10 MiB: 40 + 168 = 208 MiB.
    """
    return growth.shared + own_segments_bytes(growth)


def own_segments_bytes(growth: Growth) -> Count:
    """Return the bytes of segments that hold a single tensor of the cache, outgrown ones included.

    Tensors below 10 MiB share segments of 20 MiB, which count as an arena too. A shared segment of size g holds
    m = g // s tensors of size s. Of n tensors, n - m x arena / g have segments of their own: s rounded up to 2 MiB, and
    a new one per 2 MiB of growth.

    By hand, 4 tensors from 10 to 15 MiB, an arena of 40 MiB in segments of 10 MiB: none of these holds 12 MiB, so there
    are 4 segments each of 12, 14 and 16 MiB: 4 x 42 = 168 MiB.

    Does not hold if other blocks of these sizes are allocated between two tokens, nor on a nearly full card, where the
    allocator releases outgrown segments.
    """
    first, last, shared = growth.first, growth.last, growth.shared
    segment = larger(growth.largest, first, where(first < _OWN_SEGMENT_BYTES, _SHARED_SEGMENT_BYTES, 0))
    highest = (last + _STEP_BYTES - 1) // _STEP_BYTES
    lowest = larger(first + _STEP_BYTES - 1, _OWN_SEGMENT_BYTES - 1) // _STEP_BYTES + 1
    total: Count = 0
    for held in range(_MOST_IN_A_SEGMENT + 1):
        below = segment // (_STEP_BYTES * (held + 1)) + 1
        above = segment // (_STEP_BYTES * held) if held else highest
        start, end = larger(lowest, below), smaller(highest, above)
        count = larger(0, end - start + 1)
        own = larger(0, growth.tensors - held * shared // segment)
        total = total + own * _STEP_BYTES * (start + end) * count // 2
    # Tensors of 9 MiB still share segments, although 9 MiB rounded up is 10.
    return where(last < _OWN_SEGMENT_BYTES, 0, total)
