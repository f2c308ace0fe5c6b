"""The columns of every table: the one place that names, types and explains them.

Sizes are integers of bytes. Null means "not known here", never 0; `null` says why it can be so for a column.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from profiler.domain.keys import Key, Kind
from profiler.domain.trial import TRIAL_KEYS, key_named

SCHEMA_VERSION = 2
"""Written into every table; raised when a column changes its name, type or meaning. A column that can be null may be
added without: tables from before it are read with nulls there."""

_TEXT, _COUNT, _REAL, _YES_NO = pa.string(), pa.int64(), pa.float64(), pa.bool_()


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    kind: pa.DataType
    """pyarrow's type."""
    unit: str
    """``"bytes"``, ``"s"``, a word for what is counted, or empty for text."""
    meaning: str
    null: str
    """What null means; empty where a value is never null."""
    earlier: object = None
    """Value in rows from before the column existed; None where it is unknown there, and null."""

    @property
    def may_be_missing(self) -> bool:
        """Whether a table from before the column existed can be read."""
        return bool(self.null) or self.earlier is not None

    def before_it_existed(self, rows: int) -> pa.Array:
        """Return the column of a table from before it existed."""
        return pa.array([self.earlier] * rows, self.kind)


def _column(name: str, kind: pa.DataType, unit: str, meaning: str, null: str = "") -> Column:
    return Column(name=name, kind=kind, unit=unit, meaning=meaning, null=null)


def _text(name: str, meaning: str, null: str = "") -> Column:
    return _column(name, _TEXT, "", meaning, null)


def _size(name: str, meaning: str, null: str) -> Column:
    return _column(name, _COUNT, "bytes", meaning, null)


_NO_GPU = "backend cpu, or the trial ended before it was known"
_NO_ESTIMATE = "the closed form does not say"
_FULL = "tuning is full"
_NO_ALLOCATOR = "not known with this backend"
_NO_OOM = "status is not oom, or the framework does not say"
_STILL_GROWING = "not measured, the peak still grew in the last step, or there was but one"
_TOO_FEW_STEPS = "not measured, or fewer than two steps are left"
_NOT_CUDA = "backend is not cuda, or the trial ended before it was known"
_NOT_GIVEN = "not measured, or the driver does not give it (not_measured says why)"
_NOT_SAMPLED = "nothing was sampled, or the driver does not give it"

_KINDS: Mapping[Kind, pa.DataType] = {
    Kind.CHOICE: _TEXT,
    Kind.TEXT: _TEXT,
    Kind.NAMES: _TEXT,
    Kind.COUNT: _COUNT,
    Kind.NUMBER: _REAL,
    Kind.FLAG: _YES_NO,
}


def _key_column(key: Key) -> Column:
    column = _column(key.name, _KINDS[key.kind], key.unit, key.meaning, key.null)
    return replace(column, earlier=str(key.earlier)) if key.since else column


_BACKEND = _key_column(key_named("backend"))

_TRIAL = (
    _text("trial_id", "content hash of the specification and the versions"),
    _text("grid", "the grid that the trial belongs to"),
    _text("label", "the method's name in tables"),
    _BACKEND,
    _text("status", "how the trial ended; oom is an answer"),
    _text("message", "why it did not end well", "it ended well"),
)

_SPEC = tuple(_key_column(key) for key in TRIAL_KEYS if key.name != _BACKEND.name)

