"""Counters of the caching allocator."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AllocatorStats:
    """The counters of `torch.cuda.memory_stats`, in bytes. Peaks are since the last `reset_peaks`."""

    allocated_bytes: int
    """Sizes of the blocks in use, including the unused part of each block."""
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    inactive_split_bytes: int
    """Free blocks in segments that are partly in use. As in PyTorch, without expandable segments."""
    peak_inactive_split_bytes: int
    peak_unreleasable_bytes: int
    """Peak of allocated plus inactive split memory, which `empty_cache` cannot release.

    Not a counter of PyTorch's; of expandable segments, which give back single pages, only what is allocated.
    """
    num_alloc_retries: int
