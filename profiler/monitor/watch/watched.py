"""The record of a command that was watched."""

import signal
from collections.abc import Sequence
from contextlib import suppress

from profiler.analysis.monitored import fullest_gpu, own_peak_bytes
from profiler.domain.errors import EXIT_SIGNAL_BASE
from profiler.domain.runs.monitored import EstimateBeside, MonitoredRun, Watcher
from profiler.domain.runs.outcome import CardFacts, MeasuredDetails, Outcome, Peaks, Status, Verdict, Work
from profiler.monitor.watch.running import CommandRun
from profiler.monitor.watch.start import Start
from profiler.storage.records.versions import installed_versions

_NO_PHASES = "phases and torch's own counters: the command was watched from outside"


def record_of(
    run: CommandRun,
    words: Sequence[str],
    start: Start,
    *,
    estimate: EstimateBeside | None,
    driver_version: str,
    note: str,
    period_s: float,
    host_ran_out: bool,
) -> MonitoredRun:
    """Return the record of a command.

    Args:
        run: What was sampled.
        words: The command.
        start: When it began.
        estimate: The estimate of the same job.
        driver_version: Empty if it is unknown.
        note: Why no GPU was sampled; empty if one was.
        period_s: Time between two samples.
        host_ran_out: Whether the kernel killed a process for lack of memory meanwhile.
    """
    fullest = fullest_gpu(run.gpus)
    missing = [f"{name}: {why}" for name, why in run.unavailable.items()]
    unavailable = [_NO_PHASES, *([f"GPUs: {note}"] if note else []), *missing]
    return MonitoredRun(
        run_id=start.run_id,
        watcher=Watcher.COMMAND,
        command=tuple(words),
        started_at=start.started_at,
        exit_code=run.exit_code,
        gpus=run.gpus,
        host=run.host,
        estimate=estimate,
        versions=installed_versions(),
        outcome=Outcome(
            verdict=_verdict(run.exit_code, host_ran_out=host_ran_out, unavailable="; ".join(unavailable)),
            work=Work(wall_s=run.wall_s),
            card=CardFacts(
                name=fullest.name if fullest else None, memory_bytes=fullest.memory_bytes if fullest else None
            ),
            peaks=Peaks(device_bytes=own_peak_bytes(fullest) if fullest else None),
            measured=MeasuredDetails(
                gpu_uuid=fullest.uuid if fullest else None,
                driver_version=driver_version or None,
                sampled_max_device_bytes=fullest.peak_used_bytes if fullest else None,
                sample_period_s=period_s,
            ),
        ),
    )


def _verdict(exit_code: int, *, host_ran_out: bool, unavailable: str) -> Verdict:
    if exit_code == 0:
        return Verdict(status=Status.OK, unavailable=unavailable)
    number = exit_code - EXIT_SIGNAL_BASE
    if number == signal.SIGKILL:
        status = Status.HOST_OOM if host_ran_out else Status.KILLED
        why = "the kernel killed it, because the host ran out of memory" if host_ran_out else "it received SIGKILL"
        return Verdict(status=status, message=why, unavailable=unavailable)
    message = f"the command ended with exit code {exit_code}"
    with suppress(ValueError):
        message = f"the command ended by {signal.Signals(number).name}" if number > 0 else message
    return Verdict(status=Status.FAILED, message=message, unavailable=unavailable)
