"""Typed settings of the caching allocator. `alloc_conf.py` parses them from text."""

from dataclasses import dataclass

from profiler.domain.units import MIB

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
