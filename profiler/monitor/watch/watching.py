"""A watched command from its preparation to its record and report, next to its estimate."""

import json
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiler.analysis.runs import fullest_gpu, own_peak_bytes
from profiler.command_line import print_error
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import EXIT_SIGNAL_BASE, Fault, UsageError
from profiler.domain.runs.other_runs import EstimateBeside, MonitoredRun, Watcher
from profiler.domain.runs.outcome import CardFacts, MeasuredDetails, Outcome, Peaks, Status, Verdict, Work
from profiler.estimate.main import answer
from profiler.execution.processes.child import oom_kills
from profiler.measurement.driver.nvml import NoDriver, Nvml
from profiler.measurement.driver.pynvml_driver import PynvmlDriver
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus, visible_gpus
from profiler.measurement.recorder import Start, start_now
from profiler.monitor.command import Command
from profiler.monitor.watch.running import CommandRun, raise_pending, run_command
from profiler.storage.files.atomic import StorageError, write_atomically
from profiler.storage.files.trial_files import RECORDS
from profiler.storage.records.record_folder import MONITORED, RecordFolder
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.record_store import not_writable, writable_faults

_GPU = "gpu"


def estimate_beside(words: Sequence[str], gpus: Sequence[VisibleGpu]) -> EstimateBeside | None:
    """Return the estimate for `words`, on the card of this machine unless they name one; None without words.

    Raises:
        UsageError: With all faults that were found.
    """
    if not words:
        return None
    card = _known_card(gpus)
    asked = [*words, *([f"{_GPU}={card}"] if card and not any(word.startswith(f"{_GPU}=") for word in words) else [])]
    content = json.loads(answer([*asked, "format=json"]))
    found = _of_verl(content) if "training_peak_bytes" in content else _of_trial(content)
    if found is None:
        problem = "describes several trials or cards, and one run is compared with one estimate"
        raise UsageError([Fault(key="estimate", found=" ".join(words), problem=problem)])
    peak_bytes, device_bytes, phase = found
    return EstimateBeside(peak_bytes=peak_bytes, device_bytes=device_bytes, phase=phase, text=answer(asked))


def _known_card(gpus: Sequence[VisibleGpu]) -> str | None:
    """Return our name of the first GPU; None if it is unknown."""
    if not gpus:
        return None
    real = gpus[0]
    return next((name for name, known in KNOWN_GPUS.items() if known.is_called(real.name, real.memory_bytes)), None)


def _of_verl(content: dict[str, Any]) -> tuple[int, int | None, str]:
    return int(content["peak_bytes"]), None, str(content["peak_phase"])


def _of_trial(content: dict[str, Any]) -> tuple[int, int | None, str] | None:
    if "peak_allocated_bytes" not in content:
        return None
    wanted = content["trial"].get(_GPU)
    contexts = [card["assumed_context_bytes"] for card in content["gpus"] if card[_GPU] == wanted]
    reserved = content["peak_reserved_bytes"]
    device = None if reserved is None or not contexts or contexts[0] is None else reserved + contexts[0]
    return int(content["peak_allocated_bytes"]), device, str(content["peak_phase"])


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


@dataclass(frozen=True, kw_only=True)
class WatchedCommand:
    """A command that has ended."""

    record: MonitoredRun
    run: CommandRun

    @property
    def exit_code(self) -> int:
        """As a shell would report it."""
        return self.run.exit_code


def watch(command: Command, folder: Path, mask: frozenset[int]) -> WatchedCommand:
    """Run the command and sample it until it ends, within `signals_wait`.

    Raises:
        UsageError: With all faults, before the command starts.
    """
    visible = visible_gpus()
    nvml: Nvml = PynvmlDriver() if visible.gpus else NoDriver(visible.note)
    estimate = _prepared(command, folder, visible)
    if not visible.gpus:
        print_error(f"No GPU is sampled, because {visible.note}; the processes and the host are.")
    start, kills = start_now(), oom_kills()
    period_s = command.options.sample_period_s
    run = run_command(command.words, visible.gpus, nvml, period_s=period_s, mask=mask)
    record = record_of(
        run,
        command.words,
        start,
        estimate=estimate,
        driver_version=visible.driver_version,
        note=visible.note,
        period_s=period_s,
        host_ran_out=(oom_kills() or 0) > (kills or 0),
    )
    return WatchedCommand(record=record, run=run)


def _prepared(command: Command, folder: Path, visible: VisibleGpus) -> EstimateBeside | None:
    """Return the estimate; check that results can be stored.

    Raises:
        UsageError: With all faults.
        Interrupted: The user has interrupted it meanwhile.
    """
    results_dir = str(command.options.results_dir)
    faults = [replace(fault, found=results_dir) for fault in writable_faults(folder)]
    estimate = None
    try:
        RecordFolder(folder, MONITORED).read_all()  # a record of a newer version is found before anything starts
        if command.estimate:
            estimate = estimate_beside(command.estimate, visible.gpus)
    except UsageError as error:
        faults.extend(error.faults)
    if not faults:
        faults = _trial_write(folder, results_dir)
    if faults:
        raise UsageError(faults)
    raise_pending()
    return estimate


def _trial_write(folder: Path, results_dir: str) -> list[Fault]:
    """Write a file where the record will be, and remove it; return why that is not possible."""
    path = folder / RECORDS / ".check"
    try:
        write_atomically(path, b"checked")
        path.unlink(missing_ok=True)
    except StorageError as error:
        why = getattr(error.__cause__, "strerror", None) or str(error)
        return [replace(not_writable(folder, why), found=results_dir)]
    return []


def report(folder: Path, watched: WatchedCommand) -> None:
    """Store the record and the time series, then write tables and pages, and say what was found.

    Raises:
        StorageError: A file could not be written.
    """
    RecordFolder(folder, MONITORED).write(watched.record)
    # Imported here, because importing matplotlib and pyarrow takes longer than everything before.
    from profiler.monitor.watch.results import PAGE, lines_of, sentences, write_report
    from profiler.storage.tables.run_tables import write_time_series

    write_time_series(folder, watched.record.run_id, watched.run.samples, watched.run.host_samples)
    for sentence in (*write_report(folder), *sentences(lines_of(folder, watched.record))):
        print_error(sentence)
    print_error(f"Report: {folder / PAGE}")
