"""What is measured on a real GPU, stored: steps, samples, and what older files are read as."""

import json
from dataclasses import fields, replace

import builders
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiler.domain.memory import GIB, Phase
from profiler.domain.runs.outcome import Status
from profiler.domain.runs.readings import OutOfMemory, PhasePeak, Sample, StepPeak
from profiler.domain.trials.trial import Backend
from profiler.storage.files.typed_json import checksum_of
from profiler.storage.records.outcome_fields import OUTCOME_FIELDS
from profiler.storage.records.record_folder import TRIALS
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import read_tables, table_path, write_tables
from profiler.storage.tables.rows import run_row
from profiler.storage.tables.run_tables import read_samples, samples_path, write_samples
from profiler.storage.tables.schema import OPTIONAL_TABLES, PHASES, RUNS, SAMPLES, SHAPE, STEPS, TABLES


def sample(time_s: float, **changes: object) -> Sample:
    empty = Sample(
        time_s=time_s,
        phase=Phase.FORWARD,
        step=1,
        device_used_bytes=GIB,
        process_used_bytes=None,
        utilisation_percent=90,
        power_watts=350.5,
        sm_clock_mhz=None,
    )
    return replace(empty, **changes)


SERIES = (sample(0.0, phase=None, step=0), sample(0.01), sample(0.02, device_used_bytes=None))

MEASURED = builders.outcome_of(
    Status.OOM,
    gpu_name="NVIDIA H200",
    gpu_memory_bytes=140 * GIB,
    gpu_uuid="GPU-1",
    driver_version="580.65.06",
    peak_allocated_bytes=5 * GIB,
    peak_reserved_bytes=6 * GIB,
    peak_phase=Phase.FORWARD,
    oom=OutOfMemory(phase=Phase.FORWARD, requested_bytes=GIB, step=2),
    phases=(
        PhasePeak(
            phase=Phase.FORWARD,
            peak_allocated_bytes=5 * GIB,
            peak_reserved_bytes=6 * GIB,
            time_s=1.5,
            samples=2,
            mean_power_watts=350.5,
        ),
    ),
    step_peaks=(
        StepPeak(step=1, phase=Phase.FORWARD, peak_allocated_bytes=4 * GIB, peak_reserved_bytes=6 * GIB, time_s=0.5),
        StepPeak(step=2, phase=Phase.FORWARD, peak_allocated_bytes=5 * GIB, peak_reserved_bytes=6 * GIB, time_s=1.0),
    ),
    settled_step=None,
    startup_s=3.0,
    gpu_s=20.0,
    not_measured="process memory: the driver lists nobody",
    message="CUDA out of memory.",
)


def measured(**changes: object):
    return builders.record(builders.spec(backend=Backend.CUDA, gpu=None, **changes), outcome=MEASURED)


def test_every_field_of_a_sample_and_of_a_steps_peak_is_a_column():
    assert [column.name for column in SAMPLES] == ["trial_id", *(field.name for field in fields(Sample))]
    assert [column.name for column in STEPS] == ["trial_id", *(field.name for field in fields(StepPeak))]
    names = {column.name for column in RUNS} | {"oom", "phases", "breakdown", "largest", "step_peaks", "step_shape"}
    assert OUTCOME_FIELDS.keys() <= names
    assert {field.name for field in fields(PhasePeak)} <= {column.name for column in PHASES}


@pytest.mark.parametrize("column", [*STEPS, *SAMPLES, *SHAPE], ids=lambda column: column.name)
def test_every_column_says_what_it_means_and_its_unit(column):
    assert column.meaning
    assert bool(column.unit) == (not pa.types.is_string(column.kind))


def test_a_measured_record_is_read_as_it_was_written(tmp_path):
    store, record = RecordStore(tmp_path), measured()
    store.write(record)
    assert store.find(record.trial_id) == record


def test_the_steps_of_an_earlier_record_have_no_context(tmp_path):
    store, record = RecordStore(tmp_path), measured()
    store.write(record)
    path = store.path(record.trial_id)
    stored = json.loads(path.read_text())
    for peak in stored["record"]["outcome"]["step_peaks"]:
        del peak["context_bytes"]
    path.write_text(json.dumps(stored))
    _as_of_version(path, 4, ())
    assert store.find(record.trial_id) == record


