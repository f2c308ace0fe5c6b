"""The columns of every table: names, types and meanings. Those of a trial's keys come from `profiler.domain.trial`.

Sizes are integers of bytes. Null means "unknown here", never 0; `null` gives the reason for each column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from profiler.domain.keys import Key, Kind
from profiler.domain.memory import Category, Phase
from profiler.domain.outcome import Status
from profiler.domain.trial import TRIAL_KEYS, key_named

SCHEMA_VERSION = 2
"""Version in every table, raised when a column changes its name, type or meaning. Not raised for an added column that
can be null or that has an `earlier` value: older tables are read with that."""

_TEXT, _COUNT, _REAL, _YES_NO = pa.string(), pa.int64(), pa.float64(), pa.bool_()


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    kind: pa.DataType
    """pyarrow's type."""
    unit: str
    """``"bytes"``, ``"s"``, a word for the things counted, or empty for text."""
    meaning: str
    null: str
    """What null means; empty where a value is never null."""
    earlier: object = None
    """Value in rows from before the column existed; None where it is unknown there, and null."""
    words: type[StrEnum] | None = None
    """The allowed values of a text; None where any text is allowed."""
    least: int | None = None
    """The smallest allowed number; None where numbers can be negative, and for texts."""
    identifies: bool = False
    """Whether the column is one of those that together differ in any two rows."""
    sums_to: str = ""
    """The column of `runs` that the values of one trial sum to; empty if there is none."""
    peaks_at: str = ""
    """The column of `runs` that is the largest value of one trial; empty if there is none."""

    @property
    def may_be_missing(self) -> bool:
        """Whether a table from before the column existed can be read."""
        return bool(self.null) or self.earlier is not None

    def before_it_existed(self, rows: int) -> pa.Array:
        """Return the column of a table from before it existed."""
        return pa.array([self.earlier] * rows, self.kind)


def _column(name: str, kind: pa.DataType, unit: str, meaning: str, null: str = "", **laws: Any) -> Column:  # noqa: ANN401
    least = None if kind in (_TEXT, _YES_NO) else 0
    return Column(name=name, kind=kind, unit=unit, meaning=meaning, null=null, **{"least": least, **laws})


def text(name: str, meaning: str, null: str = "", **laws: Any) -> Column:  # noqa: ANN401
    """Return a column of texts."""
    return _column(name, _TEXT, "", meaning, null, **laws)


def count_column(name: str, unit: str, meaning: str, null: str = "", **laws: Any) -> Column:  # noqa: ANN401
    """Return a column of whole numbers."""
    return _column(name, _COUNT, unit, meaning, null, **laws)


def size(name: str, meaning: str, null: str, **laws: Any) -> Column:  # noqa: ANN401
    """Return a column of sizes in bytes."""
    return _column(name, _COUNT, "bytes", meaning, null, **laws)


_NO_GPU = "backend is cpu, or the trial ended before the value was known"
_NO_ESTIMATE = "there is no closed form"
_NO_ALLOCATOR = "unknown with this backend"
_NOT_UNLIMITED = "not simulated, and not emulated and out of memory"
_NO_OOM = "status is not oom, or the framework does not report it"
_STILL_GROWING = "simulated, the peak grew in the last step, or there was only one step"
_TOO_FEW_STEPS = "simulated, or fewer than two steps remain"
_NO_TIME = "emulated or simulated: nothing was computed"
_NOT_CUDA = "backend is not cuda, or the trial ended before the value was known"
_NOT_GIVEN = "not measured, or the driver does not report it (not_measured gives the reason)"
_NOT_SAMPLED = "no samples, or the driver does not report it"

_KINDS: Mapping[Kind, pa.DataType] = {
    Kind.CHOICE: _TEXT,
    Kind.TEXT: _TEXT,
    Kind.NAMES: _TEXT,
    Kind.COUNT: _COUNT,
    Kind.NUMBER: _REAL,
    Kind.FLAG: _YES_NO,
}


def _key_column(key: Key) -> Column:
    least = {Kind.COUNT: min(key.minimum, 1), Kind.NUMBER: 0}.get(key.kind)
    column = _column(key.name, _KINDS[key.kind], key.unit, key.meaning, key.null)
    return replace(column, earlier=key.earlier, words=key.choices, least=least)


