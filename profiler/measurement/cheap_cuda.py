"""torch's counters at the price of one call, for programs whose time matters more than the times of their phases."""

from collections.abc import Mapping
from typing import Any

import torch

from profiler.domain.script import NamedCard
from profiler.measurement.late_cuda import LateCuda


class CheapCuda(LateCuda):
    """`LateCuda` that never waits for the GPU. Its counters are those of the last `synchronize`.

    Peaks need no waiting: the allocator counts on the host, when a kernel is launched.
    """

    def __init__(self, card: NamedCard, *, device: int = 0) -> None:
        super().__init__(card, device=device)
        self._counted: Mapping[str, Any] = {}

    def synchronize(self) -> None:
        """Read all counters at once, and do not wait."""
        self._read()

    def _read(self) -> None:
        self._counted = torch.cuda.memory_stats_as_nested_dict(self._device) if self.is_used else {}

    def peak_allocated_bytes(self) -> int:
        """`allocated_bytes.all.peak`, also of before a library's reset."""
        return max(self._allocated_before, self._of_pools("allocated_bytes", "peak"))

    def peak_reserved_bytes(self) -> int:
        """`reserved_bytes.all.peak`, also of before a library's reset."""
        return max(self._reserved_before, self._of_pools("reserved_bytes", "peak"))

    def allocated_bytes(self) -> int:
        """`allocated_bytes.all.current`."""
        return self._of_pools("allocated_bytes", "current")

    def reserved_bytes(self) -> int:
        """`reserved_bytes.all.current`."""
        return self._of_pools("reserved_bytes", "current")

    def peak_inactive_split_bytes(self) -> int:
        """`inactive_split_bytes.all.peak`."""
        return self._of_pools("inactive_split_bytes", "peak")

    def alloc_retries(self) -> int:
        """`num_alloc_retries`."""
        return int(self._counted.get("num_alloc_retries", 0))

    def failed_allocations(self) -> int:
        """`num_ooms`."""
        return int(self._counted.get("num_ooms", 0))

    def _of_pools(self, counter: str, kind: str) -> int:
        return int(self._counted.get(counter, {}).get("all", {}).get(kind, 0))
