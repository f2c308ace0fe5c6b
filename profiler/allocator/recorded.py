"""A recorded history of the real allocator, replayed: the same segments and the same reserved peak must come out.

The history is a memory snapshot's (`torch.cuda.memory._record_memory_history` from before the first allocation on, then
`_snapshot`). Its requests and frees are fed in; its segment events are what the driver said, and what is compared:

- when the model asks for memory, the driver's recorded answer is the next segment event: an address, or a refusal where
  memory was given back first;
- what the model gives back must be what was given back;
- every block must be where it was.

So capacity, context and other programs on the card need not be known. Not told apart: `empty_cache()` directly before
an allocation that needs memory, and the flush of a full card; a history in which the former let go of a block that
would have served is reported as a departure.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.allocator.blocks import Block
from profiler.allocator.caching import CachingAllocator
from profiler.allocator.card_memory import CardMemory
from profiler.allocator.config import AllocatorConfig
from profiler.allocator.refusal import OutOfMemoryError

SegmentBlocks = tuple[int, tuple[tuple[int, bool], ...]]
"""A segment's address, and (bytes, in use) of its blocks."""

_GAINS = ("segment_alloc", "segment_map")
_LOSSES = ("segment_free", "segment_unmap")
_READ_OF_ENTRIES = ("action", "addr", "size", "stream")


@dataclass(frozen=True, kw_only=True)
class RecordedComparison:
    """A recorded history beside the model's."""

    entries: int
    """Of the history."""
    departure: str
    """The first thing that the model did otherwise, with its place; empty if nothing."""
    unknown_frees: int
    """Frees of blocks that were allocated before the recording began: above 0 the history is not whole."""
    recorded_peak_reserved_bytes: int
    peak_reserved_bytes: int
    recorded_segments: tuple[SegmentBlocks, ...]
    segments: tuple[SegmentBlocks, ...]
    """Of the model, at the end."""

    @property
    def is_equal(self) -> bool:
        """Whether segments, their blocks and the reserved peak are the same, all the way."""
        return (
            not self.departure
            and not self.unknown_frees
            and self.recorded_peak_reserved_bytes == self.peak_reserved_bytes
            and self.recorded_segments == self.segments
        )


class _DepartureError(Exception):
    """The model does something else than was recorded."""


class _RecordedCard(CardMemory):
    """A driver that answers as it did."""

    def __init__(self) -> None:
        super().__init__(capacity_bytes=None)
        self.coming: deque[Mapping[str, Any]] = deque()
        """Segment events up to the next request or free."""

    def take_segment(self, size_bytes: int) -> int | None:
        event = self._answer(_GAINS[0], size_bytes)
        if event is None:
            return None
        self._take(size_bytes)
        return int(event["addr"])

    def give_segment_back(self, address: int, size_bytes: int) -> None:
        self._expect(_LOSSES[0], address, size_bytes)
        super().give_segment_back(address, size_bytes)

    def map_pages(self, address: int, size_bytes: int) -> bool:
        event = self._answer(_GAINS[1], size_bytes)
        if event is None:
            return False
        if event["addr"] != address:
            raise _DepartureError(f"pages mapped at {event['addr']:#x}, the model's at {address:#x}")
        return self._take(size_bytes)

    def unmap_pages(self, address: int, size_bytes: int) -> None:
        self._expect(_LOSSES[1], address, size_bytes)
        super().unmap_pages(address, size_bytes)

    def reserve_addresses(self, size_bytes: int) -> int:
        # Where a new expandable segment begins shows in the first page that is mapped into it, which on a full card
        # comes after what was given back for it.
        first = next((event for event in self.coming if event["action"] == _GAINS[1]), None)
        return super().reserve_addresses(size_bytes) if first is None else int(first["addr"])

    def _answer(self, action: str, size_bytes: int) -> Mapping[str, Any] | None:
        """The event that grants a demand; None where it was refused, which the next event, a loss or none, says."""
        if not self.coming or self.coming[0]["action"] in _LOSSES:
            return None
        event = self.coming.popleft()
        if (event["action"], event["size"]) != (action, size_bytes):
            raise _DepartureError(f"{_shown(event)} recorded, the model asked for {action} of {size_bytes}")
        return event

    def _expect(self, action: str, address: int, size_bytes: int) -> None:
        event = self.coming.popleft() if self.coming else None
        if event is None or (event["action"], event["addr"], event["size"]) != (action, address, size_bytes):
            recorded = "nothing" if event is None else _shown(event)
            raise _DepartureError(f"{recorded} recorded, the model does {action} of {size_bytes} at {address:#x}")


