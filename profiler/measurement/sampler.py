"""A thread that reads the driver's figures at a fixed period, tagged with phase and optimizer step.

It asks the driver only: it allocates no GPU memory, calls nothing of torch and never empties a cache. What lasts
shorter than its period it can miss; the exact peaks are the counters' (`phase_counters.py`).
"""

import threading
from collections.abc import Callable

from profiler.domain.memory import Phase
from profiler.domain.outcome import Sample
from profiler.measurement.nvml import GpuLostError, GpuProbe

PERIOD_S = 0.01
SLOW_EVERY = 10
"""Every how many samples the figures are read that the driver itself renews rarely or takes long over: process memory,
utilisation, power and clock."""

Whereabouts = Callable[[], tuple[Phase | None, int]]
"""Gives the phase and the optimizer step (from 1; 0 before the first) that the trial is in."""


class Sampler:
    """Collects samples of one GPU between `start` and `stop`."""

    def __init__(
        self,
        probe: GpuProbe,
        *,
        clock: Callable[[], float],
        where: Whereabouts,
        period_s: float = PERIOD_S,
        slow_every: int = SLOW_EVERY,
    ) -> None:
        """`clock` is monotonic, in seconds; the samples' times count from now."""
        self.period_s = period_s
        self._probe = probe
        self._clock = clock
        self._where = where
        self._slow_every = slow_every
        self._origin_s = clock()
        self._samples: list[Sample] = []
        self._lost: str = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """What was read so far, in order."""
        return tuple(self._samples)

    @property
    def gpu_lost(self) -> str:
        """The driver's words when the GPU was lost; empty while it is there. No sample is taken afterwards."""
        return self._lost

    def start(self) -> None:
        """Begin; the first sample is taken at once."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples; waits for the one being taken."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def take(self) -> bool:
        """Take one sample now; False once the GPU is lost."""
        if self._lost:
            return False
        slow = len(self._samples) % self._slow_every == 0
        phase, step = self._where()
        try:
            self._samples.append(
                Sample(
                    time_s=self._clock() - self._origin_s,
                    phase=phase,
                    step=step,
                    device_used_bytes=self._probe.used_bytes(),
                    process_used_bytes=self._probe.process_bytes() if slow else None,
                    utilisation_percent=self._probe.utilisation_percent() if slow else None,
                    power_watts=self._probe.power_watts() if slow else None,
                    sm_clock_mhz=self._probe.sm_clock_mhz() if slow else None,
                )
            )
        except GpuLostError as error:
            self._lost = str(error)
            return False
        return True

    def _run(self) -> None:
        due_s = self._clock()
        while self.take():
            due_s += self.period_s
            late_s = self._clock() - due_s
            if late_s > 0:
                # Missed turns are left out, not made up for in a burst.
                due_s += late_s // self.period_s * self.period_s
            if self._stop.wait(max(0.0, due_s - self._clock())):
                return
