"""Choice of segments that the caching allocator releases before it flushes its whole cache.

Source of every rule: the function of c10/cuda/CUDACachingAllocator.cpp that a docstring names.
"""

from profiler.allocator.model.blocks import Block, FreeBlocks, StreamPools


def oversize_blocks(pool: FreeBlocks, wanted_bytes: int, limit_bytes: int) -> list[Block]:
    """Return the smallest unsplittable block of a stream that suffices alone, else the largest until they suffice.

    They may not suffice: the caller compares their sum with `wanted_bytes`.
    Source: `release_available_cached_blocks`.
    """
    index = pool.first_of_at_least(wanted_bytes)
    if index < len(pool.keys):
        return [pool.in_order()[index]]
    found: list[Block] = []
    missing = wanted_bytes
    for block in reversed(pool.in_order()):
        if missing <= 0 or block.size_bytes < limit_bytes:
            break
        missing -= block.size_bytes
        found.append(block)
    return found


def old_blocks(pools: StreamPools, to_reclaim_bytes: int) -> list[Block]:
    """Return the segments of all streams that were free for longest.

    Each round takes those at least as old as the mean of the remaining ones, until enough is reclaimed.
    Source: `garbage_collect_cached_blocks`.
    """
    ages = {
        block: block.pool.searches - block.inserted_at_search
        for block in pools.free_blocks()
        if not block.is_split and block.expandable is None
    }
    found: list[Block] = []
    while to_reclaim_bytes > 0 and ages:
        mean_age = sum(ages.values()) / len(ages)
        for block in [block for block, age in ages.items() if age >= mean_age]:
            del ages[block]
            to_reclaim_bytes -= block.size_bytes
            found.append(block)
    return found