def replay_recorded(
    snapshot: Mapping[str, Any], *, config: AllocatorConfig | None = None, device: int = 0
) -> RecordedComparison:
    """Replay the history of `device` in a snapshot and compare.

    Args:
        snapshot: `torch.cuda.memory._snapshot()`, or ours.
        config: The settings of that run; None: as the snapshot's `allocator_settings` give them.
        device: Which of the snapshot's devices.

    Raises:
        ValueError: The history uses several streams, which the model does not have.
        UsageError: The snapshot's settings cannot be read.
    """
    entries: Sequence[Mapping[str, Any]] = snapshot["device_traces"][device]
    if len({entry["stream"] for entry in entries if entry["action"] == "alloc"}) > 1:
        raise ValueError("the recorded history uses several streams")
    if config is None:
        config = parse_alloc_conf(snapshot.get("allocator_settings", {}).get("PYTORCH_CUDA_ALLOC_CONF", ""))
    run = _Replay(config)
    departure = run.feed(entries)
    return RecordedComparison(
        entries=len(entries),
        departure=departure,
        unknown_frees=run.unknown_frees,
        recorded_peak_reserved_bytes=_peak_of(entries),
        peak_reserved_bytes=run.allocator.stats().peak_reserved_bytes,
        recorded_segments=_recorded_segments(snapshot["segments"], device),
        segments=tuple(
            (blocks[0].address, tuple((block.size_bytes, block.allocated) for block in blocks))
            for blocks in run.allocator.segments()
        ),
    )


def essentials(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """What `replay_recorded` reads of the first device in a snapshot, and no more: small enough to be kept."""
    return {
        "device_traces": [
            [{key: entry[key] for key in _READ_OF_ENTRIES if key in entry} for entry in snapshot["device_traces"][0]]
        ],
        "segments": [
            {
                "address": segment["address"],
                "blocks": [{"size": block["size"], "state": block["state"]} for block in segment["blocks"]],
            }
            for segment in snapshot["segments"]
            if segment.get("device", 0) == 0
        ],
        "allocator_settings": dict(snapshot.get("allocator_settings", {})),
    }


class _Replay:
    """The model on its way through a history."""

    def __init__(self, config: AllocatorConfig) -> None:
        self.card = _RecordedCard()
        self.allocator = CachingAllocator(capacity_bytes=None, config=config, card=self.card)
        self.unknown_frees = 0
        self._at: dict[int, Block] = {}

    def feed(self, entries: Iterable[Mapping[str, Any]]) -> str:
        """The first departure, or an empty text."""
        # The end of the history is the end of what was given back before it.
        for index, entry in enumerate((*entries, {"action": "snapshot", "size": 0})):
            try:
                self._entry(entry)
            except _DepartureError as departure:
                return f"entry {index}, {_shown(entry)}: {departure}"
        return ""

    def _entry(self, entry: Mapping[str, Any]) -> None:
        action = entry["action"]
        if action in _GAINS or action in _LOSSES:
            self.card.coming.append(entry)
            return
        if self.card.coming and not any(event["action"] in _GAINS for event in self.card.coming) and action != "oom":
            self.allocator.empty_cache()
        if action in ("alloc", "oom"):
            self._request(entry)
        elif action == "free_completed":
            # Only then is a block free: the stream may still use it after `free_requested`.
            block = self._at.pop(entry["addr"], None)
            if block is None:
                self.unknown_frees += 1
            else:
                self.allocator.free(block)
        if self.card.coming:
            raise _DepartureError(f"{_shown(self.card.coming[0])} recorded, the model did not need it")

    def _request(self, entry: Mapping[str, Any]) -> None:
        try:
            block = self.allocator.allocate(entry["size"])
        except OutOfMemoryError:
            if entry["action"] == "alloc":
                raise _DepartureError("the model ran out of memory") from None
            return
        if entry["action"] == "oom":
            raise _DepartureError("the model had memory")
        if block.address != entry["addr"]:
            raise _DepartureError(f"the model's block is at {block.address:#x}")
        self._at[block.address] = block


def _peak_of(entries: Iterable[Mapping[str, Any]]) -> int:
    """Highest sum of the segments that a history tells of."""
    held = peak = 0
    for entry in entries:
        if entry["action"] in _GAINS:
            held += entry["size"]
        elif entry["action"] in _LOSSES:
            held -= entry["size"]
        peak = max(peak, held)
    return peak


def _recorded_segments(segments: Iterable[Mapping[str, Any]], device: int) -> tuple[SegmentBlocks, ...]:
    found = [
        (
            int(segment["address"]),
            tuple((int(block["size"]), block["state"] == "active_allocated") for block in segment["blocks"]),
        )
        for segment in segments
        if segment.get("device", 0) == device
    ]
    return tuple(sorted(found))


def _shown(entry: Mapping[str, Any]) -> str:
    place = f" at {entry['addr']:#x}" if "addr" in entry else ""
    return f"{entry['action']} of {entry['size']}{place}"
