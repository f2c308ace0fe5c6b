"""The recorder of one GPU while something runs: memory before it, the driver's samples, and the loss of the GPU.

A trial, `VramCallback` and a watched command use it, each in its `Mode`. `counter_recorder.py` adds torch's counters.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from profiler.domain.memory import Phase
from profiler.domain.runs.monitored import MonitoredGpu
from profiler.domain.runs.readings import Sample
from profiler.domain.runs.script import NamedCard
from profiler.measurement.driver.nvml import GpuProbe
from profiler.measurement.driver.visible import VisibleGpu
from profiler.measurement.samples.activity import mean_of, sampled_max_device_bytes
from profiler.measurement.samples.bounded_samples import MOST_SAMPLES
from profiler.measurement.samples.sampler import SLOW_EVERY, Sampler, Whereabouts


@dataclass(frozen=True, kw_only=True)
class Mode:
    """How much a recorder may cost what it records."""

    most_samples: int = MOST_SAMPLES
    """More are merged."""
    has_times: bool = False
    """Whether the counters wait for the GPU, so that the time of a phase is that of its work."""
    context_after: frozenset[Phase] = frozenset()
    """Phases at whose end the memory of CUDA beyond torch's is read, which takes a call of the driver."""
    owns_cuda: bool = False
    """Whether CUDA is in use from the first phase on. Otherwise nothing is read until torch has reserved memory."""
    subtracts_unmapped: bool = False
    """Whether memory that vLLM has returned to the driver is subtracted, which takes a walk through its pools."""


SYNCHRONISED = Mode(
    most_samples=sys.maxsize,
    has_times=True,
    context_after=frozenset(Phase),
    owns_cuda=True,
    subtracts_unmapped=True,
)
"""A trial, which may be slowed down where phases change."""

CHEAP = Mode(context_after=frozenset({Phase.LOAD, Phase.OPTIMIZER}))
"""Training of others in this process: the GPU is never waited for, and the driver is asked once per step."""

OUTSIDE = Mode()
"""A command in processes of its own: samples, and no counters."""


class Recorder:
    """Samples of one GPU, and what they show."""

    def __init__(
        self,
        mode: Mode,
        *,
        probe: GpuProbe | None,
        before_bytes: int | None,
        sample_period_s: float | None,
        slow_every: int = SLOW_EVERY,
    ) -> None:
        """Take no sample yet.

        Args:
            mode: What recording may cost.
            probe: Values of the GPU; None without one.
            before_bytes: Memory in use before the run, by other programs; None if unknown.
            sample_period_s: Time between two samples; None takes none.
            slow_every: As of `Sampler`.
        """
        self.mode = mode
        self.probe = probe
        self.before_bytes = before_bytes
        self.sample_period_s = sample_period_s
        self._slow_every = slow_every
        self._sampler: Sampler | None = None

    def prepare(self, clock: Callable[[], float], where: Whereabouts = lambda: (None, 0)) -> None:
        """Make the sampler: times of samples count from now on `clock`."""
        if self.probe is None or self.sample_period_s is None:
            return
        self._sampler = Sampler(
            self.probe,
            clock=clock,
            where=where,
            period_s=self.sample_period_s,
            slow_every=self._slow_every,
            most_samples=self.mode.most_samples,
        )

    def start(self) -> None:
        """Sample in a thread."""
        if self._sampler is not None:
            self._sampler.start()

    def stop(self) -> None:
        """Stop the thread."""
        if self._sampler is not None:
            self._sampler.stop()

    def take(self) -> None:
        """Take one sample now."""
        if self._sampler is not None:
            self._sampler.take()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples so far."""
        return self._sampler.samples if self._sampler is not None else ()

    @property
    def gpu_lost(self) -> str:
        """The driver's message if the GPU was lost while it was sampled; empty if not."""
        return self._sampler.gpu_lost if self._sampler is not None else ""

    @property
    def missing(self) -> Mapping[str, str]:
        """The reason per value that the driver did not report."""
        return self.probe.missing if self.probe is not None else {}

    @property
    def sampled_max_device_bytes(self) -> int | None:
        """The highest sample of device memory; None without one."""
        return sampled_max_device_bytes(self.samples)

    def monitored(self, gpu: NamedCard | VisibleGpu, index: int) -> MonitoredGpu:
        """Return what the samples show, of the GPU with this index among those that the run sees."""
        samples = self.samples
        own = [one.process_used_bytes for one in samples if one.process_used_bytes is not None]
        return MonitoredGpu(
            index=index,
            uuid=gpu.uuid,
            name=gpu.name,
            memory_bytes=gpu.memory_bytes,
            before_bytes=self.before_bytes,
            peak_used_bytes=self.sampled_max_device_bytes,
            peak_process_bytes=max(own, default=None),
            mean_utilisation_percent=mean_of(one.utilisation_percent for one in samples),
            mean_power_watts=mean_of(one.power_watts for one in samples),
            problem=self.gpu_lost,
        )
