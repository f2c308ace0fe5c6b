"""Typed settings of the caching allocator, and sizes of blocks and segments by them.

Typed settings of the caching allocator. `alloc_conf.py` parses them from text.

Sizes of blocks and segments for a request: constants and rounding of PyTorch's caching allocator.

Constants: c10/core/AllocatorConfig.h (torch 2.13; in c10/cuda/CUDACachingAllocator.cpp before), under the names given.
"""

from dataclasses import dataclass

from profiler.domain.memory import MIB

ROUNDUP_INTERVALS = 16
"""Number of size intervals with separate divisions (`kRoundUpPowerOfTwoIntervals`, c10/core/AllocatorConfig.cpp)."""

DEFAULT_LARGE_SEGMENT_BYTES = 20 * MIB
"""`AcceleratorAllocatorConfig::large_segment_size_`, c10/core/AllocatorConfig.h; `kLargeBuffer` before torch 2.11."""

_BY_AGE_SINCE = (2, 13)
"""The first torch that takes the block of the older segment (pytorch/pytorch#183591)."""


@dataclass(frozen=True, kw_only=True)
class AllocatorConfig:
    """Settings of PyTorch's caching allocator that change what memory it takes; the defaults are PyTorch's.

    Source of the defaults: the members of `AcceleratorAllocatorConfig` (c10/core/AllocatorConfig.h) and of
    `CUDAAllocatorConfig` (c10/cuda/CUDAAllocatorConfig.h), torch 2.13.
    """

    large_segment_bytes: int = DEFAULT_LARGE_SEGMENT_BYTES
    """Segment for requests between 1 and 10 MiB; with expandable segments the page of the large pool."""
    max_split_bytes: int | None = None
    """Blocks of at least this size are never split and serve no smaller request. None: every block can be split."""
    max_non_split_rounding_bytes: int = DEFAULT_LARGE_SEGMENT_BYTES
    """By how much (exclusive) an unsplittable block may be larger than a request of at least `max_split_bytes`."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * ROUNDUP_INTERVALS
    """Divisions between powers of two that requests are rounded up to, for sizes from 1 MiB (and below), 2 MiB, 4 MiB
    ... 32 GiB (and above). 0 and 1: multiples of 512 bytes."""
    garbage_collection_threshold: float = 0.0
    """Share of the allowed memory above which old segments are released before a new one is requested. 0: never.
    No effect unless `per_process_memory_fraction` is below 1."""
    expandable_segments: bool = False
    per_process_memory_fraction: float = 1.0
    """Share of the card's memory that this process may take; below 1 it becomes a limit."""
    addresses_descend: bool = False
    """Whether a later segment has a lower address, which decides which of two free blocks of equal size is taken. No
    setting of PyTorch's: `addresses_descend` says where it holds."""


def addresses_descend(torch_version: str) -> bool:
    """Return whether the order of blocks of equal size is best modelled by descending addresses.

    Before torch 2.13 the block of the lower address is taken, and the driver decides. Of the segments of the large pool
    in the histories that the campaign recorded on an H200 (driver 580), 84 and 82 % have a lower address than the one
    before.
    """
    major, minor = torch_version.split(".")[:2]
    return (int(major), int(minor)) < _BY_AGE_SINCE


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
