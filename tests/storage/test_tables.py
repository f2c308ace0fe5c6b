"""The three tables: documented columns, conservation laws, the same bytes for the same records."""

from dataclasses import fields, replace

import builders
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_measured_tables import SERIES, measured

from profiler.analysis.compared.cells import VERSIONED
from profiler.domain.errors import UsageError
from profiler.domain.runs.outcome import Outcome, Status, Verdict, Versions, Work
from profiler.domain.trials.trial import SHOWN_KEYS, Backend, TrialSpec
from profiler.storage.foreign.published import read_published
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import read_tables, table_path, write_tables
from profiler.storage.tables.rows import checked_rows
from profiler.storage.tables.run_tables import samples_path, write_samples
from profiler.storage.tables.schema import BREAKDOWN, PHASES, RESULT, RUNS, SCHEMA_VERSION, TABLES
from profiler.storage.tables.table_files import open_tables


@pytest.fixture
def records():
    return builders.records(builders.lora_vs_full_specs())


def test_every_key_of_a_trial_is_a_column():
    names = [column.name for column in RUNS]
    assert {field.name for field in fields(TrialSpec)} <= set(names)
    assert {f"{field.name}_version" for field in fields(Versions)} <= set(names)
    assert set(SHOWN_KEYS) | {"backend", "gpu", "model"} == {field.name for field in fields(TrialSpec)}
    assert set(VERSIONED) == {field.name for field in fields(Versions)}
    assert len(names) == len(set(names))


def test_a_table_from_before_a_key_has_the_value_that_its_trials_had(tmp_path, records):
    builders.write_folder(tmp_path, records)
    path = table_path(tmp_path, "runs")
    pq.write_table(pq.read_table(path).drop_columns(["recipe"]), path)
    assert set(read_tables(tmp_path).runs["recipe"]) == {"grpo"}


@pytest.mark.parametrize("column", [*RUNS, *PHASES, *BREAKDOWN], ids=lambda column: column.name)
def test_every_column_says_what_it_means_and_its_unit(column):
    assert column.meaning
    if pa.types.is_integer(column.kind) or pa.types.is_floating(column.kind):
        assert column.unit
    if column.name.endswith("bytes"):
        assert (column.kind, column.unit) == (pa.int64(), "bytes")


def test_a_row_a_trial_and_nulls_stay_nulls(tmp_path, records):
    tables = builders.tables(tmp_path, [*records, builders.record(builders.spec(seed=9), outcome=builders.on_cpu())])
    assert len(tables.runs) == 26
    runs = tables.runs.set_index("trial_id")
    for record in records:
        row = runs.loc[record.trial_id]
        assert row["peak_allocated_bytes"] == record.outcome.peaks.allocated_bytes
        assert row["tuning"] == record.spec.tuning.value
        assert pd.isna(row["step_time_s"])
    assert runs["peak_allocated_bytes"].isna().sum() == 1
    assert set(runs["lora_target_modules"].dropna()) == {"q_proj,k_proj,o_proj,up_proj,down_proj"}


@pytest.mark.parametrize(
    ("backend", "outcome"),
    [
        (Backend.CUDA, Outcome(verdict=Verdict(status=Status.IMPLIED, implied_by="0123456789abcdef"))),
        (Backend.CUDA, Outcome(verdict=Verdict(status=Status.KILLED), work=Work(wall_s=1.0))),
        (Backend.SIMULATED, Outcome(verdict=Verdict(status=Status.TIMEOUT), work=Work(wall_s=1.0))),
        (Backend.CPU, Outcome(verdict=Verdict(status=Status.FAILED), work=Work(wall_s=1.0, host_peak_rss_bytes=1))),
    ],
    ids=["implied", "killed", "simulated", "cpu"],
)
def test_the_nulls_of_a_trial_without_an_answer_are_declared(backend, outcome):
    """Some are null for a reason of their own; each other one says that the trial may not have run."""
    gpu = "h100-80gb" if backend is Backend.SIMULATED else None
    trial = builders.record(builders.spec(backend=backend, gpu=gpu), outcome=outcome)
    row = checked_rows(trial, None)["runs"][0]
    null = {column.name: column.null for column in RESULT if row[column.name] is None}
    own = {"not_measured", "gpu_s", "implied_by", "settled_step", "growth_bytes_per_step"}
    own |= {name for name in null if name.startswith(("oom_", "estimated_"))}
    own |= {name for name, said in null.items() if said.startswith("not measured")}
    assert [name for name, said in null.items() if name not in own and "did not run" not in said] == []


