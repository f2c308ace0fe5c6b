"""A thread that samples the driver at a fixed period, and samples in memory of known size.

A thread that samples the driver at a fixed period; each sample has its phase and optimizer step.

The thread calls only the driver: it allocates no GPU memory and calls nothing of torch. It can miss peaks that are
shorter than its period; the counters have the exact ones (`phase_counters.py`).
"""

import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from profiler.domain.memory import Phase
from profiler.domain.runs.other_runs import HostSample
from profiler.domain.runs.readings import Sample
from profiler.measurement.driver.nvml import GpuLostError, GpuProbe

Kind = TypeVar("Kind")

MOST_SAMPLES = 20_000


class BoundedSamples(Generic[Kind]):
    """At most `most` samples. When there are more, each two neighbours become one, and later samples do as well."""

    def __init__(self, merge: Callable[[Kind, Kind], Kind], *, most: int = MOST_SAMPLES) -> None:
        """`merge` returns one sample in place of two that follow each other."""
        self._merge = merge
        self._most = most
        self._kept: list[Kind] = []
        self._waiting: Kind | None = None
        self._count_of_waiting = 0
        self.stride = 1
        """Readings in one sample."""

    def append(self, sample: Kind) -> None:
        """Add a reading."""
        self._waiting = sample if self._waiting is None else self._merge(self._waiting, sample)
        self._count_of_waiting += 1
        if self._count_of_waiting < self.stride:
            return
        self._kept.append(self._waiting)
        self._waiting, self._count_of_waiting = None, 0
        if len(self._kept) >= self._most and len(self._kept) % 2 == 0:
            pairs = zip(self._kept[::2], self._kept[1::2], strict=False)
            self._kept = [self._merge(one, other) for one, other in pairs]
            self.stride *= 2

    def samples(self) -> tuple[Kind, ...]:
        """Return the samples so far, in order."""
        return (*self._kept, *(() if self._waiting is None else (self._waiting,)))


def merged_sample(one: Sample, other: Sample) -> Sample:
    """Return one sample for two: the highest memory, with the phase it was read in, and the means of the rest."""
    higher = max(one, other, key=lambda each: each.device_used_bytes or 0)
    utilisation = _mean(one.utilisation_percent, other.utilisation_percent)
    clock = _mean(one.sm_clock_mhz, other.sm_clock_mhz)
    return replace(
        higher,
        time_s=one.time_s,
        process_used_bytes=_highest(one.process_used_bytes, other.process_used_bytes),
        utilisation_percent=None if utilisation is None else round(utilisation),
        power_watts=_mean(one.power_watts, other.power_watts),
        sm_clock_mhz=None if clock is None else round(clock),
    )


def merged_host_sample(one: HostSample, other: HostSample) -> HostSample:
    """Return one sample for two: the highest of each value."""
    return HostSample(
        time_s=one.time_s,
        processes=max(one.processes, other.processes),
        tree_bytes=max(one.tree_bytes, other.tree_bytes),
        used_bytes=_highest(one.used_bytes, other.used_bytes),
        shared_bytes=_highest(one.shared_bytes, other.shared_bytes),
    )


def _highest(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


def _mean(one: float | None, other: float | None) -> float | None:
    known = [value for value in (one, other) if value is not None]
    return sum(known) / len(known) if known else None


PERIOD_S = 0.01
SLOW_EVERY = 10
"""Every tenth sample includes the values that the driver updates rarely or reads slowly: process memory, utilisation,
power and clock."""

Whereabouts = Callable[[], tuple[Phase | None, int]]
"""Returns the phase and the optimizer step (from 1; 0 before the first) of the trial."""


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
        most_samples: int = sys.maxsize,
    ) -> None:
        """`clock` is monotonic, in seconds; times of samples count from now. More than `most_samples` are merged."""
        self.period_s = period_s
        self._probe = probe
        self._clock = clock
        self._where = where
        self._slow_every = slow_every
        self._origin_s = clock()
        self._samples = BoundedSamples(merged_sample, most=most_samples)
        self._taken = 0
        self._lost: str = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples so far, in order."""
        return self._samples.samples()

    @property
    def gpu_lost(self) -> str:
        """The driver's message if the GPU was lost, else empty. No sample is taken afterwards."""
        return self._lost

    def start(self) -> None:
        """Start sampling, with the first sample at once."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling; wait for a sample that is being taken."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def take(self) -> bool:
        """Take one sample now; return False once the GPU is lost."""
        if self._lost:
            return False
        slow = self._taken % self._slow_every == 0
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
        self._taken += 1
        return True

    def _run(self) -> None:
        due_s = self._clock()
        while self.take():
            due_s += self.period_s
            late_s = self._clock() - due_s
            if late_s > 0:
                # Missed samples are skipped, not caught up in a burst.
                due_s += late_s // self.period_s * self.period_s
            if self._stop.wait(max(0.0, due_s - self._clock())):
                return
