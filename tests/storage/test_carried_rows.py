"""Rows whose records are not in the folder stay in every table."""

from dataclasses import replace

import builders
import pandas as pd
import pyarrow.parquet as pq
import pytest
from test_measured_tables import SERIES, measured

from profiler.config.trials import identity
from profiler.config.trials.identity import trial_id
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.readings import CategoryShare, StepInstant, TensorGroup
from profiler.domain.trials.trial import TRIAL_KEYS
from profiler.storage.sweep_tables.tables import read_tables, table_path, write_tables
from profiler.storage.tables.run_tables import samples_path, write_samples
from profiler.storage.tables.schema import OPTIONAL_TABLES, TABLES

ALL = (*TABLES, *OPTIONAL_TABLES)


def full_record(**keys):
    """A simulated record with rows in every table of simulated trials."""
    record = builders.records([builders.spec(**keys)])[0]
    share = CategoryShare(category=Category.WEIGHTS, size_bytes=7)
    group = TensorGroup(
        category=Category.WEIGHTS,
        size_bytes=7,
        tensors=1,
        shape=(7,),
        dtype="uint8",
        name="",
        module="",
        operation="",
        phase=Phase.LOAD,
    )
    shape = (StepInstant(phase=Phase.FORWARD, shares=(share,)),)
    return replace(record, outcome=builders.changed(record.outcome, largest=(group,), step_shape=shape))


def sampled(tmp_path, **keys):
    """A measured record with steps, and samples in a file of their own."""
    record = measured(**keys)
    record = replace(record, outcome=builders.changed(record.outcome, sample_period_s=0.01))
    write_samples(tmp_path, record.trial_id, SERIES)
    return record


def rows(folder, trial_id):
    """Of each table the rows of one trial, as plain values."""
    found = {}
    for name in ALL:
        if table_path(folder, name).exists():
            table = pq.read_table(table_path(folder, name))
            found[name] = [row for row in table.to_pylist() if row["trial_id"] == trial_id]
    return found


def test_every_table_keeps_the_rows_of_trials_without_a_record(tmp_path):
    simulated, real, new = full_record(), sampled(tmp_path), full_record(model="qwen2.5-7b")
    builders.write_folder(tmp_path, [simulated, real], question="Which?")
    before = {each.trial_id: rows(tmp_path, each.trial_id) for each in (simulated, real)}
    assert all(before[simulated.trial_id][name] for name in (*TABLES, "shape"))
    assert all(before[real.trial_id][name] for name in ("runs", "phases", "steps", "samples"))
    samples_path(tmp_path, real.trial_id).unlink()

    written = write_tables(tmp_path, [new], {}, question="Which?")

    assert written.carried == 2
    after = {each.trial_id: rows(tmp_path, each.trial_id) for each in (simulated, real)}
    for name, found in before.items():
        for table in found:
            assert _without_label(after[name][table]) == _without_label(before[name][table]), table
    assert set(read_tables(tmp_path).runs["trial_id"]) == {simulated.trial_id, real.trial_id, new.trial_id}


def _without_label(found):
    return [{key: value for key, value in row.items() if key != "label"} for row in found]


def test_a_record_replaces_the_rows_of_its_trial(tmp_path):
    record = full_record()
    builders.write_folder(tmp_path, [record])
    changed = replace(record, outcome=builders.failed())
    assert write_tables(tmp_path, [changed], {}).carried == 0
    tables = read_tables(tmp_path)
    assert list(tables.runs["status"]) == ["failed"]
    assert (len(tables.phases), len(tables.breakdown), len(tables.shape)) == (0, 0, 0)


def test_carried_rows_are_where_their_records_would_put_them(tmp_path):
    records = [full_record(seed=seed) for seed in range(6)]
    estimates = builders.estimates(records)
    write_tables(tmp_path / "whole", builders.records([each.spec for each in records]), estimates)
    write_tables(tmp_path / "parts", builders.records([each.spec for each in records[:3]]), estimates)
    written = write_tables(tmp_path / "parts", builders.records([each.spec for each in records[3:]]), estimates)
    assert written.carried == 3
    for name in TABLES:
        one, other = (pq.read_table(table_path(tmp_path / folder, name)) for folder in ("whole", "parts"))
        assert one.equals(other), name