def test_categories_sum_to_the_peak_and_the_largest_phase_is_it(tmp_path, records):
    tables = builders.tables(tmp_path, records)
    peaks = tables.runs.set_index("trial_id")["peak_allocated_bytes"]
    assert (tables.breakdown.groupby("trial_id")["bytes"].sum() == peaks.sort_index()).all()
    assert (tables.phases.groupby("trial_id")["peak_allocated_bytes"].max() == peaks.sort_index()).all()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda one: _with_outcome(one, breakdown=one.outcome.breakdown.shares[1:]), "its categories sum to"),
        (lambda one: _with_outcome(one, phases=one.outcome.peaks.phases[:2]), "its largest phase has"),
        (lambda one: _with_outcome(one, host_peak_rss_bytes=2**63), "host_peak_rss_bytes=9223372036854775808"),
        (lambda one: _with_outcome(one, message="half a pair: \ud800"), "message is not valid text"),
        (lambda one: replace(one, spec=replace(one.spec, seed=10**20)), "seed=100000000000000000000 does not fit"),
    ],
)
def test_a_record_that_cannot_be_written_is_left_out_and_named(tmp_path, records, change, reason):
    wrong = change(records[0])
    written = write_tables(tmp_path, [wrong, *records[1:]], {})
    (sentence,) = written.left_out
    assert reason in sentence
    assert sentence.startswith(f"trial={wrong.trial_id}: {wrong.label} of {wrong.spec.model} is left out")
    assert str(tmp_path / "records" / f"{wrong.trial_id}.json") in sentence
    assert set(read_tables(tmp_path).runs["trial_id"]) == {record.trial_id for record in records[1:]}


def _with_outcome(record, **changes):
    return replace(record, outcome=builders.changed(record.outcome, **changes))


def test_values_at_the_ends_of_64_bits_are_written(tmp_path, records):
    record = replace(records[0], spec=replace(records[0].spec, seed=2**63 - 1))
    assert write_tables(tmp_path, [record], {}).left_out == ()
    assert list(read_tables(tmp_path).runs["seed"]) == [2**63 - 1]


def test_the_same_records_in_any_order_give_the_same_bytes(tmp_path, records):
    one, other = tmp_path / "one", tmp_path / "other"
    estimates = builders.estimates(records)
    write_tables(one, records, estimates, question="?")
    write_tables(other, records[::-1], estimates, question="?")
    for name in TABLES:
        assert table_path(one, name).read_bytes() == table_path(other, name).read_bytes()


def test_what_the_grid_asks_travels_with_the_tables(tmp_path, records):
    builders.write_folder(tmp_path, records, question="Which fits?", command="python -m profiler.sweep +grid=x")
    tables = read_tables(tmp_path)
    assert (tables.question, tables.command) == ("Which fits?", "python -m profiler.sweep +grid=x")


def test_no_record_at_all_gives_empty_tables(tmp_path):
    tables = builders.tables(tmp_path, [])
    assert (len(tables.runs), len(tables.phases), len(tables.breakdown)) == (0, 0, 0)


DELETE = "Delete it and run the same sweep again"


def _message(folder):
    with pytest.raises(UsageError) as error:
        read_tables(folder)
    return str(error.value)


@pytest.mark.parametrize("name", ["runs", "phases"])
def test_a_damaged_table_may_be_deleted_only_where_all_records_are(tmp_path, records, name):
    builders.write_folder(tmp_path, records)
    table_path(tmp_path, name).write_bytes(b"PAR1 torn")
    assert DELETE not in _message(tmp_path)
    assert "may be the only copy" in _message(tmp_path)
    store = RecordStore(tmp_path)
    for record in records[:-1]:
        store.write(record)
    assert DELETE not in _message(tmp_path)
    store.write(records[-1])
    assert DELETE in _message(tmp_path)
    assert "this is not a parquet file, or it is damaged" in _message(tmp_path)


def test_damaged_samples_may_be_deleted_only_where_their_files_are(tmp_path):
    record = measured()
    write_samples(tmp_path, record.trial_id, SERIES)
    RecordStore(tmp_path).write(record)
    builders.write_folder(tmp_path, [record])
    table_path(tmp_path, "samples").write_bytes(b"torn")
    assert DELETE in _message(tmp_path)
    samples_path(tmp_path, record.trial_id).unlink()
    assert DELETE not in _message(tmp_path)


