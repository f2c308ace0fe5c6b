"""`report` says in one sentence which stored value cannot be, and shows no number of a table that breaks a law."""

from dataclasses import replace

import builders
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_carried_rows import full_record
from test_measured_tables import measured

from profiler.domain.errors import UsageError
from profiler.report.main import main
from profiler.storage.stores.record_store import folder_faults
from profiler.storage.sweep_tables.tables import read_tables, table_path, write_tables
from profiler.storage.tables import table_files
from profiler.storage.tables.laws import Laws, Trials
from profiler.storage.tables.schema import OPTIONAL_TABLES, TABLES, Column


@pytest.fixture
def folder(tmp_path):
    """A simulated and a measured trial, with rows in every table but `samples`."""
    return builders.write_folder(tmp_path / "made_up", [full_record(), measured()])


def change(folder, name, column, value, row=0):
    """Write another value into one cell of a table."""
    path = table_path(folder, name)
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[row] = value
    place = table.schema.get_field_index(column)
    field = table.schema.field(column).with_nullable(True)
    changed = table.set_column(place, field, pa.array(values, field.type))
    pq.write_table(changed, path)


CASES = [
    ("runs", "peak_allocated_bytes", -5, "peak_allocated_bytes of trial {0} is -5, and at least 0 is allowed"),
    ("runs", "wall_s", float("nan"), "wall_s of trial {0} is nan, and it has to be a finite number"),
    ("runs", "wall_s", float("inf"), "wall_s of trial {0} is inf, and it has to be a finite number"),
    ("runs", "num_generations", 0, "num_generations of trial {0} is 0, and at least 1 is allowed"),
    ("runs", "status", "fine", "status of trial {0} is 'fine', and allowed are ok, oom, failed"),
    ("runs", "tuning", "loora", "tuning of trial {0} is 'loora', and allowed are full, lora, qlora"),
    ("runs", "label", None, "label of trial {0} is null, which the column does not allow"),
    ("runs", "peak_phase", "sideways", "peak_phase of trial {0} is 'sideways', and allowed are load, rollout"),
    ("runs", "peak_allocated_bytes", 7, "in runs.parquet is 7"),
    ("phases", "phase", "forwards", "is 'forwards', and allowed are load"),
    ("phases", "peak_allocated_bytes", 2**60, "the largest peak_allocated_bytes is 1152921504606846976, and"),
    ("breakdown", "bytes", 1, "the bytes sum to"),
    ("breakdown", "bytes", -1, "is -1, and at least 0 is allowed"),
    ("breakdown", "trial_id", "fedcba9876543210", "trial fedcba9876543210 is not in runs.parquet"),
    ("largest", "rank", 0, "rank of trial {1} is 0, and at least 1 is allowed"),
    ("largest", "category", "weight", "is 'weight', and allowed are weights"),
    ("steps", "peak_reserved_bytes", -1, "is -1, and at least 0 is allowed"),
    ("shape", "bytes", -1, "is -1, and at least 0 is allowed"),
    ("shape", "trial_id", "fedcba9876543210", "trial fedcba9876543210 is not in runs.parquet, so its rows"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "column", "value", "problem"), CASES)
def test_a_value_that_cannot_be_is_one_sentence_and_exit_code_2(folder, capsys, name, column, value, problem):
    runs = pq.read_table(table_path(folder, "runs"))
    row = runs["backend"].to_pylist().index("simulated") if name == "runs" else 0
    first = runs["trial_id"][row].as_py()
    own = pq.read_table(table_path(folder, name))["trial_id"][0].as_py()
    change(folder, name, column, value, row)
    assert main([str(folder)]) == 2
    line, *others = capsys.readouterr().err.splitlines()
    # Phases and breakdown both disagree with the peak of a simulated trial.
    assert len(others) == (value == 7)
    assert line.startswith(f"{name}={table_path(folder, name)}: ") or value == 7
    assert problem.format(first, own) in line
    assert not (folder / "report.html").exists()


@pytest.mark.parametrize("name", ["runs", "phases", "breakdown", "largest", "steps", "shape"])
def test_a_row_that_is_there_twice_is_named(folder, name):
    path = table_path(folder, name)
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), path)
    with pytest.raises(UsageError, match="have the same trial_id"):
        read_tables(folder)


