"""The history of torch's allocator as a trace of blocks, read step by step."""

from collections.abc import Mapping
from typing import Any

import torch

from profiler.allocator.traces.trace import TraceBuilder
from profiler.domain.memory import Category

_MOST_ENTRIES = 10_000_000
"""Of the history between two readings."""


class CardHistory:
    """Allocations and frees of a card since `start`, with the address of each block in use."""

    def __init__(self) -> None:
        self.trace = TraceBuilder()
        self._block_at: dict[int, int] = {}
        self.streams: set[int] = set()
        """Streams that blocks were allocated on."""

    def start(self) -> None:
        """Begin with the blocks that are in use."""
        self.trace, self._block_at, self.streams = TraceBuilder(), {}, set()
        _record()
        for segment in _snapshot()["segments"]:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    self._block_at[block["address"]] = self.trace.allocate(block["requested_size"], Category.OTHER)

    def read(self) -> None:
        """Add what has happened since the last reading."""
        entries = _snapshot()["device_traces"][0]
        _record()
        for entry in entries:
            address = entry["addr"]
            if entry["action"] == "alloc":
                self._block_at[address] = self.trace.allocate(entry["size"], Category.OTHER)
                self.streams.add(entry["stream"])
            elif entry["action"] == "free_completed" and address in self._block_at:
                self.trace.free(self._block_at.pop(address))

    def skip(self) -> None:
        """Forget what has happened since the last reading."""
        _record()

    def end(self) -> None:
        """Record no more."""
        torch.cuda.memory._record_memory_history(enabled=None)

    def move(self, blocks: Mapping[int, tuple[int, int]]) -> None:
        """Replace blocks in use: by the address of the old one, the address and the number of the new one."""
        for address in blocks:
            del self._block_at[address]
        self._block_at.update(blocks.values())

    # ---- what the extrapolation reads --------------------------------------------------------------------------------

    def alike(self) -> int:
        """Return a number that sets no limit: the history does not know when scratch changes."""
        return 2**62

    def blocks_in_use(self) -> Mapping[int, int]:
        """Return the number of each block in use, by its address."""
        return self._block_at

    def renumber(self, blocks: Mapping[int, int]) -> None:
        """Do nothing: `move` has done it."""


def _record() -> None:
    """Record from here on, without stacks."""
    torch.cuda.memory._record_memory_history(context=None, max_entries=_MOST_ENTRIES, clear_history=True)


def _snapshot() -> dict[str, Any]:
    return torch.cuda.memory._snapshot()
