"""The columns of the tables of monitored runs: their own, and those that they share with the tables of a sweep."""

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from profiler.domain.monitored import Watcher
from profiler.storage.schema import PHASES, RESULT, STEPS, VERSIONS, Column, count_column, size, text
from profiler.storage.schema import SAMPLES as TRIAL_SAMPLES

_NOT_REPORTED = "the driver does not report it"
_NO_ESTIMATE = "no config= was given, or a callback kept the record"
_ESTIMATED = "estimated_"

_RUN = text("run_id", "start of the run in UTC, and the number of its process", identifies=True)
_GPU = count_column("gpu", "index", "the GPU, in the order of CUDA_VISIBLE_DEVICES, from 0", identifies=True)

_OWN = (
    _RUN,
    text("watcher", "command: from outside; callback: VramCallback, in the process that trains", words=Watcher),
    text("command", "the words of the command or of the process, as a shell would take them"),
    text("started_at", "when it began, in UTC"),
    count_column("exit_code", "exit code", "as a shell would report it", "a callback kept the record", least=None),
    size("host_tree_peak_bytes", "most memory of its processes together, by samples", "the kernel does not report it"),
    count_column("host_processes", "processes", "most processes at once, by samples", "not sampled"),
    size("host_used_peak_bytes", "most memory in use on the whole host, by samples", "the kernel does not report it"),
    size("host_total_bytes", "memory of the host", "the kernel does not report it"),
    size("estimated_peak_bytes", "the peak by the closed form, in tensors", _NO_ESTIMATE),
    size("estimated_device_bytes", "the same as torch reserves it, with the assumed CUDA context", _NO_ESTIMATE),
    text("estimated_phase", "the phase of the estimated peak", _NO_ESTIMATE),
    text("status", "how the run ended; oom is a result"),
    text("message", "why it did not end well", "it ended well"),
)

_GPUS = (
    _RUN,
    _GPU,
    text("uuid", "the GPU as the driver names it"),
    text("name", "name of the card"),
    size("memory_bytes", "its memory as the driver reports it", ""),
    size("before_bytes", "in use before the run, by other programs", _NOT_REPORTED),
    size("peak_used_bytes", "most bytes in use by all programs, by samples: a lower bound", _NOT_REPORTED),
    size("peak_process_bytes", "most bytes in use by the run's own processes, by samples", _NOT_REPORTED),
    Column(
        name="mean_utilisation_percent",
        kind=pa.float64(),
        unit="percent",
        meaning="mean share of time in which a kernel ran",
        null=_NOT_REPORTED,
        least=0,
    ),
    Column(
        name="mean_power_watts",
        kind=pa.float64(),
        unit="W",
        meaning="mean power of the card",
        null=_NOT_REPORTED,
        least=0,
    ),
    text("problem", "why sampling ended early", "it did not"),
)

_TIME = Column(
    name="time_s",
    kind=pa.float64(),
    unit="s",
    meaning="since the start of sampling, on a monotonic clock",
    null="",
    least=0,
)


def _of_run(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns of a table of a sweep, with the run in place of the trial."""
    return (_RUN, *(column for column in columns if column.name != "trial_id"))


_RUN_OF_SAMPLE, _GPU_OF_SAMPLE = replace(_RUN, identifies=False), replace(_GPU, identifies=False)

SAMPLES = (
    _RUN_OF_SAMPLE,
    _GPU_OF_SAMPLE,
    _TIME,
    *(column for column in TRIAL_SAMPLES if column.name not in ("trial_id", "time_s")),
)

HOST = (
    _RUN_OF_SAMPLE,
    _TIME,
    count_column("processes", "processes", "processes of the run"),
    size("tree_bytes", "their resident memory; pages that they share count once for each", ""),
    size("used_bytes", "memory in use on the whole host", "the kernel does not report it"),
)

MONITORED_TABLES: Mapping[str, tuple[Column, ...]] = {
    "monitored": (*_OWN, *(column for column in RESULT if not column.name.startswith(_ESTIMATED)), *VERSIONS),
    "monitored_gpus": _GPUS,
    "monitored_phases": _of_run(PHASES),
    "monitored_steps": _of_run(STEPS),
    "monitored_samples": SAMPLES,
    "monitored_host": HOST,
}
"""By file name without suffix."""
