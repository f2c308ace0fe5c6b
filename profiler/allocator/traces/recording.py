"""An allocator that records its history in the format of PyTorch's memory snapshot, and such a snapshot.

An allocator that records its history in the format of PyTorch's memory snapshots.

Format: `_memory_snapshot_pickled` (torch/csrc/cuda/memory_snapshot.cpp) and `THCPModule_memorySnapshot`
(torch/csrc/cuda/Module.cpp).

PyTorch's memory snapshot of a replay: the value of `torch.cuda.memory._snapshot()` as plain values.

Format: `_memory_snapshot_pickled` (torch/csrc/cuda/memory_snapshot.cpp) and `THCPModule_memorySnapshot`
(torch/csrc/cuda/Module.cpp); read by `torch.cuda._memory_viz` and by the viewer at pytorch.org/memory_viz.
"""

from bisect import bisect_right, insort
from collections import deque
from typing import Any

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.allocator.model.blocks import Block
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.card_memory import CardMemory, OutOfMemoryError
from profiler.allocator.settings import AllocatorConfig
from profiler.allocator.snapshot_facts import CATEGORY, MODULE, OPERATION
from profiler.allocator.traces.card_replay import phase_spans
from profiler.allocator.traces.trace import NO_SITE, Site, Trace
from profiler.domain.memory import Category, Phase

Entry = dict[str, Any]
Frames = list[dict[str, Any]]


