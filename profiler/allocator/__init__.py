"""Model of PyTorch's caching allocator for a stream of allocations. Pure: no torch.

`replay_on_card` answers for one trace, card and configuration; `CachingAllocator` is the model behind it, and
`parse_alloc_conf` reads its settings. `memory_snapshot` writes a replay down in PyTorch's format; `replay_recorded`
compares the model with a history of the real allocator, and `answer.answer` replays such a history under other
conditions. `replay` knows rounding only, no segments.
"""

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.allocator.caching import CachingAllocator
from profiler.allocator.card_replay import CardReplay, PhaseMemory, replay_on_card
from profiler.allocator.config import AllocatorConfig
from profiler.allocator.recorded import RecordedComparison, replay_recorded
from profiler.allocator.refusal import OutOfMemoryError, Refusal
from profiler.allocator.replay import Peaks, replay
from profiler.allocator.snapshot import memory_snapshot
from profiler.allocator.stats import AllocatorStats
from profiler.allocator.trace import Trace, TraceBuilder

__all__ = [
    "AllocatorConfig",
    "AllocatorStats",
    "CachingAllocator",
    "CardReplay",
    "OutOfMemoryError",
    "Peaks",
    "PhaseMemory",
    "RecordedComparison",
    "Refusal",
    "Trace",
    "TraceBuilder",
    "memory_snapshot",
    "parse_alloc_conf",
    "replay",
    "replay_on_card",
    "replay_recorded",
]
