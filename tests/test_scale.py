"""The tools of `make bench` that make and draw many varied records, on a few of them."""

from collections import Counter

from maintenance import many_records
from maintenance.engine_cost import cost
from maintenance.many_records import many_specs, scattered_specs, varied_records
from maintenance.scale import assemble, draw, fetch, make
from profiler.domain.engine import Engine
from profiler.domain.outcome import Status
from profiler.storage.tables import read_tables


def test_records_are_varied_and_the_same_on_every_call():
    specs = many_specs(300)
    records = list(varied_records(specs))
    assert records == list(varied_records(specs))
    assert len({record.trial_id for record in records}) == 300
    assert min(Counter(record.spec.model for record in records).values()) > 10
    assert {record.outcome.status for record in records} == {Status.OK, Status.OOM, Status.FAILED}
    assert len({(spec.tuning, spec.optim, spec.gradient_checkpointing) for spec in specs}) == 8
    assert len({spec.optim for spec in scattered_specs(20)}) > 3


def test_every_stage_runs_and_no_record_is_left_out(tmp_path):
    make(tmp_path, 40)
    assert set(assemble(tmp_path)) == {"tables_s", "memory_mib"}
    assert len(read_tables(tmp_path).runs) == 40
    assert draw(tmp_path)["page_mb"] > 0.1
    fetch(tmp_path, tmp_path / "fetched")
    for table in tmp_path.glob("*.parquet"):
        assert (tmp_path / "fetched" / table.name).read_bytes() == table.read_bytes()


def test_a_larger_grid_has_further_axes(monkeypatch):
    monkeypatch.setattr(many_records, "_MODELS", ("qwen2.5-0.5b",))
    monkeypatch.setattr(many_records, "_METHODS", many_records._METHODS[:1])
    assert {spec.beta for spec in many_specs(168)} == {0.0}
    specs = many_specs(300)
    assert len(set(specs)) == 300
    assert {spec.beta for spec in specs} == {0.0, 0.04}


def test_cheap_trials_show_what_an_engine_adds():
    found = cost(Engine.LOCAL, jobs=2, trials=3, is_shared=True)
    assert (found.trials, found.jobs) == (3, 2)
    assert found.first_s > 0
    assert found.each_s > 0
