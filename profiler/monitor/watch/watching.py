"""A command from its preparation to its report."""

from dataclasses import dataclass, replace
from pathlib import Path

from profiler.command_line import print_error
from profiler.domain.errors import Fault, UsageError
from profiler.domain.runs.monitored import EstimateBeside, MonitoredRun
from profiler.execution.processes.host_memory import oom_kills
from profiler.measurement.driver.no_driver import NoDriver
from profiler.measurement.driver.nvml import Nvml
from profiler.measurement.driver.pynvml_driver import PynvmlDriver
from profiler.measurement.driver.visible import VisibleGpus, visible_gpus
from profiler.monitor.command import Command
from profiler.monitor.watch.running import CommandRun, run_command
from profiler.monitor.watch.signals import raise_pending
from profiler.monitor.watch.start import start_now
from profiler.monitor.watch.watched import record_of
from profiler.storage.files.atomic import StorageError, write_atomically
from profiler.storage.files.trial_files import RECORDS
from profiler.storage.records.record_folder import MONITORED, RecordFolder
from profiler.storage.stores.folder_faults import not_writable, writable_faults


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
            from profiler.monitor.watch.estimated import estimate_beside  # imports NumPy

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
    from profiler.storage.tables.samples import write_time_series

    write_time_series(folder, watched.record.run_id, watched.run.samples, watched.run.host_samples)
    for sentence in (*write_report(folder), *sentences(lines_of(folder, watched.record))):
        print_error(sentence)
    print_error(f"Report: {folder / PAGE}")
