"""Sizes of blocks and segments for a request: constants and rounding of PyTorch's caching allocator.

Constants: c10/core/AllocatorConfig.h (torch 2.13; in c10/cuda/CUDACachingAllocator.cpp before), under the names given.
"""

from profiler.allocator.settings.config import AllocatorConfig
from profiler.domain.units import MIB

MIN_BLOCK_BYTES = 512
"""`kMinBlockSize`: sizes are multiples of this."""

SMALL_BYTES = 1 * MIB
"""`kSmallSize`: the largest request of the small pool; a rest of a large block up to this size is not split off."""

SMALL_SEGMENT_BYTES = 2 * MIB
"""`kSmallBuffer`: a segment of the small pool, and its page with expandable segments."""

MIN_LARGE_BYTES = 10 * MIB
"""`kMinLargeAlloc`: the smallest request that gets a segment of its own size."""

LARGE_GRANULARITY_BYTES = 2 * MIB
"""`kRoundLarge`: segments of a request's own size are multiples of this."""

_FIRST_INTERVAL_LOG2 = 20
"""log2 of `kRoundUpPowerOfTwoStart` (1 MiB), c10/core/AllocatorConfig.cpp."""


def block_bytes(requested_bytes: int, config: AllocatorConfig) -> int:
    """Return the bytes of the block for a request of `requested_bytes`, at least 1.

    Source: `DeviceCachingAllocator::round_size`, c10/cuda/CUDACachingAllocator.cpp.
    """
    divisions = _divisions(requested_bytes, config.roundup_power2_divisions)
    if divisions > 1 and requested_bytes > MIN_BLOCK_BYTES * divisions:
        return _next_division(requested_bytes, divisions)
    return -(-requested_bytes // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES


def segment_bytes(block_size_bytes: int, config: AllocatorConfig) -> int:
    """Return the bytes of the segment to request if no free block fits.

    Source: `DeviceCachingAllocator::get_allocation_size`, c10/cuda/CUDACachingAllocator.cpp.
    """
    if block_size_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_size_bytes < MIN_LARGE_BYTES:
        return config.large_segment_bytes
    return -(-block_size_bytes // LARGE_GRANULARITY_BYTES) * LARGE_GRANULARITY_BYTES


def _divisions(requested_bytes: int, by_interval: tuple[int, ...]) -> int:
    """Source: `AcceleratorAllocatorConfig::roundup_power2_divisions`, c10/core/AllocatorConfig.cpp."""
    interval = requested_bytes.bit_length() - 1 - _FIRST_INTERVAL_LOG2
    return by_interval[min(max(interval, 0), len(by_interval) - 1)]


def _next_division(requested_bytes: int, divisions: int) -> int:
    """Round up to the next of `divisions` equal steps between two powers of two.

    With 4 divisions 1200 becomes 1280, out of 1024, 1280, 1536 and 1792.
    Source: `DeviceCachingAllocator::roundup_power2_next_division`, c10/cuda/CUDACachingAllocator.cpp.
    """
    # `divisions` is a power of two (checked by the parser), so this is the source's shift by its logarithm; and the
    # request is beyond 512 * divisions, so that a step has at least 512 bytes.
    step = (1 << requested_bytes.bit_length() - 1) // divisions
    return -(-requested_bytes // step) * step
