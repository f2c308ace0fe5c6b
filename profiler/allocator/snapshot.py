"""PyTorch's memory snapshot of a replay: what `torch.cuda.memory._snapshot()` would return, as plain values.

Format: `_memory_snapshot_pickled` (torch/csrc/cuda/memory_snapshot.cpp) and `THCPModule_memorySnapshot`
(torch/csrc/cuda/Module.cpp); read by `torch.cuda._memory_viz` and by the viewer at pytorch.org/memory_viz.
"""

from collections import deque
from typing import Any

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.allocator.blocks import Block
from profiler.allocator.caching import CachingAllocator
from profiler.allocator.card_memory import CardMemory
from profiler.allocator.card_replay import phase_spans
from profiler.allocator.config import AllocatorConfig
from profiler.allocator.refusal import OutOfMemoryError
from profiler.allocator.trace import NO_SITE, Site, Trace
from profiler.domain.memory import Category, Phase

Entry = dict[str, Any]
Frames = list[dict[str, Any]]


def memory_snapshot(
    trace: Trace,
    *,
    capacity_bytes: int | None,
    alloc_conf: str = "",
    total_bytes: int | None = None,
    until: int | None = None,
    most_entries: int | None = None,
) -> dict[str, Any]:
    """The snapshot of a process that did what `trace` says, up to a refusal.

    `time_us` is the number of the event in the trace: there is no clock here. A block's frames say, innermost first,
    operation, tensor, module, category and phase, so that a flame graph begins at the phase.

    Args:
        trace: Allocations and frees.
        capacity_bytes: What the process can take from the driver; None: unlimited.
        alloc_conf: PYTORCH_ALLOC_CONF's text.
        total_bytes: All memory of the card, for `per_process_memory_fraction`; None: the capacity.
        until: The snapshot is taken after so many events; None: after all. `CardReplay.peak_event` + 1 is the peak.
        most_entries: Only the last so many entries of the history are kept; None: all. PyTorch's `max_entries`.

    Raises:
        UsageError: `alloc_conf` is wrong.
    """
    config = parse_alloc_conf(alloc_conf)
    history = _History(
        trace,
        capacity_bytes=capacity_bytes,
        config=config,
        total_bytes=total_bytes,
        most_entries=most_entries,
    )
    history.replay(len(trace.events) if until is None else until)
    return {
        "segments": history.segments(),
        "device_traces": [list(history.entries)],
        "allocator_settings": _settings(config, alloc_conf),
    }


class _HistoryCard(CardMemory):
    """A driver that notes what it is asked for."""

    def __init__(self, *, capacity_bytes: int | None, history: "_History") -> None:
        super().__init__(capacity_bytes=capacity_bytes)
        self._history = history

    def take_segment(self, size_bytes: int) -> int | None:
        address = super().take_segment(size_bytes)
        if address is not None:
            self._history.note("segment_alloc", address, size_bytes)
        return address

    def give_segment_back(self, address: int, size_bytes: int) -> None:
        super().give_segment_back(address, size_bytes)
        self._history.note("segment_free", address, size_bytes)

    def map_pages(self, address: int, size_bytes: int) -> bool:
        is_mapped = super().map_pages(address, size_bytes)
        if is_mapped:
            self._history.note("segment_map", address, size_bytes)
        return is_mapped

    def unmap_pages(self, address: int, size_bytes: int) -> None:
        super().unmap_pages(address, size_bytes)
        self._history.note("segment_unmap", address, size_bytes)


