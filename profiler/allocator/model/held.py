"""Segments as plain values: the state of an allocator at one instant, to record, rebuild or compare."""

from dataclasses import dataclass
from enum import StrEnum


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
