"""What an allocator makes of a stream of allocations. Pure: no torch.

Today: torch's rounding, peaks by phase and category, and the first allocation that a card's capacity refuses. The
caching allocator itself (segments, splitting, fragmentation, release and retry) takes the same trace.
"""

from profiler.allocator.replay import Peaks, Refusal, replay
from profiler.allocator.trace import Trace, TraceBuilder

__all__ = ["Peaks", "Refusal", "Trace", "TraceBuilder", "replay"]
