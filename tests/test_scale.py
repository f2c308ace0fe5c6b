"""The tools of `make bench` that make and draw many varied records, on a few of them."""

from collections import Counter

import pytest

from maintenance.benchmarks import many_records
from maintenance.benchmarks.many_records import many_specs, scattered_specs, varied_records
from maintenance.benchmarks.scale import assemble, draw, fetch, make
from maintenance.engine_cost import main as engine_cost
from maintenance.engine_cost.cost import EngineCost, Setting, added_s, cost, settings
from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.domain.machines.engines import Scheduler
from profiler.domain.runs.outcome import Status
from profiler.storage.sweep_tables.tables import read_tables


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
    found = cost(Setting(engine=Scheduler.LOCAL, jobs=2, is_shared=True), trials=3)
    assert found.trials == 3
    assert found.first_s > 0
    assert found.each_s > 0


def test_each_engine_is_compared_with_this_machine_alone_and_ray_has_several_nodes():
    found = list(settings([Scheduler.RAY, Scheduler.SLURM], jobs=(1, 2), nodes=(2,)))
    assert [(each.is_shared, each.jobs) for each in found if each.engine is Scheduler.LOCAL] == [
        (False, 1), (False, 2), (True, 1), (True, 2)]  # fmt: skip
    assert all(each.is_shared for each in found if each.engine is Scheduler.SLURM)
    assert [each.jobs for each in found if each.nodes == 2] == [2]
    times = [EngineCost(setting=each, trials=9, first_s=1.0, each_s=float(n)) for n, each in enumerate(found)]
    added = {(each.setting.engine, each.setting.is_shared, each.setting.jobs): added_s(each, times) for each in times}
    assert added[Scheduler.LOCAL, True, 2] is None
    assert added[Scheduler.SLURM, True, 2] == times[-2].each_s - 3.0


def test_the_table_has_a_row_per_setting(monkeypatch, capsys):
    def made_up(setting, *, trials):
        return EngineCost(setting=setting, trials=trials, first_s=0.25, each_s=0.08 if setting.nodes else 0.066)

    monkeypatch.setattr(engine_cost, "cost", made_up)
    words = ["trials=5", "jobs=2", "nodes=2"]
    assert engine_cost.main(words, at_hand=lambda: (Scheduler.LOCAL, Scheduler.RAY)) == EXIT_OK
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("  ")[-1].strip() == "ms added to local"
    assert [row.split() for row in rows] == [
        ["local", "folder", "1", "2", "0.2", "66.0"],
        ["local", "shared", "1", "2", "0.2", "66.0"],
        ["ray", "folder", "1", "2", "0.2", "66.0", "+0.0"],
        ["ray", "shared", "1", "2", "0.2", "66.0", "+0.0"],
        ["ray", "folder", "2", "2", "0.2", "80.0", "+14.0"],
    ]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("trial=9", "trial=9: is unknown; the keys are engine, trials, jobs, nodes. Did you mean 'trials'?"),
        ("9", "argument=9: is not of the form key=value."),
        ("trials=1", "trials=1: must be a whole number of at least 2."),
        ("jobs=0", "jobs=0: must be whole numbers from 1 to 1,000, separated by commas."),
        ("nodes=[1,2]", "nodes=[1,2]: must be whole numbers from 1 to 1,000, separated by commas."),
        ("engine=dask", "engine=dask: must be one of local, ray, slurm."),
        ("engine=ray", "engine=ray: is not at hand here, only local. Install the extra ray: `make engines` makes such"),
    ],
)
def test_words_that_cannot_be_measured_are_one_sentence_each(capsys, word, sentence):
    assert engine_cost.main([word], at_hand=lambda: (Scheduler.LOCAL,)) == EXIT_USAGE
    assert sentence in capsys.readouterr().err
