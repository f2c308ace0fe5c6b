"""Run a command and sample the GPUs, its processes and the host until it ends; signals wait."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.other_runs import HostPeaks, HostSample, MonitoredGpu
from profiler.domain.runs.readings import Sample
from profiler.measurement.driver.nvml import GpuLostError, GpuProbe, Nvml
from profiler.measurement.driver.visible import VisibleGpu
from profiler.measurement.recorder import OUTSIDE, Recorder
from profiler.measurement.samples.host_usage import (
    RecentProcessTree,
    host_memory,
    process_tree,
    resident_and_shared_bytes,
)
from profiler.measurement.samples.sampler import MOST_SAMPLES, BoundedSamples, merged_host_sample
from profiler.storage.files.foreign_files import start_reason

PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
"""Of users, schedulers and terminals. Those that stop and continue processes reach the command by themselves."""

_READ = frozenset((*PASSED_ON, signal.SIGCHLD))

_BY_KERNEL = 0x80
"""`SI_KERNEL`: from the terminal, which sends it to the command as well."""


@contextmanager
def signals_wait() -> Iterator[frozenset[int]]:
    """Within the block signals stay pending; yields the mask from before, which a command must start with.

    Enter it before a library makes threads: a signal goes to any thread that does not block it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _READ)
    try:
        yield frozenset(before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def raise_pending() -> None:
    """Let the signals that have come so far, and that end a command, do so."""
    pending = signal.sigpending() & {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    if pending:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, pending)


def wait_for(process: "subprocess.Popen[bytes]", *, period_s: float, each_period: Callable[[], object]) -> int:
    """Wait until `process` ends, within `signals_wait`, and return its exit code as a shell would report it.

    Args:
        process: A process of the group of this one.
        period_s: How often `each_period` is called, the first time at once. Periods that are missed are skipped.
        each_period: Takes a sample.
    """
    due_s = time.monotonic()
    while process.poll() is None:
        each_period()
        due_s += period_s * max(1, (time.monotonic() - due_s) // period_s)
        _pass_on_until(due_s, process)
    return exit_code_of(process.returncode)


def _pass_on_until(due_s: float, process: "subprocess.Popen[bytes]") -> None:
    """Read signals until `due_s` or until the process has ended."""
    while True:
        found = signal.sigtimedwait(_READ, max(0.0, due_s - time.monotonic()))
        if found is None:
            return
        if found.si_signo == signal.SIGCHLD:
            if process.poll() is not None:
                return
        elif found.si_code != _BY_KERNEL:
            process.send_signal(found.si_signo)


def exit_code_of(code: int) -> int:
    """Return 128 + n for a process that signal n ended, as shells do."""
    return code if code >= 0 else 128 - code


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
        tree, shared = resident_and_shared_bytes(pids)
        self.samples.append(
            HostSample(time_s=now_s, processes=len(pids), tree_bytes=tree, used_bytes=used, shared_bytes=shared)
        )

    def peaks(self) -> HostPeaks:
        found = self.samples.samples()
        return HostPeaks(
            tree_bytes=max((one.tree_bytes for one in found), default=None),
            shared_bytes=max((one.shared_bytes for one in found if one.shared_bytes is not None), default=None),
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
        problem = f"cannot be started ({start_reason(words[0], error)})"
        raise UsageError([Fault(key="command", found=" ".join(words), problem=problem)]) from error