_RESULT = (
    _column("parameters", _COUNT, "parameters", "parameters of the model, tied ones once, adapters apart", _NO_GPU),
    _column("trainable_parameters", _COUNT, "parameters", "parameters that get a gradient", _NO_GPU),
    _text("gpu_name", "name of the card measured or simulated", _NO_GPU),
    _size("gpu_memory_bytes", "the card's memory as torch reports it; of a capped card, the cap", _NO_GPU),
    _size("peak_allocated_bytes", "most bytes in tensors at once; in an oom row, before failing", _NO_GPU),
    _size("peak_reserved_bytes", "most bytes held by torch's caching allocator", "not known with this backend"),
    _size("peak_device_bytes", "most bytes in use by the driver's count", "not known with this backend"),
    _text("peak_phase", "the phase of peak_allocated_bytes", _NO_GPU),
    _size("required_allocated_bytes", "the peak that a card of unlimited memory would have seen", "not simulated"),
    _size("required_reserved_bytes", "peak_reserved_bytes on a card of unlimited memory", "not simulated"),
    _size(
        "required_unreleasable_bytes",
        "most bytes in segments with a tensor in them, on such a card: what no full card gets back",
        "not simulated",
    ),
    _size("context_bytes", "what CUDA itself takes on the card; assumed when simulated", "not known with this backend"),
    _size("peak_inactive_split_bytes", "most bytes free between blocks in use", "not known with this backend"),
    _column("alloc_retries", _COUNT, "retries", "times the allocator gave its cache back to make room", _NO_ALLOCATOR),
    _text("oom_phase", "the phase that ran out of memory", "status is not oom"),
    _column("oom_step", _COUNT, "optimizer steps", "the step that ran out, from 1; 0 while loading", _NO_OOM),
    _size("oom_requested_bytes", "the allocation that did not fit", _NO_OOM),
    _size("oom_free_bytes", "what the driver had left when it was asked for", _NO_OOM),
    _size("oom_allocated_bytes", "what was in tensors then", _NO_OOM),
    _size("oom_reserved_bytes", "what torch's allocator held then", _NO_OOM),
    _size("estimated_peak_allocated_bytes", "peak_allocated_bytes by the closed form", _NO_ESTIMATE),
    _size("estimated_peak_reserved_bytes", "peak_reserved_bytes by the closed form", _NO_ESTIMATE),
    _size("estimated_peak_rule_bytes", "the peak by the published blog's rule of thumb", _NO_ESTIMATE),
    _column(
        "steps_run",
        _COUNT,
        "optimizer steps",
        "optimizer steps that really ran to their end",
        "the worker did not report",
    ),
    _column(
        "micro_batches_run", _COUNT, "micro-batches", "backward passes that really ran", "the worker did not report"
    ),
    _column("wall_s", _REAL, "s", "time of the trial from start to end", "the worker did not report"),
    _column("step_time_s", _REAL, "s", "mean time of an optimizer step, rollout included", "simulated, or no step"),
    _size("host_peak_rss_bytes", "most memory of the worker process on the host", "the worker did not report"),
    _text("gpu_uuid", "the GPU measured on, as the driver names it", _NOT_CUDA),
    _text("driver_version", "version of NVIDIA's driver", _NOT_GIVEN),
    _column("startup_s", _REAL, "s", "from the worker's start to the first phase: imports, CUDA's context", _NOT_CUDA),
    _column("load_s", _REAL, "s", "models, adapters and the trainer made", _NOT_CUDA),
    _column("rollout_s", _REAL, "s", "mean time of an optimizer step's rollouts", "not measured, or no rollout"),
    _size("sampled_max_device_bytes", "the driver's count, polled, of all programs: a lower bound", _NOT_GIVEN),
    _column("sample_period_s", _REAL, "s", "from one sample to the next; what is shorter can be missed", _NOT_CUDA),
    _size("missed_by_sampling_bytes", "how much of the device's peak no sample saw: it was too short", _NOT_GIVEN),
    _column("settled_step", _COUNT, "optimizer steps", "the step at which the peak stopped growing", _STILL_GROWING),
    _column("growth_bytes_per_step", _REAL, "bytes", "slope of the steps' peaks from there on", _TOO_FEW_STEPS),
    _text("not_measured", "what the driver did not give, and why", "nothing is missing, or nothing was measured"),
    _column("gpu_s", _REAL, "s", "how long the trial held a GPU", "it held none"),
    _text("implied_by", "the trial that ran out of memory though it needs no more", "status is not implied"),
)

_VERSIONS = (
    _text("torch_version", "version of torch", "not installed"),
    _text("trl_version", "version of trl", "not installed"),
    _text("transformers_version", "version of transformers", "not installed"),
    _text("peft_version", "version of peft", "not installed"),
    _text("bitsandbytes_version", "version of bitsandbytes", "not installed"),
    _text("profiler_version", "version of this project"),
)

RUNS = (*_TRIAL, *_SPEC, *_RESULT, *_VERSIONS)
"""`runs.parquet`: a row a trial."""

PHASES = (
    _text("trial_id", "the trial"),
    _text("phase", "what the trainer was doing"),
    _size("peak_allocated_bytes", "most bytes in tensors at once during the phase", _NO_GPU),
    _size("peak_reserved_bytes", "most bytes held by torch's allocator in the phase", "not known with this backend"),
    _column("time_s", _REAL, "s", "in all its steps together", _NOT_CUDA),
    _column("samples", _COUNT, "samples", "samples taken in it", _NOT_CUDA),
    _size("sampled_max_device_bytes", "the driver's count, polled, of all programs: a lower bound", _NOT_SAMPLED),
    _column("mean_utilisation_percent", _REAL, "percent", "share of time in which a kernel ran", _NOT_SAMPLED),
    _column("mean_power_watts", _REAL, "W", "what the card drew", _NOT_SAMPLED),
    _column("mean_sm_clock_mhz", _REAL, "MHz", "clock of its processors", _NOT_SAMPLED),
)
"""`phases.parquet`: a row a phase that ran; the largest of a trial is its peak."""