_BACKEND = _key_column(key_named("backend"))

_TRIAL = (
    text("trial_id", "content hash of the specification and the versions", identifies=True),
    text("grid", "the grid of the trial"),
    text("label", "the method's name in tables"),
    _BACKEND,
    text("status", "how the trial ended; oom is a result", words=Status),
    text("message", "why the trial failed or was refused", "it did not fail"),
)

_SPEC = tuple(_key_column(key) for key in TRIAL_KEYS if key.name != _BACKEND.name)

RESULT = (
    _column("parameters", _COUNT, "parameters", "parameters of the model without adapters, tied ones once", _NO_GPU),
    _column("trainable_parameters", _COUNT, "parameters", "parameters with a gradient", _NO_GPU),
    text("gpu_name", "name of the measured, emulated or simulated card", _NO_GPU),
    size("gpu_memory_bytes", "the card's memory as torch reports it; of a capped card, the cap", _NO_GPU),
    size("peak_allocated_bytes", "most bytes in tensors at once; in an oom row, before the failure", _NO_GPU),
    size("peak_reserved_bytes", "most bytes held by torch's caching allocator", _NO_ALLOCATOR),
    size(
        "peak_device_bytes",
        "most bytes in use by the driver's count; reserved bytes and the assumed context when emulated or simulated",
        _NO_ALLOCATOR,
    ),
    text("peak_phase", "the phase of peak_allocated_bytes", _NO_GPU, words=Phase),
    size("required_allocated_bytes", "the peak on a card of unlimited memory", _NOT_UNLIMITED),
    size("required_reserved_bytes", "peak_reserved_bytes on a card of unlimited memory", _NOT_UNLIMITED),
    size(
        "required_unreleasable_bytes",
        "most bytes in segments that contain a tensor, on such a card: a full card cannot release them",
        "not simulated",
    ),
    size("context_bytes", "memory of CUDA itself on the card; assumed when emulated or simulated", _NO_ALLOCATOR),
    size("peak_inactive_split_bytes", "most free bytes between blocks in use", _NO_ALLOCATOR),
    _column(
        "alloc_retries", _COUNT, "retries", "times the allocator released its cache and tried again", _NO_ALLOCATOR
    ),
    text("oom_phase", "the phase that ran out of memory", "status is not oom", words=Phase),
    _column("oom_step", _COUNT, "optimizer steps", "the step that ran out of memory, from 1; 0 while loading", _NO_OOM),
    size("oom_requested_bytes", "the allocation that did not fit", _NO_OOM),
    size("oom_free_bytes", "free bytes by the driver at that time", _NO_OOM),
    size("oom_allocated_bytes", "bytes in tensors at that time", _NO_OOM),
    size("oom_reserved_bytes", "bytes held by torch's allocator at that time", _NO_OOM),
    size("estimated_peak_allocated_bytes", "peak_allocated_bytes by the closed form", _NO_ESTIMATE),
    size("estimated_peak_reserved_bytes", "peak_reserved_bytes by the closed form", _NO_ESTIMATE),
    size("estimated_peak_rule_bytes", "the peak by the published blog's rule of thumb", _NO_ESTIMATE),
    _column(
        "steps_run",
        _COUNT,
        "optimizer steps",
        "optimizer steps that ran to their end",
        "the worker did not report",
    ),
    _column("micro_batches_run", _COUNT, "micro-batches", "backward passes that ran", "the worker did not report"),
    _column(
        "wall_s",
        _REAL,
        "s",
        "how long the worker ran on this machine, whatever the backend: not the time of the training on a GPU",
        "the worker did not report",
    ),
    _column("step_time_s", _REAL, "s", "mean time of an optimizer step, rollout included", _NO_TIME + ", or no step"),
    size("host_peak_rss_bytes", "most memory of the worker process on the host", "the worker did not report"),
    text("gpu_uuid", "the GPU measured on, as the driver names it", _NOT_CUDA),
    text("driver_version", "version of NVIDIA's driver", _NOT_GIVEN),
    _column(
        "startup_s", _REAL, "s", "from the start of the worker to the first phase: imports, the CUDA context", _NOT_CUDA
    ),
    _column("load_s", _REAL, "s", "time to create models, adapters and the trainer", _NOT_CUDA),
    _column("rollout_s", _REAL, "s", "mean time of an optimizer step's rollouts", "not measured, or no rollout"),
    size("sampled_max_device_bytes", "the driver's count, polled, of all programs: a lower bound", _NOT_GIVEN),
    _column("sample_period_s", _REAL, "s", "time between two samples; shorter peaks can be missed", _NOT_CUDA),
    size(
        "missed_by_sampling_bytes",
        "part of the device's peak that no sample shows, because it was too short",
        _NOT_GIVEN,
    ),
    _column("settled_step", _COUNT, "optimizer steps", "the step at which the peak stopped growing", _STILL_GROWING),
    _column(
        "growth_bytes_per_step",
        _REAL,
        "bytes",
        "slope of the peaks of the steps after that",
        _TOO_FEW_STEPS,
        least=None,
    ),
    text(
        "not_measured",
        "figures that are missing or uncertain, and why; what an emulated trial cannot contain",
        "nothing is missing",
    ),
    text(
        "emulated_values",
        "complete, or the integers and booleans that the host read without their being computed",
        "not emulated, or the trial ended before the value was known",
    ),
    _column("gpu_s", _REAL, "s", "how long the trial used GPUs, summed over them", "it used none"),
    text("implied_by", "the trial that ran out of memory and needs at most as much", "status is not implied"),
)

