"""The counters of torch's allocator at any time of a simulated run, by replaying the trace so far."""

from dataclasses import replace

from profiler.allocator import AllocatorConfig, replay_on_card
from profiler.allocator.card_replay import PhaseMemory
from profiler.allocator.trace import TraceBuilder
from profiler.domain.memory import Phase


class Counters:
    """Allocated and reserved memory, now and at most since the last reset."""

    def __init__(self, trace: TraceBuilder, *, capacity_bytes: int, config: AllocatorConfig) -> None:
        self._trace = trace
        self._capacity_bytes = capacity_bytes
        self._config = config
        self._reset_at = 0
        self._found: dict[tuple[int, int], PhaseMemory] = {}

    def reset(self) -> None:
        """Let peaks begin at the present level."""
        self._reset_at = len(self._trace.events)

    def now(self) -> PhaseMemory:
        """Return the present levels."""
        return self._since(len(self._trace.events))

    def peak(self) -> PhaseMemory:
        """Return the peaks since the last reset."""
        return self._since(self._reset_at)

    def _since(self, event: int) -> PhaseMemory:
        events = len(self._trace.events)
        if not events:
            return PhaseMemory(peak_allocated_bytes=0, peak_reserved_bytes=0)
        key = (event, events)
        if key not in self._found:
            before, after = Phase.LOAD, Phase.FORWARD
            spans = ((0, after),) if event == 0 else ((0, before), (event, after))
            trace = replace(self._trace.finished(), phase_starts=spans)
            replayed = replay_on_card(trace, capacity_bytes=self._capacity_bytes, config=self._config)
            # On a card that is full the replay ends; the script goes on, and the record says that it did not fit.
            self._found = {key: replayed.phases.get(after) or next(iter(replayed.phases.values()))}
        return self._found[key]
