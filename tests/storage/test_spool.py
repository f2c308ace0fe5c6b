"""Rows that wait on the disk: taken in order, whatever parts they were written in, and gone when they are not used."""

import builders
import pyarrow as pa
import pytest

from profiler.storage.files.atomic import StorageError
from profiler.storage.sweep_tables import spool as module
from profiler.storage.sweep_tables.spool import RowsInOrder, Spool
from profiler.storage.sweep_tables.tables import assemble_tables, read_tables, write_tables
from profiler.storage.tables.rows import checked_rows

SPECS = builders.lora_vs_full_specs(["qwen2.5-0.5b", "tiny"])
RECORDS = sorted(builders.records(SPECS), key=lambda each: each.trial_id)


@pytest.fixture
def in_small_parts(monkeypatch):
    monkeypatch.setattr(module, "TRIALS_AT_ONCE", 3)


def test_rows_are_taken_up_to_a_trial(tmp_path, in_small_parts):
    with Spool(tmp_path, {}) as spool:
        for record in RECORDS:
            spool.add(record, checked_rows(record, None))
        spool.finish()
        assert spool.count("runs") == len(RECORDS)
        rows = spool.rows("breakdown")
        found = [rows.upto(record.trial_id) for record in RECORDS[1::2]]
    for start, table in enumerate(found):
        wanted = {record.trial_id for record in RECORDS[2 * start : 2 * start + 2]}
        assert set(table["trial_id"].to_pylist()) == wanted
    assert list(tmp_path.iterdir()) == []


def test_parts_of_equal_trials_are_not_torn():
    parts = [pa.table({"trial_id": ["a", "b"]}), pa.table({"trial_id": ["b", "c"]})]
    rows = RowsInOrder(iter(parts), pa.schema([("trial_id", pa.string())]))
    assert [rows.upto(last)["trial_id"].to_pylist() for last in "abd"] == [["a"], ["b", "b"], ["c"]]


def test_records_one_by_one_make_the_tables_of_all_at_once(tmp_path, in_small_parts):
    taken = []

    def each():
        for record in RECORDS:
            taken.append(record.trial_id)
            yield record

    asked = []

    def estimates_of(specs):
        asked.append(len(specs))
        return {}

    assemble_tables(tmp_path / "a", each(), estimates_of, question="?")
    write_tables(tmp_path / "b", RECORDS[::-1], {}, question="?")
    a, b = read_tables(tmp_path / "a"), read_tables(tmp_path / "b")
    for name in ("phases", "breakdown", "largest", "shape"):
        assert getattr(a, name).equals(getattr(b, name))
    assert a.runs.drop(columns="label").equals(b.runs.drop(columns="label"))
    assert len(set(zip(a.runs.label, a.runs.model, strict=True))) == len(RECORDS)
    assert (a.question, taken, sum(asked)) == ("?", [record.trial_id for record in RECORDS], len(RECORDS))


def test_a_failure_on_the_way_leaves_the_tables_as_they_were(tmp_path):
    write_tables(tmp_path, RECORDS[:2], {})
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def each():
        yield RECORDS[0]
        raise StorageError("the disk is gone.")

    with pytest.raises(StorageError, match=r"the disk is gone\."):
        assemble_tables(tmp_path, each(), lambda _: {})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_is_a_sentence(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.pq.ParquetWriter, "write_table", full)
    with pytest.raises(StorageError, match=r"runs\.parquet: could not be written \(No space left on device\)\."):
        write_tables(tmp_path, RECORDS, {})
    assert list(tmp_path.iterdir()) == []
