"""The three tables: documented columns, conservation laws, the same bytes for the same records."""

from dataclasses import fields, replace

import builders
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from profiler.analysis.cells import VERSIONED
from profiler.analysis.order import SHOWN_KEYS
from profiler.domain.errors import UsageError
from profiler.domain.outcome import Versions
from profiler.domain.trial import TrialSpec
from profiler.storage.atomic import StorageError
from profiler.storage.published import read_published
from profiler.storage.schema import BREAKDOWN, PHASES, RUNS, TABLES
from profiler.storage.tables import read_tables, table_path, write_tables


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
        assert row["peak_allocated_bytes"] == record.outcome.peak_allocated_bytes
        assert row["tuning"] == record.spec.tuning.value
        assert pd.isna(row["step_time_s"])
    assert runs["peak_allocated_bytes"].isna().sum() == 1
    assert set(runs["lora_target_modules"].dropna()) == {"q_proj,k_proj,o_proj,up_proj,down_proj"}


def test_categories_sum_to_the_peak_and_the_largest_phase_is_it(tmp_path, records):
    tables = builders.tables(tmp_path, records)
    peaks = tables.runs.set_index("trial_id")["peak_allocated_bytes"]
    assert (tables.breakdown.groupby("trial_id")["bytes"].sum() == peaks.sort_index()).all()
    assert (tables.phases.groupby("trial_id")["peak_allocated_bytes"].max() == peaks.sort_index()).all()


def test_a_record_that_contradicts_itself_is_refused(tmp_path, records):
    wrong = replace(records[0], outcome=replace(records[0].outcome, breakdown=records[0].outcome.breakdown[1:]))
    with pytest.raises(StorageError, match="its categories sum to"):
        write_tables(tmp_path, [wrong], {})
    wrong = replace(records[0], outcome=replace(records[0].outcome, phases=records[0].outcome.phases[:2]))
    with pytest.raises(StorageError, match="its largest phase has"):
        write_tables(tmp_path, [wrong], {})
    assert list(tmp_path.iterdir()) == []


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
    assert (laptop.value, laptop.unit, laptop.ruler) == (2.744, "GiB", "allocated")
    assert "library versions" in laptop.trust
    assert "trl 1.12" in (laptop.note or "")
    assert (figures["oxen-ft-1b"].value, figures["oxen-ft-1b"].unit) == (38.0, "GB")
    assert figures["oxen-ft-8b"].is_out_of_memory
    assert figures["oxen-ft-8b"].value is None
    assert figures["oxen-lora-1b"].gradient_checkpointing is None
    assert figures["oxen-ft8gc-1b"].gradient_checkpointing is True
    assert all(figure.where and figure.trust for figure in figures.values())
