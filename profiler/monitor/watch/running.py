"""Run a command and sample the GPUs, its processes and the host until it ends."""

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.monitored import HostPeaks, HostSample, MonitoredGpu
from profiler.domain.runs.readings import Sample
from profiler.measurement.driver.nvml import GpuLostError, GpuProbe, Nvml
from profiler.measurement.driver.visible import VisibleGpu
from profiler.measurement.recorder import OUTSIDE, Recorder
from profiler.measurement.samples.bounded_samples import MOST_SAMPLES, BoundedSamples, merged_host_sample
from profiler.measurement.samples.host_usage import host_memory, resident_bytes
from profiler.measurement.samples.process_tree import RecentProcessTree, process_tree
from profiler.monitor.watch.signals import wait_for

_SLOW_S = 0.1
"""Values that the driver reads slowly, such as memory by process, are sampled at most this often."""


@dataclass(frozen=True, kw_only=True)
class CommandRun:
    """A command that has ended, and what was sampled."""

    pid: int
    exit_code: int
    wall_s: float
    gpus: tuple[MonitoredGpu, ...]
    samples: dict[int, tuple[Sample, ...]]
    """By the index of the GPU."""
    host: HostPeaks
    host_samples: tuple[HostSample, ...]
    unavailable: dict[str, str]
    """The reason per value that the driver did not report."""


@dataclass(frozen=True)
class _Gpu:
    index: int
    gpu: VisibleGpu
    recorder: Recorder

    def finished(self) -> MonitoredGpu:
        return self.recorder.monitored(self.gpu, index=self.index)


@dataclass
class _Tree:
    """The processes of the command; none before it starts."""

    recent: RecentProcessTree | None = None

    def __call__(self) -> frozenset[int]:
        return self.recent() if self.recent else frozenset()


@dataclass
class _Host:
    """Samples of the host."""

    tree: Callable[[], frozenset[int]]
    started_s: float
    samples: BoundedSamples[HostSample] = field(
        default_factory=lambda: BoundedSamples(merged_host_sample, most=MOST_SAMPLES)
    )
    total_bytes: int | None = None

    def take(self) -> None:
        pids = self.tree()
        used, self.total_bytes = host_memory()
        now_s = time.monotonic() - self.started_s
        tree_bytes = resident_bytes(pids)
        self.samples.append(HostSample(time_s=now_s, processes=len(pids), tree_bytes=tree_bytes, used_bytes=used))

    def peaks(self) -> HostPeaks:
        found = self.samples.samples()
        return HostPeaks(
            tree_bytes=max((one.tree_bytes for one in found), default=None),
            processes=max((one.processes for one in found), default=None),
            used_bytes=max((one.used_bytes for one in found if one.used_bytes is not None), default=None),
            total_bytes=self.total_bytes,
        )


def run_command(
    words: Sequence[str],
    gpus: Sequence[VisibleGpu],
    nvml: Nvml,
    *,
    period_s: float,
    mask: frozenset[int],
) -> CommandRun:
    """Run a command with the standard streams of this process, within `signals_wait`.

    Args:
        words: The command.
        gpus: The GPUs to sample.
        nvml: The driver.
        period_s: Time between two samples.
        mask: Signals that are blocked in the command.

    Raises:
        UsageError: The command cannot be started.
    """
    started_s = time.monotonic()
    tree = _Tree()
    slow_every = max(1, round(_SLOW_S / period_s))
    watched = [
        _Gpu(index, gpu, _recorder(GpuProbe(nvml, gpu.uuid, own_processes=tree), period_s, slow_every))
        for index, gpu in enumerate(gpus)
    ]
    process = _start(words, mask)
    tree.recent = RecentProcessTree(for_s=_SLOW_S, tree=lambda: process_tree(process.pid))
    host = _Host(tree=tree, started_s=started_s)
    for each in watched:
        each.recorder.prepare(time.monotonic)

    def take() -> None:
        host.take()
        for each in watched:
            each.recorder.take()

    exit_code = wait_for(process, period_s=period_s, each_period=take)
    return CommandRun(
        pid=process.pid,
        exit_code=exit_code,
        wall_s=time.monotonic() - started_s,
        gpus=tuple(each.finished() for each in watched),
        samples={each.index: each.recorder.samples for each in watched},
        host=host.peaks(),
        host_samples=host.samples.samples(),
        unavailable={name: why for each in watched for name, why in each.recorder.missing.items()},
    )


def _recorder(probe: GpuProbe, period_s: float, slow_every: int) -> Recorder:
    before = None
    with suppress(GpuLostError):  # its sampler reports it
        before = probe.before_the_trial()
    return Recorder(OUTSIDE, probe=probe, before_bytes=before, sample_period_s=period_s, slow_every=slow_every)


def _start(words: Sequence[str], mask: frozenset[int]) -> "subprocess.Popen[bytes]":
    try:
        return subprocess.Popen(list(words), preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, mask))
    except OSError as error:
        problem = f"cannot be started ({error.strerror or error})"
        raise UsageError([Fault(key="command", found=" ".join(words), problem=problem)]) from error