class _History:
    """A replay that keeps every event of allocator and driver."""

    def __init__(
        self,
        trace: Trace,
        *,
        capacity_bytes: int | None,
        config: AllocatorConfig,
        total_bytes: int | None,
        most_entries: int | None,
    ) -> None:
        self.entries: deque[Entry] = deque(maxlen=most_entries)
        self._trace = trace
        self._allocator = CachingAllocator(
            capacity_bytes=capacity_bytes,
            config=config,
            total_bytes=capacity_bytes if total_bytes is None else total_bytes,
            card=_HistoryCard(capacity_bytes=capacity_bytes, history=self),
        )
        self._blocks: dict[int, Block] = {}
        self._frames_of: dict[int, Frames] = {}
        self._event = 0
        self._frames: Frames = []
        self._alike_frames: dict[tuple[int, Category, str, Phase], Frames] = {}
        """Alike frames are one list, so that a pickle holds them once."""

    def note(self, action: str, address: int, size_bytes: int, key: str = "addr") -> None:
        """An entry, for the block at hand."""
        self.entries.append(
            {
                "action": action,
                key: address,
                "size": size_bytes,
                "stream": 0,
                "frames": self._frames,
                "time_us": self._event,
            }
        )

    def replay(self, until: int) -> None:
        for phase, first, end in phase_spans(self._trace):
            for event in range(first, min(end, until)):
                self._event = event
                block = abs(self._trace.events[event]) - 1
                if not self._trace.sizes_bytes[block]:
                    continue
                if self._trace.events[event] < 0:
                    self._free(block)
                elif not self._allocate(block, phase):
                    return
        self._frames = []
        self.note("snapshot", 0, 0)

    def _allocate(self, block: int, phase: Phase) -> bool:
        """Whether there was memory."""
        self._frames = self._frames_of[block] = self._frames_in(block, phase)
        size_bytes = self._trace.sizes_bytes[block]
        try:
            self._blocks[block] = self._allocator.allocate(size_bytes)
        except OutOfMemoryError as error:
            self.note("oom", error.free_bytes or 0, size_bytes, key="device_free")
            return False
        self.note("alloc", self._blocks[block].address, size_bytes)
        return True

    def _frames_in(self, block: int, phase: Phase) -> Frames:
        trace = self._trace
        site = trace.site_of[block] if trace.site_of else -1
        likeness = (site, trace.categories[block], trace.names.get(block, ""), phase)
        if likeness not in self._alike_frames:
            self._alike_frames[likeness] = _frames(trace.sites[site] if trace.site_of else NO_SITE, *likeness[1:])
        return self._alike_frames[likeness]

    def _free(self, block: int) -> None:
        freed = self._blocks.pop(block)
        self._frames = self._frames_of[block]
        self.note("free_requested", freed.address, freed.requested_bytes)
        self.note("free_completed", freed.address, freed.requested_bytes)
        self._allocator.free(freed)

    def segments(self) -> list[Entry]:
        number_of = {block: number for number, block in self._blocks.items()}
        return [self._segment(blocks, number_of) for blocks in self._allocator.segments()]

    def _segment(self, blocks: list[Block], number_of: dict[Block, int]) -> Entry:
        in_use = [block for block in blocks if block.allocated]
        allocated_bytes = sum(block.size_bytes for block in in_use)
        return {
            "device": 0,
            "address": blocks[0].address,
            "total_size": sum(block.size_bytes for block in blocks),
            "allocated_size": allocated_bytes,
            "active_size": allocated_bytes,
            "requested_size": sum(block.requested_bytes for block in in_use),
            "stream": 0,
            "segment_type": "small" if blocks[0].pool.is_small else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": blocks[0].expandable is not None,
            "frames": [],
            "blocks": [
                {
                    "address": block.address,
                    "size": block.size_bytes,
                    "requested_size": block.requested_bytes if block.allocated else 0,
                    "state": "active_allocated" if block.allocated else "inactive",
                    "frames": self._frames_of[number_of[block]] if block.allocated else [],
                }
                for block in blocks
            ],
        }


def _frames(site: Site, category: Category, name: str, phase: Phase) -> Frames:
    """Innermost first."""
    shape = ", ".join(map(str, site.shape))
    parts = (
        ("operation", site.operation),
        ("tensor", f"{site.dtype}[{shape}]" if site.dtype else ""),
        ("name", name),
        ("module", site.module),
        ("category", str(category)),
        ("phase", str(phase)),
    )
    return [{"filename": part, "line": 0, "name": text} for part, text in parts if text]


def _settings(config: AllocatorConfig, alloc_conf: str) -> Entry:
    return {
        "PYTORCH_CUDA_ALLOC_CONF": alloc_conf,
        "max_split_size": -1 if config.max_split_bytes is None else config.max_split_bytes,
        "garbage_collection_threshold": config.garbage_collection_threshold,
        "expandable_segments": config.expandable_segments,
        "roundup_power2_divisions": {
            str(1 << interval): divisions for interval, divisions in enumerate(config.roundup_power2_divisions)
        },
    }
