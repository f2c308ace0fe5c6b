"""The counters of torch's allocator at any time of a simulated run, by replaying the trace as it grows."""

from typing import Any

from profiler.allocator import OutOfMemoryError, memory_snapshot, parse_alloc_conf
from profiler.allocator.model.blocks import Block
from profiler.allocator.model.counting import CountingAllocator
from profiler.allocator.traces.trace import TraceBuilder
from profiler.domain.cards.cublas import installed_torch_version


class Counters:
    """What `torch.cuda` counts of a trace that is still being written.

    On a card that is full the counters stay where they are: the script goes on, and the record says that it failed.
    """

    def __init__(self, trace: TraceBuilder, *, capacity_bytes: int, alloc_conf: str) -> None:
        self._trace = trace
        self._capacity_bytes = capacity_bytes
        self._alloc_conf = alloc_conf
        config = parse_alloc_conf(alloc_conf, torch_version=installed_torch_version())
        self._allocator = CountingAllocator(capacity_bytes=capacity_bytes, config=config)
        self._blocks: dict[int, Block] = {}
        self._events = self._emptyings = 0
        """How many of each the allocator has seen."""
        self._is_full = False
        self._recorded: tuple[int, int | None] | None = None
        """First event of the history that the script records, and its largest number of entries."""

    def now(self) -> CountingAllocator:
        """Return the allocator in its present state."""
        trace = self._trace
        for emptied in trace.cache_emptied[self._emptyings :]:
            self._replay(emptied)
            self._allocator.empty_cache()
            self._emptyings += 1
        self._replay(len(trace.events))
        return self._allocator

    def reset_peaks(self) -> None:
        """Let peaks begin at the present level."""
        self.now().reset_peaks()

    def reset_accumulated(self) -> None:
        """Forget what was allocated and freed so far."""
        self.now().reset_accumulated()

    def record_history(self, enabled: str | bool | None, most_entries: int | None = None) -> None:
        """Record the entries of a memory snapshot from now on; `enabled=None` ends it."""
        self._recorded = (len(self._trace.events), most_entries) if enabled in ("all", True) else None

    def snapshot(self) -> dict[str, Any]:
        """Return the value of `torch.cuda.memory._snapshot()`: entries since the script began to record them."""
        found = memory_snapshot(
            self._trace.finished(), capacity_bytes=self._capacity_bytes, alloc_conf=self._alloc_conf
        )
        (entries,) = found["device_traces"]
        if self._recorded is None:
            return found | {"device_traces": [[]]}
        first, most = self._recorded
        kept = [entry for entry in entries if entry["time_us"] >= first]
        return found | {"device_traces": [kept if most is None else kept[-most:]]}

    def _replay(self, until: int) -> None:
        events, sizes, streams = self._trace.events, self._trace.sizes_bytes, self._trace.streams
        for index in range(self._events, until):
            block = abs(events[index]) - 1
            if self._is_full or not sizes[block]:
                continue
            if events[index] < 0:
                self._allocator.free(self._blocks.pop(block))
                continue
            try:
                self._blocks[block] = self._allocator.allocate(sizes[block], streams.get(block, 0))
            except OutOfMemoryError:
                self._is_full = True
        self._events = max(self._events, until)
