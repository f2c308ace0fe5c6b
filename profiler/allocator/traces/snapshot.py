"""PyTorch's memory snapshot of a replay: the value of `torch.cuda.memory._snapshot()` as plain values.

Format: `_memory_snapshot_pickled` (torch/csrc/cuda/memory_snapshot.cpp) and `THCPModule_memorySnapshot`
(torch/csrc/cuda/Module.cpp); read by `torch.cuda._memory_viz` and by the viewer at pytorch.org/memory_viz.
"""

from typing import Any

from profiler.allocator.code_lines import CATEGORY, MODULE, OPERATION
from profiler.allocator.model.blocks import Block
from profiler.allocator.refusals.refusal import OutOfMemoryError
from profiler.allocator.settings.alloc_conf import parse_alloc_conf
from profiler.allocator.settings.config import AllocatorConfig
from profiler.allocator.traces.card_replay import phase_spans
from profiler.allocator.traces.recording import Entry, Frames, RecordingAllocator
from profiler.allocator.traces.trace import NO_SITE, Site, Trace
from profiler.domain.memory import Category, Phase


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
        self._blocks: dict[int, Block] = {}
        self._alike_frames: dict[tuple[int, Category, str, Phase], Frames] = {}
        """Equal frames share one list, so that a pickle stores them once."""

    def replay(self, until: int) -> None:
        emptied = frozenset(self._trace.cache_emptied)
        for phase, first, end in phase_spans(self._trace):
            for event in range(first, min(end, until)):
                self.allocator.now = event
                if event in emptied:
                    self.allocator.frames = []
                    self.allocator.empty_cache()
                block = abs(self._trace.events[event]) - 1
                if not self._trace.sizes_bytes[block]:
                    continue
                if self._trace.events[event] < 0:
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
            self._blocks[block] = self.allocator.allocate(self._trace.sizes_bytes[block], stream)
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