def test_a_table_of_a_newer_version_is_not_to_be_deleted(tmp_path, records):
    builders.write_folder(tmp_path, records)
    for record in records:
        RecordStore(tmp_path).write(record)
    path = table_path(tmp_path, "runs")
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"schema_version": str(SCHEMA_VERSION + 1)}), path)
    message = _message(tmp_path)
    assert "written by a newer version of this program (schema version 3; this one reads 2)" in message
    assert "Update this program" in message
    pq.write_table(table.append_column("surprise", pa.nulls(table.num_rows, pa.int64())), path)
    assert "it has columns that this version of the program does not know: surprise" in _message(tmp_path)
    assert DELETE not in message + _message(tmp_path)


def test_a_table_that_cannot_be_read_is_not_called_damaged(tmp_path, records, monkeypatch):
    builders.write_folder(tmp_path, records)
    for record in records:
        RecordStore(tmp_path).write(record)

    def refuse(path):
        if path.name == "phases.parquet":
            raise PermissionError(13, "Permission denied", str(path))
        return path.open("rb")

    monkeypatch.setattr("profiler.storage.tables.table_files.open_regular", refuse)
    message = _message(tmp_path)
    assert "phases.parquet: it cannot be read (Permission denied). Check its permissions" in message
    assert DELETE not in message
    assert "damaged" not in message


def test_columns_of_another_kind_are_a_fault(tmp_path, records):
    builders.write_folder(tmp_path, records)
    path = table_path(tmp_path, "runs")
    table = pq.read_table(path)
    place = table.schema.get_field_index("seed")
    pq.write_table(table.set_column(place, "seed", table["seed"].cast(pa.string())), path)
    assert "values of another kind are in its columns seed" in _message(tmp_path)


def _remove(path):
    path.unlink()


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def _fill_with_text(path):
    path.write_text("no parquet")


def _of_another_schema(path):
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"schema_version": "999"}), path)


def _without_a_column(path):
    pq.write_table(pq.read_table(path).drop_columns(["trial_id"]), path)


@pytest.mark.parametrize("damage", [_remove, _truncate, _fill_with_text, _of_another_schema, _without_a_column])
@pytest.mark.parametrize("name", list(TABLES))
def test_a_missing_or_damaged_table_is_one_sentence_and_exit_code_2(tmp_path, records, name, damage):
    builders.write_folder(tmp_path, records)
    damage(table_path(tmp_path, name))
    with pytest.raises(UsageError) as error:
        read_tables(tmp_path)
    assert error.value.exit_code == 2
    assert len(str(error.value).splitlines()) == 1
    assert str(table_path(tmp_path, name)) in str(error.value)


def test_published_figures_carry_their_source():
    figures = {figure.id: figure for figure in read_published()}
    assert len(figures) == 45
    laptop = figures["coursia-qlora-1.7b-96-allocated"]
    assert (laptop.value, laptop.unit, laptop.metric) == (2.744, "GiB", "allocated")
    assert "library versions" in laptop.trust
    assert "trl 1.12" in (laptop.note or "")
    assert (figures["oxen-ft-1b"].value, figures["oxen-ft-1b"].unit) == (38.0, "GB")
    assert figures["oxen-ft-8b"].is_out_of_memory
    assert figures["oxen-ft-8b"].value is None
    assert figures["oxen-lora-1b"].gradient_checkpointing is None
    assert figures["oxen-ft8gc-1b"].gradient_checkpointing is True
    assert all(figure.where and figure.trust for figure in figures.values())


def test_only_groups_of_rows_that_may_have_a_trial_are_read(tmp_path, records, monkeypatch):
    folder = builders.write_folder(tmp_path / "made_up", records)
    path = table_path(folder, "phases")
    whole = pq.read_table(path)
    names = sorted(set(whole["trial_id"].to_pylist()))
    pq.write_table(whole, path, row_group_size=3)
    read = []
    batches = pq.ParquetFile.iter_batches

    def noted(file, *, row_groups, **settings):
        read.append(len(row_groups))
        return batches(file, row_groups=row_groups, **settings)

    file = open_tables(folder, required=True)["phases"]
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    for wanted in ([names[0]], [names[-1], names[1]], names, ["none such"], []):
        expected = whole.filter(pc.is_in(whole["trial_id"], value_set=pa.array(wanted, pa.string())))
        assert file.rows(wanted).to_pylist() == expected.to_pylist()
    groups = pq.ParquetFile(path).num_row_groups
    assert read[2:] == [groups, 0, 0]
    assert 0 < read[0] < read[1] < groups