class RecordingAllocator:
    """A caching allocator with `torch.cuda.memory._record_memory_history` on from the beginning.

    `now` is written as the time of an entry and `frames` as its stack; the caller sets them.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int | None,
        config: AllocatorConfig,
        total_bytes: int | None = None,
        most_entries: int | None = None,
    ) -> None:
        """Create an empty allocator.

        Args:
            capacity_bytes: Memory that the process can take from the driver; None: unlimited.
            config: Its settings.
            total_bytes: All memory of the card, for `per_process_memory_fraction`; None: the capacity.
            most_entries: Number of last entries to keep, PyTorch's `max_entries`; None: all.
        """
        self.entries: deque[Entry] = deque(maxlen=most_entries)
        self.now = 0
        self.frames: Frames = []
        self.stream = 0
        """Stream of the current request."""
        self._frames_of: dict[Block, Frames] = {}
        self._pending: set[Block] = set()
        self._allocator = CachingAllocator(
            capacity_bytes=capacity_bytes,
            config=config,
            total_bytes=capacity_bytes if total_bytes is None else total_bytes,
            card=_RecordingCard(capacity_bytes=capacity_bytes, history=self, descending=config.addresses_descend),
        )

    def note(self, action: str, address: int, size_bytes: int, *, stream: int, key: str = "addr") -> None:
        """Append an entry."""
        entry = {"action": action, key: address, "size": size_bytes, "stream": stream}
        self.entries.append(entry | {"frames": self.frames, "time_us": self.now})

    def allocate(self, size_bytes: int, stream: int = 0) -> Block:
        """Return a block for a request of at least 1 byte.

        Raises:
            OutOfMemoryError: The card refused; the refusal is recorded.
        """
        self.stream = stream
        try:
            block = self._allocator.allocate(size_bytes, stream)
        except OutOfMemoryError as error:
            self.note("oom", error.free_bytes or 0, size_bytes, stream=stream, key="device_free")
            raise
        self._frames_of[block] = self.frames
        self.note("alloc", block.address, size_bytes, stream=stream)
        return block

    def free(self, block: Block) -> None:
        """Free a block that no other stream uses."""
        self.request_free(block)
        self.complete_free(block)

    def request_free(self, block: Block) -> None:
        """Record that the program freed a block; a stream may use it until `complete_free`."""
        self.frames = self._frames_of[block]
        self._pending.add(block)
        self.note("free_requested", block.address, block.requested_bytes, stream=block.pool.stream)

    def complete_free(self, block: Block) -> None:
        """Complete the free after `request_free`."""
        self.frames = self._frames_of.pop(block)
        self._pending.remove(block)
        self.note("free_completed", block.address, block.requested_bytes, stream=block.pool.stream)
        self._allocator.free(block)

    def empty_cache(self) -> None:
        """Release entirely free segments, as `torch.cuda.empty_cache` does."""
        self._allocator.empty_cache()

    def segments(self) -> list[Entry]:
        """Return the current segments and their blocks in the format of a snapshot."""
        return [self._segment(blocks) for blocks in self._allocator.segments()]

    def _segment(self, blocks: list[Block]) -> Entry:
        in_use = [block for block in blocks if block.allocated]
        allocated = [block for block in in_use if block not in self._pending]
        return {
            "device": 0,
            "address": blocks[0].address,
            "total_size": sum(block.size_bytes for block in blocks),
            "allocated_size": sum(block.size_bytes for block in allocated),
            "active_size": sum(block.size_bytes for block in in_use),
            "requested_size": sum(block.requested_bytes for block in in_use),
            "stream": blocks[0].pool.stream,
            "segment_type": "small" if blocks[0].pool.is_small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": blocks[0].expandable is not None,
            "frames": [],
            "blocks": [self._block(block) for block in blocks],
        }

    def _block(self, block: Block) -> Entry:
        in_use = "active_pending_free" if block in self._pending else "active_allocated"
        return {
            "address": block.address,
            "size": block.size_bytes,
            "requested_size": block.requested_bytes if block.allocated else 0,
            "state": in_use if block.allocated else "inactive",
            "frames": self._frames_of[block] if block.allocated else [],
        }


class _RecordingCard(CardMemory):
    """A driver that records its requests with their streams."""

    def __init__(self, *, capacity_bytes: int | None, history: RecordingAllocator, descending: bool) -> None:
        super().__init__(capacity_bytes=capacity_bytes, descending=descending)
        self._history = history
        self._reserved: list[tuple[int, int]] = []
        """(first address, stream) of each reservation, by address."""

    def reserve_addresses(self, size_bytes: int) -> int:
        address = super().reserve_addresses(size_bytes)
        insort(self._reserved, (address, self._history.stream))
        return address

    def take_segment(self, size_bytes: int) -> int | None:
        address = super().take_segment(size_bytes)
        if address is not None:
            self._note("segment_alloc", address, size_bytes)
        return address

    def give_segment_back(self, address: int, size_bytes: int) -> None:
        super().give_segment_back(address, size_bytes)
        self._note("segment_free", address, size_bytes)

    def map_pages(self, address: int, size_bytes: int) -> bool:
        is_mapped = super().map_pages(address, size_bytes)
        if is_mapped:
            self._note("segment_map", address, size_bytes)
        return is_mapped

    def unmap_pages(self, address: int, size_bytes: int) -> None:
        super().unmap_pages(address, size_bytes)
        self._note("segment_unmap", address, size_bytes)

    def _note(self, action: str, address: int, size_bytes: int) -> None:
        place = bisect_right(self._reserved, address, key=lambda reservation: reservation[0]) - 1
        self._history.note(action, address, size_bytes, stream=self._reserved[place][1])


def memory_snapshot(
    trace: Trace,
    *,
    capacity_bytes: int | None,
    alloc_conf: str = "",
    total_bytes: int | None = None,
    until: int | None = None,
    most_entries: int | None = None,
    torch_version: str | None = None,
) -> dict[str, Any]:
    """Return the snapshot of a process that runs `trace`, up to a refusal.

    `time_us` is the number of the event in the trace: there is no clock here. A block's frames say, innermost first,
    operation, tensor, module, category and phase, so that a flame graph begins at the phase.

    Args:
        trace: Allocations and frees.
        capacity_bytes: What the process can take from the driver; None: unlimited.
        alloc_conf: PYTORCH_ALLOC_CONF's text.
        total_bytes: All memory of the card, for `per_process_memory_fraction`; None: the capacity.
        until: The snapshot is taken after so many events; None: after all. `CardReplay.peak_event` + 1 is the peak.
        most_entries: Only the last so many entries of the history are kept; None: all. PyTorch's `max_entries`.
        torch_version: Of the process; None: the newest.

    Raises:
        UsageError: `alloc_conf` is wrong.
    """
    config = parse_alloc_conf(alloc_conf, torch_version=torch_version)
    allocator = RecordingAllocator(
        capacity_bytes=capacity_bytes, config=config, total_bytes=total_bytes, most_entries=most_entries
    )
    _History(trace, allocator).replay(len(trace.events) if until is None else until)
    return {
        "segments": allocator.segments(),
        "device_traces": [list(allocator.entries)],
        "allocator_settings": allocator_settings(config, alloc_conf),
    }


class _History:
    """Replay of a trace through a recording allocator."""

    def __init__(self, trace: Trace, allocator: RecordingAllocator) -> None:
        self.allocator = allocator
        self._trace = trace
        self._events, self._sizes_bytes = list(trace.events), list(trace.sizes_bytes)
        self._blocks: dict[int, Block] = {}
        self._alike_frames: dict[tuple[int, Category, str, Phase], Frames] = {}
        """Equal frames share one list, so that a pickle stores them once."""

    def replay(self, until: int) -> None:
        emptied = frozenset(self._trace.cache_emptied)
        for phase, first, end in phase_spans(self._trace.phase_starts, len(self._trace.events)):
            for event in range(first, min(end, until)):
                self.allocator.now = event
                if event in emptied:
                    self.allocator.frames = []
                    self.allocator.empty_cache()
                block = abs(self._events[event]) - 1
                if not self._sizes_bytes[block]:
                    continue
                if self._events[event] < 0:
                    self.allocator.free(self._blocks.pop(block))
                elif not self._allocate(block, phase):
                    return
        self.allocator.frames = []
        self.allocator.note("snapshot", 0, 0, stream=0)

    def _allocate(self, block: int, phase: Phase) -> bool:
        """Return whether there was memory."""
        self.allocator.frames = self._frames_in(block, phase)
        try:
            stream = self._trace.streams.get(block, 0)
            self._blocks[block] = self.allocator.allocate(self._sizes_bytes[block], stream)
        except OutOfMemoryError:
            return False
        return True

    def _frames_in(self, block: int, phase: Phase) -> Frames:
        trace = self._trace
        site = trace.site_of[block] if trace.site_of else -1
        likeness = (site, trace.categories[block], trace.names.get(block, ""), phase)
        if likeness not in self._alike_frames:
            self._alike_frames[likeness] = _frames(trace.sites[site] if trace.site_of else NO_SITE, *likeness[1:])
        return self._alike_frames[likeness]


def _frames(site: Site, category: Category, name: str, phase: Phase) -> Frames:
    """Innermost first."""
    shape = ", ".join(map(str, site.shape))
    parts = (
        (OPERATION, site.operation),
        ("tensor", f"{site.dtype}[{shape}]" if site.dtype else ""),
        ("name", name),
        (MODULE, site.module),
        (CATEGORY, str(category)),
        ("phase", str(phase)),
    )
    return [{"filename": part, "line": 0, "name": text} for part, text in parts if text]


def allocator_settings(config: AllocatorConfig, alloc_conf: str) -> Entry:
    """Return `allocator_settings` of a snapshot: the text of PYTORCH_CUDA_ALLOC_CONF and its parsed values."""
    return {
        "PYTORCH_CUDA_ALLOC_CONF": alloc_conf,
        "max_split_size": -1 if config.max_split_bytes is None else config.max_split_bytes,
        "garbage_collection_threshold": config.garbage_collection_threshold,
        "expandable_segments": config.expandable_segments,
        "roundup_power2_divisions": {
            str(1 << interval): divisions for interval, divisions in enumerate(config.roundup_power2_divisions)
        },
    }
