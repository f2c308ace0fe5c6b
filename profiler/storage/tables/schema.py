"""The columns of every table: names, types and meanings, as the fields of `profiler.domain` declare.

Content of parquet files that belongs to Arrow alone.

Arrow reads in threads, and a thread may release the content a moment after the table has been read. If the content is a
Python object, the thread then waits for the interpreter; if the interpreter is about to end, the process is aborted.

The columns of every table: names, types and meanings, as the fields of `profiler.domain` declare them.

Sizes are integers of bytes. Null means "unknown here", never 0; `null` gives the reason for each column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa

from profiler.domain.runs.columns import ColumnField, columns_of
from profiler.domain.runs.other_runs import HeldTensors, HostSample, MonitoredGpu, MonitoredRun, ScriptRecord
from profiler.domain.runs.outcome import Estimate, Outcome, TrialRecord, Versions
from profiler.domain.runs.readings import CategoryShare, PhasePeak, Sample, StepInstant, StepPeak, TensorGroup
from profiler.domain.trials.keys import Key, Kind
from profiler.domain.trials.trial import TRIAL_KEYS, key_named


def arrow_buffer(content: bytes) -> pa.Buffer:
    """Return a copy of `content` that no thread needs Python to release."""
    copied = pa.BufferOutputStream()
    copied.write(content)
    return copied.getvalue()


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


_KINDS: Mapping[Kind, pa.DataType] = {
    Kind.CHOICE: _TEXT,
    Kind.TEXT: _TEXT,
    Kind.NAMES: _TEXT,
    Kind.COUNT: _COUNT,
    Kind.NUMBER: _REAL,
    Kind.FLAG: _YES_NO,
}
_TYPES: Mapping[type, pa.DataType] = {str: _TEXT, int: _COUNT, float: _REAL, bool: _YES_NO}

ESTIMATED = "estimated_"
"""Precedes the names of the columns of an estimate."""


def _of_key(key: Key) -> Column:
    kind = _KINDS[key.kind]
    return Column(
        name=key.name,
        kind=kind,
        unit=key.unit,
        meaning=key.meaning,
        null=key.null,
        earlier=key.earlier,
        words=key.choices,
        least={Kind.COUNT: min(key.minimum, 1), Kind.NUMBER: 0}.get(key.kind),
    )


def _of_field(field: ColumnField) -> Column:
    kind = _TYPES.get(field.kind, _TEXT)
    return Column(
        name=field.name,
        kind=kind,
        unit=field.unit,
        meaning=field.meaning,
        null=field.null,
        words=field.kind if issubclass(field.kind, StrEnum) else None,
        least=None if field.is_signed or kind in (_TEXT, _YES_NO) else 0,
        identifies=field.identifies,
        sums_to=field.sums_to,
        peaks_at=field.peaks_at,
    )


def _declared(holder: type, prefix: str = "") -> tuple[Column, ...]:
    return tuple(_of_field(each) for each in columns_of(holder, prefix))


_EARLIEST = (
    *("parameters", "trainable_parameters", "gpu_name", "gpu_memory_bytes"),
    *("peak_allocated_bytes", "peak_reserved_bytes", "peak_device_bytes", "peak_phase"),
    *("required_allocated_bytes", "required_reserved_bytes", "required_unreleasable_bytes"),
    *("context_bytes", "peak_inactive_split_bytes", "alloc_retries"),
    *("oom_phase", "oom_step", "oom_requested_bytes", "oom_free_bytes", "oom_allocated_bytes", "oom_reserved_bytes"),
    *("estimated_peak_allocated_bytes", "estimated_peak_reserved_bytes", "estimated_peak_rule_bytes"),
    *("steps_run", "micro_batches_run", "wall_s", "step_time_s", "host_peak_rss_bytes"),
    *("gpu_uuid", "driver_version", "startup_s", "load_s", "rollout_s"),
    *("sampled_max_device_bytes", "sample_period_s", "missed_by_sampling_bytes", "settled_step"),
    *("growth_bytes_per_step", "not_measured", "emulated_values", "gpu_s", "implied_by"),
)
"""The order of the columns in tables that are stored. A column that is added comes after them by itself."""


def _result(columns: Sequence[Column]) -> tuple[Column, ...]:
    places = {name: place for place, name in enumerate(_EARLIEST)}
    return tuple(sorted(columns, key=lambda column: places.get(column.name, len(places))))


def _without(columns: Sequence[Column], *names: str) -> tuple[Column, ...]:
    return tuple(column for column in columns if column.name not in names)


_OF_OUTCOME = _declared(Outcome)
_NAMED = {column.name: column for column in _OF_OUTCOME}
_STATUS, _MESSAGE = _NAMED["status"], _NAMED["message"]
_RUN_STATUS = replace(_STATUS, meaning="how the run ended; oom is a result")
_RUN_MESSAGE = replace(_MESSAGE, meaning="why it did not end well", null="it ended well")

VERSIONS = _declared(Versions)
RESULT = _result([*_without(_OF_OUTCOME, "status", "message"), *_declared(Estimate, ESTIMATED)])
_RUN_RESULT = tuple(column for column in RESULT if not column.name.startswith(ESTIMATED))


def _own(record: type) -> tuple[Column, ...]:
    """Return the columns of what only one kind of run has."""
    return _without(_declared(record), *_NAMED, *(column.name for column in VERSIONS))


_SPEC = tuple(_of_key(key) for key in TRIAL_KEYS if key.name != "backend")

RUNS = (*_own(TrialRecord), _of_key(key_named("backend")), _STATUS, _MESSAGE, *_SPEC, *RESULT, *VERSIONS)
"""`runs.parquet`: one row per trial."""

_TRIAL = replace(RUNS[0], meaning="the trial")
_RANK = Column(
    name="rank", kind=_COUNT, unit="place", meaning="1 for the largest group", null="", least=1, identifies=True
)
_INSTANT = replace(_RANK, name="instant", meaning="place in the step, from 1; in the order of events, not by a clock")
_CATEGORY, _BYTES = _declared(CategoryShare)

PHASES = (_TRIAL, *_declared(PhasePeak))
"""`phases.parquet`: one row per phase that ran; the largest of a trial is its peak."""

BREAKDOWN = (_TRIAL, _CATEGORY, _BYTES)
"""`breakdown.parquet`: one row per category."""

LARGEST = (_TRIAL, _RANK, *_declared(TensorGroup))
"""`largest.parquet`: one row per tensor or group of equal tensors, for the ten largest at the peak."""

STEPS = (_TRIAL, *_declared(StepPeak))
"""`steps.parquet`: one row per phase of an optimizer step, of measured and emulated trials only."""

SAMPLES = (replace(_TRIAL, identifies=False), *_declared(Sample))
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
    _TRIAL,
    _INSTANT,
    *_declared(StepInstant),
    replace(_CATEGORY, meaning="what the bytes are"),
    replace(_BYTES, meaning="bytes of the category at that instant", sums_to=""),
)
"""`shape.parquet`: the last optimizer step of a simulated trial, ten instants per phase; one row per category."""

OPTIONAL_TABLES: Mapping[str, tuple[Column, ...]] = {"steps": STEPS, "samples": SAMPLES, "shape": SHAPE}
"""Tables that exist only if they have rows: steps of measured and emulated trials, samples of measured ones, shape of
simulated ones."""

_SCRIPT = _own(ScriptRecord)
_LATE = tuple(column for column in _SCRIPT if column.name.startswith("late_events_"))

SCRIPT_TABLES: Mapping[str, tuple[Column, ...]] = {
    "scripts": (
        *(column for column in _SCRIPT if column not in _LATE),
        _RUN_STATUS,
        *_LATE,
        _RUN_MESSAGE,
        *_RUN_RESULT,
        *VERSIONS,
    ),
    "script_phases": (_SCRIPT[0], *PHASES[1:]),
    "script_steps": (_SCRIPT[0], *STEPS[1:]),
    "script_breakdown": (_SCRIPT[0], *BREAKDOWN[1:]),
    "script_largest": (_SCRIPT[0], replace(_RANK, meaning="1 for the largest", least=0), *_declared(HeldTensors)),
}
"""Tables of the folder of a script, by file name without suffix."""

_MONITORED = _own(MonitoredRun)
_FROM_OUTSIDE = frozenset(
    {
        *("gpu_name", "gpu_memory_bytes", "gpu_uuid", "driver_version"),
        *("peak_device_bytes", "sampled_max_device_bytes", "sample_period_s"),
        *("wall_s", "not_measured"),
    }
)
"""Results of a command that is watched; the others are known in the process that trains only."""
_MONITORED_RESULT = tuple(
    column
    if column.name in _FROM_OUTSIDE
    else replace(column, null=f"a command was watched from outside; or {column.null}")
    for column in _RUN_RESULT
)
_GPU, *_OF_GPU = _declared(MonitoredGpu)
_RUN_OF_SAMPLE, _GPU_OF_SAMPLE = replace(_MONITORED[0], identifies=False), replace(_GPU, identifies=False)

MONITORED_TABLES: Mapping[str, tuple[Column, ...]] = {
    "monitored": (*_MONITORED, _RUN_STATUS, _RUN_MESSAGE, *_MONITORED_RESULT, *VERSIONS),
    "monitored_gpus": (_MONITORED[0], _GPU, *_OF_GPU),
    "monitored_phases": (_MONITORED[0], *PHASES[1:]),
    "monitored_steps": (_MONITORED[0], *STEPS[1:]),
    "monitored_samples": (_RUN_OF_SAMPLE, _GPU_OF_SAMPLE, *SAMPLES[1:]),
    "monitored_host": (_RUN_OF_SAMPLE, *_declared(HostSample)),
}
"""Tables of the folder of monitored runs, by file name without suffix."""


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
