"""Model of PyTorch's caching allocator for a stream of allocations. Pure: no torch.

`replay_on_card` answers for one trace, card and configuration; `CachingAllocator` is the model behind it, and
`parse_alloc_conf` reads its settings. `memory_snapshot` writes a replay down in PyTorch's format; `replay_recorded`
compares the model with a history of the real allocator, and `histories/answer.py` replays such a history under other
conditions. `replay` of `traces/replay.py`, which needs numpy, knows rounding only, no segments.
"""

from profiler.allocator.histories.recorded import RecordedComparison, replay_recorded
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.stats import AllocatorStats
from profiler.allocator.refusals.refusal import OutOfMemoryError, Refusal
from profiler.allocator.settings.alloc_conf import parse_alloc_conf
from profiler.allocator.settings.config import AllocatorConfig
from profiler.allocator.traces.card_replay import CardReplay, PhaseMemory, replay_on_card
from profiler.allocator.traces.snapshot import memory_snapshot
from profiler.allocator.traces.trace import Trace, TraceBuilder

__all__ = [
    "AllocatorConfig",
    "AllocatorStats",
    "CachingAllocator",
    "CardReplay",
    "OutOfMemoryError",
    "PhaseMemory",
    "RecordedComparison",
    "Refusal",
    "Trace",
    "TraceBuilder",
    "memory_snapshot",
    "parse_alloc_conf",
    "replay_on_card",
    "replay_recorded",
]
