"""torch's counters at the price of one call, for programs whose time matters more than the times of their phases."""

from profiler.domain.script import NamedCard
from profiler.measurement.late_cuda import LateCuda
from profiler.measurement.shared_counters import Stats


class CheapCuda(LateCuda):
    """`LateCuda` that never waits for the GPU. Its counters are those of the last `synchronize`.

    Peaks need no waiting: the allocator counts on the host, when a kernel is launched.
    """

    def __init__(self, card: NamedCard, *, device: int = 0) -> None:
        super().__init__(card, device=device)
        self._counted: Stats = {}

    def synchronize(self) -> None:
        """Read all counters at once, and do not wait."""
        self._counted = super().stats_now()

    def stats_now(self) -> Stats:
        """Return the counters of the last `synchronize`."""
        return self._counted