def test_carried_and_new_rows_are_labelled_among_each_other(tmp_path):
    builders.write_folder(tmp_path, builders.records([builders.spec()]))
    builders.write_folder(tmp_path, builders.records([builders.spec(num_generations=2)]))
    assert sorted(read_tables(tmp_path).runs["label"]) == [
        "full + checkpointing, num_generations=2",
        "full + checkpointing, num_generations=4",
    ]


def test_samples_stay_where_a_trial_has_its_record_and_lost_their_file(tmp_path):
    record = sampled(tmp_path)
    builders.write_folder(tmp_path, [record])
    samples_path(tmp_path, record.trial_id).unlink()
    builders.write_folder(tmp_path, [record])
    assert len(read_tables(tmp_path).samples) == len(SERIES)
    again = replace(record, outcome=builders.changed(record.outcome, sample_period_s=None))
    builders.write_folder(tmp_path, [again])
    assert len(read_tables(tmp_path).samples) == 0


def test_a_table_from_before_a_column_is_carried_with_nulls(tmp_path):
    builders.write_folder(tmp_path, [full_record()])
    path = table_path(tmp_path, "runs")
    pq.write_table(pq.read_table(path).drop_columns(["oom_step"]), path)
    builders.write_folder(tmp_path, [full_record(seed=1)])
    assert read_tables(tmp_path).runs["oom_step"].isna().all()


def test_a_table_from_before_a_key_is_read_with_the_value_that_trials_had(tmp_path):
    builders.write_folder(tmp_path, [full_record()])
    path = table_path(tmp_path, "runs")
    added = {key.name: key.earlier for key in TRIAL_KEYS if key.since}
    pq.write_table(pq.read_table(path).drop_columns(list(added)), path)
    builders.write_folder(tmp_path, [])
    runs = read_tables(tmp_path).runs
    assert {name: runs[name].astype(object).where(runs[name].notna(), None).tolist() for name in added} == {
        name: [value] for name, value in added.items()
    }


def test_nothing_is_written_over_a_table_that_cannot_be_read(tmp_path):
    builders.write_folder(tmp_path, [full_record()])
    table_path(tmp_path, "shape").write_bytes(b"torn")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match="shape"):
        write_tables(tmp_path, [full_record(seed=1)], {})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_simulated_trial_that_was_simulated_anew_is_in_the_tables_once(tmp_path, monkeypatch):
    old, kept = full_record(), full_record(seed=1)
    builders.write_folder(tmp_path, [old, kept])
    monkeypatch.setattr(identity, "SIMULATION_RESULTS_VERSION", identity.SIMULATION_RESULTS_VERSION + 1)
    new = replace(full_record(), trial_id=trial_id(old.spec, old.versions))
    assert new.trial_id != old.trial_id

    failed = replace(new, outcome=builders.failed())
    assert write_tables(tmp_path, [failed], {}).carried == 2
    written = write_tables(tmp_path, [new, kept], {})

    assert set(read_tables(tmp_path).runs["trial_id"]) == {new.trial_id, kept.trial_id}
    assert (written.carried, written.replaced, written.outdated) == (0, 1, 1)
    replaced, outdated = written.lines(tmp_path)
    assert replaced == "1 row is replaced by the same trials, which ran again after a change."
    assert outdated.startswith("1 row is from before a change of this program")
    assert write_tables(tmp_path, [old, new, kept], {}).replaced == 0


def test_measured_trials_of_other_names_are_all_kept(tmp_path):
    one = measured()
    other = replace(one, trial_id="0123456789abcdef")
    builders.write_folder(tmp_path, [one])
    assert write_tables(tmp_path, [other], {}).carried == 1
    assert len(read_tables(tmp_path).runs) == 2


def test_the_lines_for_the_user(tmp_path):
    builders.write_folder(tmp_path, builders.records(builders.lora_vs_full_specs()))
    written = write_tables(tmp_path, builders.records([builders.spec(model="tiny", seed=3)]), {})
    assert written.lines(tmp_path) == [
        f"25 rows are carried over from the tables in {tmp_path}: their records are not here."
    ]
    assert isinstance(read_tables(tmp_path).runs, pd.DataFrame)
