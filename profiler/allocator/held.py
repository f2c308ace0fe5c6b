"""Segments as plain values: what an allocator holds at one instant, to be recorded, rebuilt or compared."""

from dataclasses import dataclass
from enum import StrEnum


class BlockState(StrEnum):
    """What a piece of a segment is used for."""

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
    """What the program asked for; 0 unless in use."""
    state: BlockState


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldSegment:
    """One segment: all its pieces, by address, without gaps."""

    stream: int
    is_small: bool
    """Whether it belongs to the pool of requests of up to 1 MiB."""
    page_bytes: int | None
    """Of an expandable segment; None: an ordinary one."""
    blocks: tuple[HeldBlock, ...]
