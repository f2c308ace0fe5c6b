"""Blocks rebuilt from the plain values of a segment, so that an allocator can adopt it."""

from profiler.allocator.model.blocks import Block, ExpandableSegment, FreeBlocks
from profiler.allocator.model.held import BlockState, HeldSegment


def rebuilt_blocks(segment: HeldSegment, pool: FreeBlocks) -> list[Block]:
    """Return the linked blocks of a segment, by address; add free ones to `pool`, the pool of its stream."""
    expandable = _address_range(segment)
    blocks: list[Block] = []
    for held in segment.blocks:
        block = Block(address=held.address, size_bytes=held.size_bytes, pool=pool, expandable=expandable)
        block.place_between(blocks[-1] if blocks else None, None)
        block.requested_bytes = held.requested_bytes
        block.allocated = held.state is BlockState.IN_USE
        block.mapped = held.state is not BlockState.UNMAPPED
        if held.state is BlockState.FREE:
            pool.add(block)
        elif held.state is BlockState.UNMAPPED:
            pool.add_unmapped(block)
        blocks.append(block)
    return blocks


def _address_range(segment: HeldSegment) -> ExpandableSegment | None:
    """Return the addresses of an expandable segment; None for an ordinary one."""
    if segment.page_bytes is None:
        return None
    return ExpandableSegment(
        address=segment.blocks[0].address,
        size_bytes=sum(block.size_bytes for block in segment.blocks),
        page_bytes=segment.page_bytes,
    )
