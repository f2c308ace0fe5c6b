"""Records and tables of all kinds of runs stay what they were: read, written again, and put into tables.

`written_before/` has records of each kind, and the tables that were made of them when they were written. It is never
written again: what is added later is null there.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from profiler.config.trials.identity import ADDED_KEYS
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.other_runs import HostSample
from profiler.domain.runs.outcome import Estimate
from profiler.domain.runs.readings import CategoryShare, Sample
from profiler.storage.records.record_folder import MONITORED, SCRIPTS, RecordFolder
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import write_tables
from profiler.storage.tables.run_tables import (
    write_monitored_tables,
    write_samples,
    write_script_tables,
    write_time_series,
)

FOLDER = Path(__file__).with_name("written_before")
REFERENCES = sorted({path.parent for path in (Path(__file__).parents[2] / "results/reference").rglob("runs.parquet")})

ESTIMATE = Estimate(
    peak_allocated_bytes=11,
    peak_reserved_bytes=None,
    peak_rule_bytes=13,
    peak_phase=Phase.FORWARD,
    breakdown=(CategoryShare(category=Category.WEIGHTS, size_bytes=11),),
)
SAMPLES = tuple(
    Sample(
        time_s=number / 2,
        phase=Phase.LOAD if number else None,
        step=number,
        device_used_bytes=number * 1000,
        process_used_bytes=None,
        utilisation_percent=number,
        power_watts=number + 0.5,
        sm_clock_mhz=None,
    )
    for number in range(2)
)
HOST_SAMPLES = tuple(
    HostSample(time_s=number / 2, processes=number, tree_bytes=number * 100, used_bytes=None) for number in range(2)
)


def trial_tables(folder: Path) -> None:
    records = RecordStore(folder).read_all()
    first = records[0].trial_id
    write_samples(folder, first, SAMPLES)
    write_tables(folder, records, {first: ESTIMATE}, question="Which?", command="python")


def script_tables(folder: Path) -> None:
    write_script_tables(folder, RecordFolder(folder, SCRIPTS).read_all())


def monitored_tables(folder: Path) -> None:
    records = RecordFolder(folder, MONITORED).read_all()
    write_time_series(folder, records[0].run_id, {0: SAMPLES, 1: SAMPLES[:1]}, HOST_SAMPLES)
    write_monitored_tables(folder, records)


@dataclass(frozen=True, kw_only=True)
class Before:
    """One kind of run."""

    store: Callable[[Path], Any]
    write_tables: Callable[[Path], None]


KINDS = {
    "trial": Before(store=RecordStore, write_tables=trial_tables),
    "script": Before(store=partial(RecordFolder, form=SCRIPTS), write_tables=script_tables),
    "monitored": Before(store=partial(RecordFolder, form=MONITORED), write_tables=monitored_tables),
}
RECORDS = [(kind, path) for kind in KINDS for path in sorted((FOLDER / kind / "records").glob("*.json"))]


def columns_of(path: Path) -> dict[str, list[Any]]:
    """The type of each column, whether it can be null, and its values."""
    table = pq.read_table(path)
    return {field.name: [str(field.type), field.nullable, table[field.name].to_pylist()] for field in table.schema}


def holds(later: Any, before: Any) -> bool:
    """Whether a value is as before, apart from keys that were added."""
    if isinstance(before, dict):
        return isinstance(later, dict) and all(key in later and holds(later[key], before[key]) for key in before)
    if isinstance(before, list):
        pairs = zip(later, before, strict=True)
        return len(later) == len(before) and all(holds(one, other) for one, other in pairs)
    return type(later) is type(before) and later == before


def test_there_are_records_of_every_kind():
    assert {kind: len([path for of, path in RECORDS if of == kind]) for kind in KINDS} == {
        "trial": 4,
        "script": 3,
        "monitored": 3,
    }


@pytest.mark.parametrize(("kind", "path"), RECORDS, ids=[f"{kind}-{path.stem}" for kind, path in RECORDS])
def test_a_record_is_read_and_written_as_before(kind, path, tmp_path):
    record = KINDS[kind].store(FOLDER / kind).find(path.stem)
    assert record is not None
    store = KINDS[kind].store(tmp_path)
    store.write(record)
    again, before = store.path(path.stem).read_bytes(), path.read_bytes()
    later, earlier = json.loads(again), json.loads(before)
    version_key = next(key for key in earlier if key.endswith("schema_version"))
    if later[version_key] == earlier[version_key]:
        assert again == before
    assert later[version_key] >= earlier[version_key]
    assert holds(later["record"], earlier["record"])


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_as_before(kind, tmp_path):
    shutil.copytree(FOLDER / kind / "records", tmp_path / "records")
    KINDS[kind].write_tables(tmp_path)
    before = json.loads((FOLDER / kind / "tables.json").read_text(encoding="utf-8"))
    assert sorted(path.stem for path in tmp_path.glob("*.parquet")) == sorted(before)
    for name, expected in before.items():
        found = columns_of(tmp_path / f"{name}.parquet")
        assert [column for column in found if column in expected] == list(expected)
        assert {column: found[column] for column in expected} == expected
        for added in found.keys() - expected.keys():
            # A key that was added has the value that earlier trials had.
            assert set(found[added][2]) <= {ADDED_KEYS.get(added)}


@pytest.mark.parametrize("folder", REFERENCES, ids=lambda folder: folder.name)
def test_kept_tables_are_carried_over_as_they_are(folder, tmp_path):
    for path in folder.glob("*.parquet"):
        shutil.copy(path, tmp_path / path.name)
    write_tables(tmp_path, [], {}, current_id=lambda *_: None)
    for path in folder.glob("*.parquet"):
        before, after = pq.read_table(path), pq.read_table(tmp_path / path.name)
        assert [name for name in after.column_names if name in before.column_names] == before.column_names
        again = after.select(before.column_names).sort_by("trial_id")
        for name in (name for name in before.column_names if name != "label"):
            assert again[name].to_pylist() == before.sort_by("trial_id")[name].to_pylist()
