"""Model of PyTorch's caching allocator for a stream of allocations. Pure: no torch.

`replay_on_card` answers for one trace, card and configuration; `CachingAllocator` is the model behind it, and
`parse_alloc_conf` reads its settings. `memory_snapshot` writes a replay down in PyTorch's format; `replay_recorded`
compares the model with a history of the real allocator, and `histories/what_if.py` replays such a history under other
conditions. `replay` of `traces/replay.py`, which needs numpy, knows rounding only, no segments.

Not known from a snapshot:
    - **A history that begins in the middle.** The state before the first entry is found by undoing all entries from
      the last state. It is exact, except that a large block that was allocated before the beginning and freed after it
      may be up to 1 MiB larger than its request shows, where no later entry depends on it. In a what-if the blocks in
      use at the beginning are requested first, by address. What was only cached then is not made again.
    - **`empty_cache()`.** A snapshot does not record the call. It is recognised by segments that were freed where a
      cached block would have served the next request, where no request follows, or where more memory was held at
      another time. In the remaining cases a full GPU looks the same, and is assumed.
    - **The memory of the recorded GPU.** It is known exactly where the history ran out of memory, to a range where the
      GPU was full, and else not at all. For `gpu=` it is the total of that GPU without the CUDA context, which is
      assumed (`profiler/domain/cards/card.py`), and without what other processes use.
    - **What a program would have done otherwise.** Requests, frees and their order are taken as recorded. Libraries
      that choose a workspace by free memory may request less on a smaller GPU. After a request that would have been
      refused, nothing is known.
    - **Private pools** (CUDA graphs, `MemPool`), memory outside of PyTorch's allocator, and settings that changed
      during the recording are not modelled. Garbage collection (`garbage_collection_threshold`) is modelled in a
      what-if, but a recording that collected garbage is reported as a departure, because the snapshot does not have
      the memory that its threshold is a share of.
    - **Second expandable segments.** One expandable segment per stream and pool is assumed. PyTorch begins a second
      one when the addresses of the first, 9/8 of the GPU's memory, have no gap that is large enough.
"""

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.allocator.histories.recorded import RecordedComparison, replay_recorded
from profiler.allocator.model.caching import CachingAllocator
from profiler.allocator.model.card_memory import AllocatorStats, OutOfMemoryError, Refusal
from profiler.allocator.settings import AllocatorConfig
from profiler.allocator.traces.card_replay import CardReplay, PhaseMemory, replay_on_card
from profiler.allocator.traces.recording import memory_snapshot
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
