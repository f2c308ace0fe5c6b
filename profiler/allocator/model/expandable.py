"""Expandable segments: one segment per pool that grows page by page, and shrinks when memory is short.

Source of every rule: the function of the same meaning in c10/cuda/CUDACachingAllocator.cpp, named in its docstring.
"""

from profiler.allocator.model.blocks import Block, ExpandableSegment, FreeBlocks
from profiler.allocator.model.card_memory import CardMemory


def best_fit(pool: FreeBlocks, index: int) -> int:
    """Return the index of the block to take, given the smallest block that is large enough.

    A block at the growing end of a segment counts with all it could grow to, so that holes are filled first.
    Source: the loop over `expandable_size` in `DeviceCachingAllocator::get_free_block`.
    """
    while index + 1 < len(pool.keys) and _could_grow_to(pool, index + 1) < _could_grow_to(pool, index):
        index += 1
    return index


def _could_grow_to(pool: FreeBlocks, index: int) -> int:
    block = pool.block_at(index)
    after = block.after
    return block.size_bytes + (after.size_bytes if after is not None and not after.mapped else 0)


def grown_block(pool: FreeBlocks, size_bytes: int, *, page_bytes: int, card: CardMemory) -> Block | None:
    """Return a free block of at least `size_bytes`, not in a set, after mapping missing memory; None on failure.

    What was mapped before memory ran out stays mapped. Source: `try_allocate_expandable_block`.
    """
    block = _place_for(pool, size_bytes, page_bytes=page_bytes, card=card)
    if not block.mapped and not _map(block, min(block.size_bytes, size_bytes), card):
        return None
    while block.size_bytes < size_bytes:
        # Here a free block is always followed by one without memory; mapping merges the two.
        growth = block.after
        if growth is None or not _map(growth, min(size_bytes - block.size_bytes, growth.size_bytes), card):
            return None
        block = growth
    pool.remove(block)
    return block


def _place_for(pool: FreeBlocks, size_bytes: int, *, page_bytes: int, card: CardMemory) -> Block:
    """Return the lowest place with space for `size_bytes`, mapped or not; a new segment if there is none.

    Source: `find_expandable_block`.
    """
    for block in pool.unmapped:
        # The preceding free block can also be used.
        place = block.before if block.before is not None and not block.before.allocated else block
        if _has_space(place, size_bytes):
            return place
    pages = -(-card.address_space_bytes() // page_bytes)
    segment = ExpandableSegment(
        address=card.reserve_addresses(pages * page_bytes), size_bytes=pages * page_bytes, page_bytes=page_bytes
    )
    block = Block(
        address=segment.address,
        size_bytes=segment.size_bytes,
        pool=pool,
        expandable=segment,
        order=card.order_of_new_segment(),
    )
    block.mapped = False
    pool.add_unmapped(block)
    return block


def _has_space(block: Block | None, size_bytes: int) -> bool:
    space = 0
    while space < size_bytes and block is not None and not block.allocated:
        space += block.size_bytes
        block = block.after
    return space >= size_bytes


def _map(block: Block, size_bytes: int, card: CardMemory) -> bool:
    """Map the first pages of an unmapped block, as many as `size_bytes` need; return whether there was memory.

    The block becomes free, merged with its free neighbours. Source: `map_block`, `ExpandableSegment::map`.
    """
    segment, pool = block.expandable, block.pool
    assert segment is not None  # only blocks of expandable segments are unmapped
    mapped_bytes = -(-size_bytes // segment.page_bytes) * segment.page_bytes
    if not card.map_pages(block.address, mapped_bytes):
        return False
    pool.remove_unmapped(block)
    block.mapped = True
    if mapped_bytes < block.size_bytes:
        rest = Block(
            address=block.address + mapped_bytes,
            size_bytes=block.size_bytes - mapped_bytes,
            pool=pool,
            expandable=segment,
            order=block.order,
        )
        rest.mapped = False
        rest.place_between(block, block.after)
        pool.add_unmapped(rest)
        block.size_bytes = mapped_bytes
    pool.merge(block, block.before)
    pool.merge(block, block.after)
    pool.add(block)
    return True


def free_pages(block: Block) -> tuple[int, int]:
    """Return (first address, end) of the pages that lie entirely in a free block; end <= first if there are none.

    Source: `ExpandableSegment::unmap`.
    """
    segment = block.expandable
    assert segment is not None  # only called for blocks of expandable segments
    page = segment.page_bytes
    first = -(-(block.address - segment.address) // page) * page + segment.address
    end = (block.address + block.size_bytes - segment.address) // page * page + segment.address
    return first, end


def unmap_free_pages(block: Block, card: CardMemory) -> None:
    """Release the pages that lie entirely in a free block; its remaining ends stay free.

    A segment of which nothing is mapped any more is dropped. Source: `unmap_block`, `release_expandable_segment`.
    """
    first, end = free_pages(block)
    if first >= end:
        return
    pool = block.pool
    pool.remove(block)
    _keep_end(block, size_bytes=first - block.address, in_front=True)
    _keep_end(block, size_bytes=block.address + block.size_bytes - end, in_front=False)
    card.unmap_pages(block.address, block.size_bytes)
    block.mapped = False
    pool.merge(block, block.before)
    pool.merge(block, block.after)
    if block.is_split:
        pool.add_unmapped(block)


def _keep_end(block: Block, *, size_bytes: int, in_front: bool) -> None:
    """Split `size_bytes` off one end of a block, as a free block of its own."""
    if not size_bytes:
        return
    address = block.address if in_front else block.address + block.size_bytes - size_bytes
    kept = Block(
        address=address, size_bytes=size_bytes, pool=block.pool, expandable=block.expandable, order=block.order
    )
    if in_front:
        kept.place_between(block.before, block)
        block.address += size_bytes
    else:
        kept.place_between(block, block.after)
    block.size_bytes -= size_bytes
    block.pool.add(kept)
