"""A record in which every value is another one, and one without any: what is in parquet is what was found."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from itertools import count
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import builders
import pandas as pd
import pyarrow.parquet as pq
import pytest

from profiler.domain.runs.outcome import Breakdown, Estimate, Status, TrialRecord
from profiler.domain.runs.readings import OutOfMemory, Sample
from profiler.domain.trials.trial import TrialSpec
from profiler.storage.records.outcome_fields import OUTCOME_FIELDS
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import read_tables, table_path, write_tables
from profiler.storage.tables.run_tables import write_samples
from profiler.storage.tables.schema import OPTIONAL_TABLES, RUNS, TABLES

TAKEN: Counter[type] = Counter()
"""Members of each enumeration that were taken."""


def filled(kind: Any, numbers: Iterator[int]) -> Any:
    """A value of this type that no other has, as far as the type has so many."""
    if get_origin(kind) is UnionType or NoneType in get_args(kind):
        return filled(next(each for each in get_args(kind) if each is not NoneType), numbers)
    if get_origin(kind) in (tuple, Sequence):
        return tuple(filled(get_args(kind)[0], numbers) for _ in range(2))
    number = next(numbers)
    if kind is Breakdown:
        hints = get_type_hints(kind)
        return Breakdown(**{name: filled(hints[name], numbers) for name in ("shares", "largest")})
    if is_dataclass(kind):
        return kind(**{name: filled(hint, numbers) for name, hint in get_type_hints(kind).items()})
    if issubclass(kind, Enum):
        # One after the other: two in a row differ, however many numbers lie between them.
        TAKEN[kind] += 1
        return list(kind)[TAKEN[kind] % len(kind)]
    return {bool: bool(number % 2), int: number, float: number + 0.5, str: f"text {number}"}[kind]


def lawful(record: TrialRecord) -> TrialRecord:
    """The record with parts that sum to its peak, which is that of its largest phase."""
    outcome = record.outcome
    one, *others = outcome.breakdown.shares
    rest = outcome.peaks.allocated_bytes - sum(share.size_bytes for share in others)
    phase, *phases = outcome.peaks.phases
    small = [replace(each, peak_allocated_bytes=number) for number, each in enumerate(phases, start=1)]
    outcome = builders.changed(
        outcome,
        breakdown=(replace(one, size_bytes=rest), *others),
        phases=(replace(phase, peak_allocated_bytes=outcome.peaks.allocated_bytes), *small),
    )
    return replace(record, outcome=outcome)


@pytest.fixture
def record() -> TrialRecord:
    full = filled(TrialRecord, count(1000))
    return lawful(replace(full, outcome=builders.changed(full.outcome, peak_allocated_bytes=1_000_000)))


@pytest.fixture
def estimate() -> Estimate:
    return filled(Estimate, count(5000))


def plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    return ",".join(value) if isinstance(value, tuple) else value


def in_runs(name: str, record: TrialRecord, estimate: Estimate) -> Any:
    """What a column of `runs` is to hold, by its name."""
    if name.startswith("oom_"):
        return plain(getattr(record.outcome.verdict.oom, name.removeprefix("oom_")))
    if name.startswith("estimated_"):
        return getattr(estimate, name.removeprefix("estimated_"))
    if name.endswith("_version") and name not in ("driver_version", "fsdp_version"):
        return getattr(record.versions, name.removesuffix("_version"))
    if name in OUTCOME_FIELDS:
        part, attribute = OUTCOME_FIELDS[name]
        return plain(getattr(getattr(record.outcome, part), attribute))
    (holder,) = [each for each in (record, record.spec) if hasattr(each, name)]
    return plain(getattr(holder, name))


def rows_of(folder, name: str) -> list[dict[str, Any]]:
    return pq.read_table(table_path(folder, name)).to_pylist()


def test_every_value_of_a_record_is_in_its_own_column(tmp_path, record, estimate):
    store = RecordStore(tmp_path)
    store.write(record)
    assert store.find(record.trial_id) == record
    samples = tuple(filled(Sample, count(9000 + 100 * number)) for number in range(2))
    write_samples(tmp_path, record.trial_id, samples)
    write_tables(tmp_path, store.read_all(), {record.trial_id: estimate})

    (row,) = rows_of(tmp_path, "runs")
    assert row == {column.name: in_runs(column.name, record, estimate) for column in RUNS}
    numbers = [value for value in row.values() if isinstance(value, int | float) and not isinstance(value, bool)]
    assert len(set(numbers)) == len(numbers)

    outcome, trial = record.outcome, {"trial_id": record.trial_id}
    for name, parts in (("phases", outcome.peaks.phases), ("steps", outcome.measured.step_peaks), ("samples", samples)):
        expected = [
            {**trial, **{field.name: plain(getattr(part, field.name)) for field in fields(part)}} for part in parts
        ]
        assert rows_of(tmp_path, name) == expected
    assert rows_of(tmp_path, "breakdown") == [
        {**trial, "category": share.category.value, "bytes": share.size_bytes} for share in outcome.breakdown.shares
    ]
    assert rows_of(tmp_path, "shape") == [
        {
            **trial,
            "instant": number,
            "phase": instant.phase.value,
            "category": share.category.value,
            "bytes": share.size_bytes,
        }
        for number, instant in enumerate(outcome.unlimited.step_shape, start=1)
        for share in instant.shares
    ]
    assert rows_of(tmp_path, "largest") == [
        {
            **trial,
            "rank": rank,
            "bytes": group.size_bytes,
            "tensors": group.tensors,
            "category": group.category.value,
            "shape": "x".join(str(size) for size in group.shape),
            "dtype": group.dtype,
            "name": group.name,
            "module": group.module,
            "operation": group.operation,
            "phase": group.phase.value,
        }
        for rank, group in enumerate(outcome.breakdown.largest, start=1)
    ]
    for name, columns in {**TABLES, **OPTIONAL_TABLES}.items():
        assert [column.name for column in columns] == list(rows_of(tmp_path, name)[0])


OF_THE_TRIAL = {field.name for field in fields(TrialSpec)} | {"trial_id", "grid", "label", "status"}


@pytest.mark.parametrize("oom", [None, OutOfMemory(phase=builders.Phase.FORWARD, requested_bytes=None)])
def test_what_is_not_known_is_null_and_never_0(tmp_path, oom):
    empty = builders.record(builders.spec(), outcome=builders.outcome_of(Status.OOM, oom=oom))
    write_tables(tmp_path, [empty], {})

    (row,) = rows_of(tmp_path, "runs")
    known = {name for name, value in row.items() if value is not None} - OF_THE_TRIAL
    assert known - {f"{field.name}_version" for field in fields(empty.versions)} == ({"oom_phase"} if oom else set())
    runs = read_tables(tmp_path).runs
    assert {name for name in runs if not pd.isna(runs[name].iloc[0])} == {
        name for name, value in row.items() if value is not None
    }
