"""Histories that the model records of itself: several streams, pending frees, emptied caches, cut anywhere."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from profiler.allocator import OutOfMemoryError, parse_alloc_conf
from profiler.allocator.model.blocks import Block
from profiler.allocator.traces.recording import RecordingAllocator, allocator_settings

MIB = 1024 * 1024

ALLOC, FREE, REQUEST_FREE, COMPLETE_FREE, EMPTY = "alloc", "free", "request_free", "complete_free", "empty"
Step = tuple[str, int, int]
"""(what, bytes or number of the block among those it may concern, stream)."""


@dataclass
class OwnHistory:
    """A recording on its way: steps are done one by one."""

    allocator: RecordingAllocator
    alloc_conf: str = ""
    live: list[Block] = field(default_factory=list)
    pending: list[Block] = field(default_factory=list)
    emptied: set[int] = field(default_factory=set)
    """Numbers of the entries in front of which the cache was emptied and gave something back."""
    states: dict[int, list[Any]] = field(default_factory=dict)
    """Segments after so many entries, at the ends of steps."""

    def do(self, step: Step) -> None:
        what, number, stream = step
        if what == ALLOC:
            try:
                self.live.append(self.allocator.allocate(number, stream))
            except OutOfMemoryError:
                return
            finally:
                self._note()
        elif what == EMPTY:
            before = len(self.allocator.entries)
            self.allocator.empty_cache()
            if len(self.allocator.entries) > before:
                self.emptied.add(len(self.allocator.entries))
        elif what == FREE and self.live:
            self.allocator.free(self.live.pop(number % len(self.live)))
        elif what == REQUEST_FREE and self.live:
            self.pending.append(self.live.pop(number % len(self.live)))
            self.allocator.request_free(self.pending[-1])
        elif what == COMPLETE_FREE and self.pending:
            self.allocator.complete_free(self.pending.pop(number % len(self.pending)))
        self._note()

    def _note(self) -> None:
        self.states[len(self.allocator.entries)] = layout(self.allocator.segments())

    def snapshot(self, cut: int = 0) -> dict[str, Any]:
        """As `torch.cuda.memory._snapshot()`, without the first `cut` entries."""
        return {
            "segments": self.allocator.segments(),
            "device_traces": [list(self.allocator.entries)[cut:]],
            "allocator_settings": allocator_settings(parse_alloc_conf(self.alloc_conf), self.alloc_conf),
        }


def layout(segments: list[dict[str, Any]]) -> list[Any]:
    """(address, stream, [(bytes, in use)]) of each segment."""
    return [
        (
            segment["address"],
            segment["stream"],
            [(block["size"], block["state"] != "inactive") for block in segment["blocks"]],
        )
        for segment in segments
    ]


def recorded(steps: list[Step], *, alloc_conf: str = "", capacity_bytes: int | None = None, total: int | None = None):
    history = OwnHistory(
        RecordingAllocator(capacity_bytes=capacity_bytes, config=parse_alloc_conf(alloc_conf), total_bytes=total),
        alloc_conf,
    )
    history.states[0] = []
    for step in steps:
        history.do(step)
    return history


SIZES = st.one_of(
    st.integers(1, 4000),
    st.integers(1, 3 * MIB),
    st.integers(1 * MIB, 30 * MIB),
    # Around what a block of 20 MiB leaves: rests that are kept and rests that are split off.
    st.integers(1, 40).map(lambda halves: halves * MIB // 2),
)


def steps(*, streams: int = 3, most: int = 50):
    number = st.integers(0, 1000)
    return st.lists(
        st.one_of(
            st.tuples(st.just(ALLOC), SIZES, st.integers(0, streams - 1).map(lambda stream: stream * 7)),
            st.tuples(st.sampled_from([ALLOC]), SIZES, st.just(0)),
            st.tuples(st.sampled_from([FREE, FREE, REQUEST_FREE, COMPLETE_FREE]), number, st.just(0)),
            st.tuples(st.just(EMPTY), st.just(0), st.just(0)),
        ),
        min_size=1,
        max_size=most,
    )