def test_steps_and_samples_are_tables_of_their_own(tmp_path):
    one, other = measured(), measured(seed=1)
    write_samples(tmp_path, one.trial_id, SERIES)
    tables = builders.tables(tmp_path, [one, other, builders.records([builders.spec()])[0]])
    assert len(tables.steps) == 4
    assert list(tables.steps[tables.steps["trial_id"] == one.trial_id]["peak_allocated_bytes"]) == [4 * GIB, 5 * GIB]
    assert set(tables.samples["trial_id"]) == {one.trial_id}
    assert list(tables.samples["time_s"]) == [0.0, 0.01, 0.02]
    assert list(tables.samples["device_used_bytes"].isna()) == [False, False, True]
    runs = tables.runs.set_index("trial_id")
    row = runs.loc[one.trial_id]
    assert (row["oom_step"], row["gpu_uuid"], row["gpu_s"], row["startup_s"]) == (2, "GPU-1", 20.0, 3.0)
    assert row["not_measured"] == MEASURED.verdict.unavailable
    assert pd.isna(row["settled_step"])
    forward = tables.phases[tables.phases["trial_id"] == one.trial_id].iloc[0]
    assert (forward["time_s"], forward["samples"], forward["mean_power_watts"]) == (1.5, 2, 350.5)
    assert pd.isna(forward["mean_utilisation_percent"])


def test_where_nothing_was_measured_there_are_no_such_files(tmp_path):
    assert table_path(builders.write_folder(tmp_path / "measured", [measured()]), "steps").exists()
    folder = tmp_path / "simulated"
    tables = builders.tables(folder, builders.records([builders.spec()]))
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{name}.parquet" for name in TABLES)
    for name, columns in OPTIONAL_TABLES.items():
        frame = getattr(tables, name)
        assert (len(frame), list(frame.columns)) == (0, [column.name for column in columns])


@pytest.mark.parametrize("content", [b"", b"torn", None])
def test_samples_that_are_missing_or_torn_cost_no_peak(tmp_path, content):
    record = measured()
    write_samples(tmp_path, record.trial_id, SERIES)
    path = samples_path(tmp_path, record.trial_id)
    path.unlink() if content is None else path.write_bytes(content)
    assert read_samples(tmp_path, [record.trial_id]).num_rows == 0
    write_tables(tmp_path, [record], {})
    assert len(read_tables(tmp_path).runs) == 1


def test_tables_from_before_a_column_are_read_with_nulls(tmp_path):
    folder = builders.write_folder(tmp_path, [measured()])
    path = table_path(folder, "runs")
    pq.write_table(pq.read_table(path).drop_columns(["oom_step", "gpu_s"]), path)
    runs = read_tables(folder).runs
    assert list(runs.columns) == [column.name for column in RUNS]
    assert runs[["oom_step", "gpu_s"]].isna().all(axis=None)
    assert runs["startup_s"].tolist() == [3.0]


def _as_of_version(path, version, without):
    """The record as an earlier version of this program would have written it, with a checksum that holds."""
    stored = json.loads(path.read_text())
    del stored["checksum"]
    stored["schema_version"] = version
    for name in (*without, *NEW_IN_6):
        del stored["record"]["outcome"][name]
    for name in ("cuda", "emulation"):
        del stored["record"]["versions"][name]
    stored = {"checksum": checksum_of(stored), **stored}
    path.write_text(json.dumps(stored))


NEW_IN_3 = ("gpu_uuid", "driver_version", "step_peaks", "not_measured", "implied_by", "gpu_s", "settled_step")


NEW_IN_4 = ("required_unreleasable_bytes",)


NEW_IN_6 = ("emulated_values",)


@pytest.mark.parametrize(("version", "without"), [(2, NEW_IN_3 + NEW_IN_4), (3, NEW_IN_4), (5, ())])
def test_an_earlier_record_is_read_with_what_it_does_not_know_left_open(tmp_path, version, without):
    store, record = RecordStore(tmp_path), builders.records([builders.spec()])[0]
    store.write(record)
    _as_of_version(store.path(record.trial_id), version, without)
    assert store.find(record.trial_id) == record


@pytest.mark.parametrize(("version", "without"), [(1, ()), (TRIALS.version, NEW_IN_4), (2, ("status",))])
def test_any_other_record_is_set_aside(tmp_path, version, without):
    store, record = RecordStore(tmp_path), builders.records([builders.spec()])[0]
    store.write(record)
    _as_of_version(store.path(record.trial_id), version, without)
    assert store.find(record.trial_id) is None


def test_an_implied_row_names_the_trial_that_implies_it():
    outcome = builders.outcome_of(Status.IMPLIED, implied_by="0123456789abcdef", message="Not run: ...")
    row = run_row(builders.record(builders.spec(), outcome=outcome), None)
    assert (row["status"], row["implied_by"]) == ("implied", "0123456789abcdef")
    assert outcome.status.answered