BREAKDOWN = (
    _text("trial_id", "the trial"),
    _text("category", "what the bytes are"),
    _size("bytes", "bytes of the category at the instant of peak_allocated_bytes; they sum to it exactly", ""),
)
"""`breakdown.parquet`: a row a category."""

LARGEST = (
    _text("trial_id", "the trial"),
    _column("rank", _COUNT, "place", "1 for the largest group"),
    _size("bytes", "bytes of the group at the instant of peak_allocated_bytes", ""),
    _column("tensors", _COUNT, "tensors", "tensors in the group: alike, from the same place in every layer"),
    _text("category", "what the bytes are"),
    _text("shape", "sizes joined by x; empty for a scalar or a kernel's scratch"),
    _text("dtype", "data type by torch's name; empty for a kernel's scratch"),
    _text("name", "what it is, where that is known; empty elsewhere"),
    _text("module", "path of the module that made it, layers as *; empty where it has a name"),
    _text("operation", "the operation that made it; empty for weights and states"),
    _text("phase", "the phase in which it was made"),
)
"""`largest.parquet`: a row each for the ten largest tensors, or groups of tensors alike, at the peak."""

STEPS = (
    _text("trial_id", "the trial"),
    _column("step", _COUNT, "optimizer steps", "the optimizer step, from 1; 0 while loading"),
    _text("phase", "what the trainer was doing"),
    _size("peak_allocated_bytes", "most bytes in tensors at once, by torch's exact counter", ""),
    _size("peak_reserved_bytes", "most bytes held by torch's allocator, by its exact counter", ""),
    _column("time_s", _REAL, "s", "how long it lasted"),
    _size(
        "context_bytes",
        "what CUDA held beyond torch's memory where the phase ended",
        "what others had on the GPU is not known, or paged optimizer states hide it",
    ),
)
"""`steps.parquet`: a row a phase of an optimizer step, measured trials only."""

_NOT_READ = "not read at this sample, or the driver does not give it"

SAMPLES = (
    _text("trial_id", "the trial"),
    _column("time_s", _REAL, "s", "since the sampling began, on a monotonic clock"),
    _text("phase", "what the trainer was doing", "before the first phase"),
    _column("step", _COUNT, "optimizer steps", "the optimizer step, from 1; 0 while loading"),
    _size("device_used_bytes", "in use on the GPU by all programs, by the driver", _NOT_READ),
    _size("process_used_bytes", "in use on the GPU by the trial's processes, by the driver", _NOT_READ),
    _column("utilisation_percent", _COUNT, "percent", "share of the last moment in which a kernel ran", _NOT_READ),
    _column("power_watts", _REAL, "W", "what the card draws", _NOT_READ),
    _column("sm_clock_mhz", _COUNT, "MHz", "clock of the card's processors", _NOT_READ),
)
"""`samples.parquet`: a row a sample, measured trials only. The driver's figures, polled: peaks between two samples are
missed; the exact ones are in `steps`."""

TABLES: Mapping[str, tuple[Column, ...]] = {
    "runs": RUNS,
    "phases": PHASES,
    "breakdown": BREAKDOWN,
    "largest": LARGEST,
}
"""By the name of the file without its ending: those that every grid has."""

SHAPE = (
    _text("trial_id", "the trial"),
    _column("instant", _COUNT, "place", "place in the step, from 1; in the order of events, not by a clock"),
    _text("phase", "what the trainer was doing"),
    _text("category", "what the bytes are"),
    _size("bytes", "bytes of the category then", ""),
)
"""`shape.parquet`: the last optimizer step of a simulated trial, ten instants of each phase; a row a category."""

OPTIONAL_TABLES: Mapping[str, tuple[Column, ...]] = {"steps": STEPS, "samples": SAMPLES, "shape": SHAPE}
"""Those that are there only if they have rows: steps and samples of what was measured, shape of what was simulated."""


def arrow_schema(columns: tuple[Column, ...], *, about: Mapping[str, str]) -> pa.Schema:
    """The columns as pyarrow wants them, each with its meaning, and `about` with the schema version on the table."""
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
