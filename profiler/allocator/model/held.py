"""Segments as plain values, to record or compare the state of an allocator, and their blocks rebuilt from them."""

from dataclasses import dataclass
from enum import StrEnum

from profiler.allocator.model.blocks import Block, ExpandableSegment, FreeBlocks


class BlockState(StrEnum):
    """State of one piece of a segment."""

    IN_USE = "in use"
    """Allocated, or freed by the program while a stream may still use it (`active_pending_free`)."""
    FREE = "free"
    UNMAPPED = "unmapped"
    """Addresses of an expandable segment without memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldBlock:
    """One piece of a segment."""

    address: int
    size_bytes: int
    requested_bytes: int
    """Requested size; 0 unless in use."""
    state: BlockState


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldSegment:
    """One segment: all its pieces in the order of addresses, without gaps."""

    stream: int
    is_small: bool
    """Whether it belongs to the pool of requests of up to 1 MiB."""
    page_bytes: int | None
    """Page size of an expandable segment; None: an ordinary segment."""
    blocks: tuple[HeldBlock, ...]


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
