"""A row as the project's own job, its model, and whether its peaks are possible."""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from maintenance.benchmark.rows.schema import End, Metric, Origin, Row
from profiler.analytical import parameter_count
from profiler.config.models.architecture import read_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.trials.trial import Backend, DistributedType, OffloadDevice, TrialSpec, Tuning

FOLDER = Path(__file__).parents[3] / "benchmark"
"""Where the set is."""

_WEIGHT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FOUR_BITS = 0.5
_SHARDED_STAGE = 3


@cache
def other_models() -> Mapping[str, Mapping[str, object]]:
    """Return the `config.json` of models of the set that are not built in."""
    found: Mapping[str, Mapping[str, object]] = json.loads((FOLDER / "models.json").read_text())
    return found


def config_of(model: str) -> Mapping[str, object]:
    """Return the `config.json` of a model of the set.

    Raises:
        UsageError: The set has no model of that name.
    """
    builtin = find_builtin(model)
    if builtin is not None:
        return builtin.config
    if model not in other_models():
        hint = "Add its config.json to benchmark/models.json."
        raise UsageError([Fault(key="model", found=model, problem="has no configuration in the set", hint=hint)])
    return other_models()[model]


@cache
def architecture_of(model: str) -> Architecture:
    """Return the architecture of a model of the set."""
    return read_architecture(config_of(model), model=model)


def spec_of(row: Row) -> TrialSpec:
    """Return a row as the project's own job, on a simulated card.

    Raises:
        UsageError: The job has something that no key can say, or a key is refused.
    """
    if row.beyond:
        found = "; ".join(row.beyond)
        raise UsageError([Fault(key="job", found=found, problem="is beyond the keys of a trial")])
    return parse_point({"backend": Backend.SIMULATED.value, **row.job}, architecture_of=architecture_of)


def least_bytes(row: Row) -> int:
    """Return a lower bound of the job's memory on one card: the weights that stay there."""
    job = row.job
    count = int(parameter_count(architecture_of(str(job["model"]))))
    size = _FOUR_BITS if job["tuning"] == Tuning.QLORA else _WEIGHT_BYTES[str(job.get("dtype", "bfloat16"))]
    is_sharded = job.get("distributed_type") == DistributedType.FSDP or job.get("zero_stage") == _SHARDED_STAGE
    is_on_host = job.get("offload_param_device") == OffloadDevice.CPU or job.get("fsdp_offload_params") is True
    processes = int(str(job.get("num_processes", 1))) if is_sharded else 1
    return 0 if is_on_host else int(count * size) // processes


def faults_of(row: Row) -> list[Fault]:
    """Return what is impossible in a row: peaks that break physics, or a source that nobody can look up."""
    peaks = {peak.metric: peak for peak in row.peaks}
    found = [
        Fault(key=row.row_id, found=f"{larger.value} {peaks[larger].size_bytes}", problem=f"is below {smaller.value}")
        for smaller, larger in (
            (Metric.ALLOCATED, Metric.RESERVED),
            (Metric.RESERVED, Metric.DEVICE),
            (Metric.ALLOCATED, Metric.DEVICE),
        )
        if {smaller, larger} <= set(peaks)
        and peaks[larger].size_bytes + peaks[larger].unit_bytes < peaks[smaller].size_bytes - peaks[smaller].unit_bytes
    ]
    for peak in row.peaks:
        size = f"{peak.metric.value} {peak.size_bytes}"
        if peak.size_bytes - peak.unit_bytes > row.card.memory_bytes and not row.card.spills_to_host:
            found.append(Fault(key=row.row_id, found=size, problem=f"is above the card's {row.card.memory_bytes}"))
        if peak.size_bytes + peak.unit_bytes < least_bytes(row) and row.end is End.OK:
            found.append(Fault(key=row.row_id, found=size, problem=f"is below the weights, {least_bytes(row)}"))
    if row.end is End.OK and not row.peaks:
        found.append(Fault(key=row.row_id, found="no peak", problem="must have one"))
    for name in ("url", "commit", "licence"):
        if not getattr(row.source, name):
            found.append(Fault(key=row.row_id, found="", problem=f"has no {name} of its source"))
    if row.origin is Origin.OTHERS and not row.source.url.startswith("https://"):
        found.append(Fault(key=row.row_id, found=row.source.url, problem="must have an address that others can open"))
    return found


def checked(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows, by their names.

    Raises:
        UsageError: A row is impossible, or two have one name.
    """
    by_name: dict[str, Row] = {}
    faults: list[Fault] = []
    for row in rows:
        if row.row_id in by_name:
            faults.append(Fault(key=row.row_id, found="a second row", problem="has the name of another one"))
        by_name[row.row_id] = row
        faults += faults_of(row)
    if faults:
        raise UsageError(faults)
    return tuple(by_name[name] for name in sorted(by_name))