def test_tables_of_two_sweeps_are_not_mixed(folder, tmp_path):
    other = builders.write_folder(tmp_path / "other", [full_record(seed=1), measured(seed=1)])
    for name in ("phases", "breakdown", "largest", "shape", "steps"):
        whole = table_path(folder, name).read_bytes()
        table_path(folder, name).write_bytes(table_path(other, name).read_bytes())
        with pytest.raises(UsageError, match=rf"^{name}=.* is not in runs.parquet, so its rows are of another sweep"):
            read_tables(folder)
        table_path(folder, name).write_bytes(whole)


def test_every_broken_table_is_reported_and_a_sweep_refuses_them_too(folder):
    change(folder, "phases", "phase", "forwards")
    change(folder, "shape", "bytes", -1)
    assert [fault.key for fault in folder_faults(folder)] == ["phases", "shape"]


def test_a_slope_can_be_negative(folder):
    change(folder, "runs", "growth_bytes_per_step", -2.5)
    assert read_tables(folder).runs["growth_bytes_per_step"][0] == -2.5


def test_each_column_declares_its_laws():
    columns: list[Column] = [each for table in (*TABLES.values(), *OPTIONAL_TABLES.values()) for each in table]
    numbers = [each for each in columns if not pa.types.is_string(each.kind) and not pa.types.is_boolean(each.kind)]
    assert {each.name for each in numbers if each.least is None} == {"growth_bytes_per_step"}
    assert {each.name for each in columns if each.unit == "bytes" and each.least != 0} == {"growth_bytes_per_step"}
    assert {each.name for each in columns if each.words is None and "phase" in each.name} == set()


def test_a_record_that_breaks_a_law_is_left_out_of_the_tables(tmp_path):
    good, *others = [full_record(seed=seed) for seed in range(4)]
    changes = ({"wall_s": float("nan")}, {"context_bytes": -3}, {"phases": 2 * good.outcome.peaks.phases})
    bad = [
        replace(record, outcome=builders.changed(record.outcome, **values))
        for record, values in zip(others, changes, strict=True)
    ]
    written = write_tables(tmp_path, [good, *bad], {})
    for reason in (
        "wall_s=nan is not a number of at least 0",
        "context_bytes=-3 is not a number of at least 0",
        "two of its rows of phases have the same trial_id and phase",
    ):
        assert any(reason in sentence for sentence in written.left_out)
    assert pc.unique(pq.read_table(table_path(tmp_path, "shape"))["trial_id"]).to_pylist() == [good.trial_id]
    assert len(read_tables(tmp_path).runs) == 1


def batches_of(folder, name, rows):
    """Return the laws of a table with its batches, of so many rows each."""
    table = pq.read_table(table_path(folder, name))
    laws = Laws({**TABLES, **OPTIONAL_TABLES}[name], Trials.of(pq.read_table(table_path(folder, "runs"))))
    return laws, [table.slice(start, rows) for start in range(0, table.num_rows, rows)]


def test_rows_of_earlier_trials_are_forgotten(folder):
    laws, batches = batches_of(folder, "phases", 2)
    held = []
    for batch in batches:
        laws.check(batch)
        held.append(sum(len(rows) for rows, _ in laws._held))
    laws.finish()
    assert not laws.problem
    assert not laws.is_out_of_order
    most = max(pq.read_table(table_path(folder, "phases"))["trial_id"].value_counts().field("counts").to_pylist())
    assert max(held) <= most < sum(batch.num_rows for batch in batches)


@pytest.mark.parametrize("away", [1, 3])
def test_a_row_that_comes_again_in_a_later_batch_is_named(folder, monkeypatch, away):
    monkeypatch.setattr(table_files, "_BATCH_ROWS", 2)
    path = table_path(folder, "phases")
    table = pq.read_table(path)
    parts = [table.slice(0, away), table.slice(0, 1), table.slice(away)]
    pq.write_table(pa.concat_tables(parts), path)
    with pytest.raises(UsageError, match=r"two rows of trial [0-9a-f]{16} have the same trial_id and phase"):
        read_tables(folder)


def test_rows_in_another_order_than_the_trials_are_read_all_the_same(folder, monkeypatch):
    monkeypatch.setattr(table_files, "_BATCH_ROWS", 2)
    path = table_path(folder, "phases")
    table = pq.read_table(path)
    turned = table.take(pa.array(range(table.num_rows))[::-1])
    pq.write_table(turned, path)
    assert len(read_tables(folder).phases) == table.num_rows
    pq.write_table(pa.concat_tables([turned, table.slice(0, 1)]), path)
    with pytest.raises(UsageError, match="have the same trial_id and phase"):
        read_tables(folder)