VERSIONS = (
    text("torch_version", "version of torch", "not installed"),
    text("trl_version", "version of trl", "not installed"),
    text("transformers_version", "version of transformers", "not installed"),
    text("peft_version", "version of peft", "not installed"),
    text("bitsandbytes_version", "version of bitsandbytes", "not installed"),
    text("profiler_version", "version of this project"),
    text("cuda_version", "the CUDA release that torch was built for", "not emulated"),
    text("emulation_version", "version of the emulated driver", "not emulated"),
    text("deepspeed_version", "version of DeepSpeed", "not installed"),
    text("vllm_version", "version of vLLM", "not installed"),
)

RUNS = (*_TRIAL, *_SPEC, *RESULT, *VERSIONS)
"""`runs.parquet`: one row per trial."""

PHASES = (
    text("trial_id", "the trial", identifies=True),
    text("phase", "part of the training step", words=Phase, identifies=True),
    size(
        "peak_allocated_bytes",
        "most bytes in tensors at once during the phase",
        _NO_GPU,
        peaks_at="peak_allocated_bytes",
    ),
    size("peak_reserved_bytes", "most bytes held by torch's allocator during the phase", _NO_ALLOCATOR),
    _column("time_s", _REAL, "s", "in all steps together", _NOT_CUDA),
    _column("samples", _COUNT, "samples", "samples during the phase", _NOT_CUDA),
    size("sampled_max_device_bytes", "the driver's count, polled, of all programs: a lower bound", _NOT_SAMPLED),
    _column("mean_utilisation_percent", _REAL, "percent", "share of time in which a kernel ran", _NOT_SAMPLED),
    _column("mean_power_watts", _REAL, "W", "power of the card", _NOT_SAMPLED),
    _column("mean_sm_clock_mhz", _REAL, "MHz", "clock of the card's processors", _NOT_SAMPLED),
)
"""`phases.parquet`: one row per phase that ran; the largest of a trial is its peak."""

BREAKDOWN = (
    text("trial_id", "the trial", identifies=True),
    text("category", "kind of content", words=Category, identifies=True),
    size(
        "bytes",
        "bytes of the category at the instant of peak_allocated_bytes; they sum to it exactly",
        "",
        sums_to="peak_allocated_bytes",
    ),
)
"""`breakdown.parquet`: one row per category."""

LARGEST = (
    text("trial_id", "the trial", identifies=True),
    _column("rank", _COUNT, "place", "1 for the largest group", least=1, identifies=True),
    size("bytes", "bytes of the group at the instant of peak_allocated_bytes", ""),
    _column("tensors", _COUNT, "tensors", "tensors in the group: equal ones from the same place in each layer"),
    text("category", "kind of content", words=Category),
    text("shape", "sizes joined by x; empty for a scalar or a kernel's scratch"),
    text("dtype", "data type, by torch's name; empty for a kernel's scratch"),
    text("name", "name of the tensor; empty where unknown"),
    text("module", "path of the module that created it, layers as *; empty where it has a name"),
    text("operation", "the operation that created it; empty for weights and states"),
    text("phase", "the phase in which it was created", words=Phase),
)
"""`largest.parquet`: one row per tensor or group of equal tensors, for the ten largest at the peak."""

STEPS = (
    text("trial_id", "the trial", identifies=True),
    _column("step", _COUNT, "optimizer steps", "the optimizer step, from 1; 0 while loading", identifies=True),
    text("phase", "part of the training step", words=Phase, identifies=True),
    size("peak_allocated_bytes", "most bytes in tensors at once, by torch's exact counter", ""),
    size("peak_reserved_bytes", "most bytes held by torch's allocator, by its exact counter", ""),
    _column("time_s", _REAL, "s", "duration", "emulated: nothing was computed"),
    size(
        "context_bytes",
        "memory of CUDA beyond torch's at the end of the phase",
        "emulated, the memory of other programs on the GPU is unknown, or paged optimizer states hide it",
    ),
)
"""`steps.parquet`: one row per phase of an optimizer step, of measured and emulated trials only."""

_NOT_READ = "not read at this sample, or the driver does not report it"

SAMPLES = (
    text("trial_id", "the trial"),
    _column("time_s", _REAL, "s", "since the start of sampling, on a monotonic clock"),
    text("phase", "part of the training step", "before the first phase", words=Phase),
    _column("step", _COUNT, "optimizer steps", "the optimizer step, from 1; 0 while loading"),
    size("device_used_bytes", "in use on the GPU by all programs, as the driver reports", _NOT_READ),
    size("process_used_bytes", "in use on the GPU by the processes of the trial, as the driver reports", _NOT_READ),
    _column(
        "utilisation_percent", _COUNT, "percent", "share of the driver's last interval in which a kernel ran", _NOT_READ
    ),
    _column("power_watts", _REAL, "W", "power of the card", _NOT_READ),
    _column("sm_clock_mhz", _COUNT, "MHz", "clock of the card's processors", _NOT_READ),
)
"""`samples.parquet`: one row per sample, of measured trials only. Peaks between two samples of the driver are
missed; `steps` has the exact ones."""

TABLES: Mapping[str, tuple[Column, ...]] = {
    "runs": RUNS,
    "phases": PHASES,
    "breakdown": BREAKDOWN,
    "largest": LARGEST,
}
"""Tables of every grid, by file name without suffix."""

SHAPE = (
    text("trial_id", "the trial", identifies=True),
    _column(
        "instant",
        _COUNT,
        "place",
        "place in the step, from 1; in the order of events, not by a clock",
        least=1,
        identifies=True,
    ),
    text("phase", "what the trainer was doing", words=Phase),
    text("category", "what the bytes are", words=Category, identifies=True),
    size("bytes", "bytes of the category at that instant", ""),
)
"""`shape.parquet`: the last optimizer step of a simulated trial, ten instants per phase; one row per category."""

OPTIONAL_TABLES: Mapping[str, tuple[Column, ...]] = {"steps": STEPS, "samples": SAMPLES, "shape": SHAPE}
"""Tables that exist only if they have rows: steps of measured and emulated trials, samples of measured ones, shape of
simulated ones."""


def arrow_schema(columns: Sequence[Column], *, about: Mapping[str, str]) -> pa.Schema:
    """Return the schema of pyarrow, with the meaning of each column, and with `about` and the schema version."""
    return pa.schema(
        [
            pa.field(
                column.name,
                column.kind,
                nullable=bool(column.null),
                metadata={"unit": column.unit, "meaning": column.meaning, "null": column.null},
            )
            for column in columns
        ],
        metadata={"schema_version": str(SCHEMA_VERSION), **about},
    )
