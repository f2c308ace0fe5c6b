"""Sweeps into folders with results: real records and tables, fake trials."""

import importlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import builders
import pytest
from sweep_fakes import H100, FakeWorld

from profiler.config.trials import identity
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Status
from profiler.storage.files.typed_json import checksum_of
from profiler.storage.records.record_folder import TRIALS
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import read_tables, table_path
from profiler.sweep.parts import SweepParts

GRID = "+grid=lora_vs_full"
TINY = (GRID, "model=tiny")
CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}


class StoringWorld(FakeWorld):
    """Stores records and tables as a real sweep does."""

    def parts(self, **changes):
        return super().parts(open_store=self.open_store, write_tables=SweepParts().write_tables, **changes)

    def run_trials(self, plan, **how):
        super().run_trials(plan, **how)
        for trial in plan:
            record = self.store.find(trial.trial_id)
            known = trial.spec.backend == "simulated" and trial.spec.model in BUILTIN_MODELS
            if known and record.outcome.status is Status.OK:
                self.store.write(replace(record, outcome=builders.outcome(trial.spec)))
        return ()

    def open_store(self, folder):
        self.store = SweepParts().open_store(folder)
        return self.store


@pytest.fixture
def world():
    return StoringWorld()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "results" / "lora_vs_full"


def ids(folder):
    return set(read_tables(folder).runs["trial_id"])


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_sweep_in_a_fresh_clone_keeps_the_rows_of_the_kept_tables(sweep, folder):
    assert sweep(GRID)[0] == 0
    before = ids(folder)
    shutil.rmtree(folder / "records")

    code, out, err = sweep(*TINY)

    assert (code, err) == (0, "")
    assert f"25 rows are carried over from the tables in {folder}: their records are not here." in out.splitlines()
    assert len(before) == 25
    assert before < ids(folder)
    assert len(ids(folder)) == 30


def test_an_interrupted_sweep_also_keeps_the_rows(sweep, world, folder):
    sweep(GRID)
    shutil.rmtree(folder / "records")
    world.interrupt = True
    assert sweep(*TINY)[0] == 130
    assert len(ids(folder)) == 25


def test_with_all_records_no_row_is_carried_over_and_no_line_printed(sweep, folder):
    sweep(GRID)
    _, out, err = sweep(*TINY)
    assert "carried" not in out + err
    assert len(ids(folder)) == 30


def test_one_record_that_no_table_can_hold_is_left_out(sweep, folder):
    sweep(*TINY)
    good = ids(folder)
    poison = builders.records([builders.spec(seed=10**20)])[0]
    RecordStore(folder).write(poison)

    code, _, err = sweep(*TINY)

    assert code == 3
    (line,) = err.splitlines()
    assert line.startswith(f"trial={poison.trial_id}: ")
    assert "seed=100000000000000000000 does not fit in 64 bits" in line
    assert ids(folder) == good
    RecordStore(folder).path(poison.trial_id).unlink()
    assert sweep(*TINY)[0] == 0


def test_a_seed_that_no_table_can_hold_is_refused(sweep, world, folder):
    code, _, err = sweep(*TINY, "seed=100000000000000000000")
    assert (code, world.runs) == (2, [])
    assert err == "seed=100000000000000000000: must be a whole number of at most 4294967295.\n"
    assert not folder.exists()


@pytest.mark.parametrize("backend", ["simulated", "cpu", "cuda"])
def test_an_edited_config_json_is_another_model(sweep, world, tmp_path, backend):
    world.visible = H100
    words = (GRID, f"model={tmp_path}/config.json", f"backend={backend}", "tuning=full")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    sweep(*words)
    path.write_text(json.dumps({**CONFIG, "transformers_version": "5.0"}, indent=4, sort_keys=True))
    sweep(*words)
    assert len(world.runs) == 1
    path.write_text(json.dumps({**CONFIG, "num_hidden_layers": 40}))
    code, out, _ = sweep(*words)
    assert code == 0
    assert "stored already" not in out
    assert [len(plan) for plan, _ in world.runs] == [4, 4]


def test_an_edited_data_set_is_another_data_set(sweep, world, tmp_path):
    words = (*TINY, "backend=cpu", "tuning=full", f"dataset={tmp_path}/prompts.jsonl")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one"}\n')
    for _ in range(2):
        sweep(*words)
    assert len(world.runs) == 1
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "two"}\n')
    sweep(*words)
    assert len(world.runs) == 2


def test_a_data_set_in_a_folder_and_one_of_the_hub(sweep, world, tmp_path):
    data = tmp_path / "data"
    (data / "part").mkdir(parents=True)
    (data / "part" / "0.parquet").write_bytes(b"rows")
    for source in (data, "openai/gsm8k"):
        words = (*TINY, "backend=cpu", "tuning=full", f"dataset={source}")
        sweep(*words)
        (data / ".cache").write_text("somebody's")
        sweep(*words)
    assert len(world.runs) == 2
    (data / "part" / "1.parquet").write_bytes(b"more")
    sweep(*TINY, "backend=cpu", "tuning=full", f"dataset={data}")
    assert len(world.runs) == 3


def test_simulated_trials_run_again_after_a_change_of_the_simulation(sweep, world, monkeypatch, folder):
    world.visible = H100
    words = (*TINY, "backend=simulated,cuda", "tuning=full")
    sweep(*words)
    before = len(ids(folder))
    monkeypatch.setattr(identity, "SIMULATION_RESULTS_VERSION", identity.SIMULATION_RESULTS_VERSION + 1)
    code, out, _ = sweep(GRID, "model=qwen2.5-3b", "backend=simulated", "tuning=full")
    assert code == 0
    assert "4 rows are from before a change of this program or of a config.json" in out
    assert len(ids(folder)) == before + 4
    _, out, _ = sweep(*words)
    assert {str(trial.spec.backend) for trial in world.runs[-1][0]} == {"simulated"}
    assert "from before a change" not in out
    assert len(ids(folder)) == before + 4
    assert len(list((folder / "records").glob("*.json"))) == before + 8


def test_a_record_that_is_set_aside_is_reported_and_its_trial_runs_again(sweep, world, folder):
    sweep(*TINY)
    path = sorted((folder / "records").glob("*.json"))[0]
    path.write_text(path.read_text()[:100])
    code, _, err = sweep(*TINY)
    assert code == 0
    (line,) = err.splitlines()
    assert line.startswith(f"Set aside as {folder}/records/set_aside/{path.stem}.0.json: {path.name} is not a valid")
    assert [trial.trial_id for trial in world.runs[1][0]] == [path.stem]


def newer_record(folder):
    path = sorted((folder / "records").glob("*.json"))[0]
    stored = json.loads(path.read_text())
    content = {"schema_version": TRIALS.version + 1, "record": stored["record"]}
    path.write_text(json.dumps({"checksum": checksum_of(content), **content}))
    return "record", path


def newer_table(folder):
    import pyarrow.parquet as pq

    path = table_path(folder, "breakdown")
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"schema_version": b"3"}), path)
    return "breakdown", path


def damaged_table(folder):
    path = table_path(folder, "shape")
    path.write_bytes(b"torn")
    return "shape", path


@pytest.mark.parametrize("make", [newer_record, newer_table, damaged_table])
@pytest.mark.parametrize("words", [TINY, (*TINY, "resume=false"), (GRID, "model=qwen2.5-3b", "dry_run=false")])
def test_a_folder_that_cannot_be_added_to_is_refused_before_anything_starts(sweep, world, folder, make, words):
    sweep(*TINY)
    key, path = make(folder)
    before = contents(folder)
    code, _, err = sweep(*words)
    assert code == 2
    (line,) = err.splitlines()
    assert line.startswith(f"{key}={path}: ")
    assert len(world.runs) == 1
    assert contents(folder) == before


def test_the_advice_for_a_damaged_table_works(sweep, folder):
    sweep(*TINY)
    before = ids(folder)
    table_path(folder, "runs").write_bytes(b"torn")
    _, _, err = sweep(*TINY)
    assert "Delete it and run the same sweep again" in err
    table_path(folder, "runs").unlink()
    assert sweep(*TINY)[0] == 0
    assert ids(folder) == before


def test_measured_trials_are_found_by_a_later_version_of_this_program(sweep, world):
    world.visible = H100
    sweep(*TINY)
    parts = world.parts

    def later(**changes):
        versions = replace(parts().installed_versions(), profiler="9.9")
        return parts(installed_versions=lambda: versions, **changes)

    world.parts = later
    _, out, _ = sweep(*TINY)
    assert "5 of 5 trials are stored already" in out
    assert len(world.runs) == 1


def test_measured_trials_of_a_hub_model_are_found_under_the_name_without_its_hash(sweep, world, folder, monkeypatch):
    world.visible = H100
    words = (GRID, "model=somebody/model", "tuning=full")
    parts = world.parts
    world.parts = lambda **changes: parts(load_model_config=lambda _: CONFIG, **changes)
    with monkeypatch.context() as earlier:
        earlier.setattr(
            importlib.import_module("profiler.sweep.prepared.preparation"), "content_of", lambda *_, **__: {}
        )
        sweep(*words, "resume=false")
    _, out, _ = sweep(*words)
    assert "4 of 4 trials are stored already" in out
    shutil.rmtree(folder / "records")
    _, out, _ = sweep(*words)
    assert "stored already" not in out
    assert [len(plan) for plan, _ in world.runs] == [4, 4]
    assert not {trial.trial_id for trial in world.runs[0][0]} & {trial.trial_id for trial in world.runs[1][0]}


def test_failed_trials_remove_no_rows(sweep, world, folder):
    sweep(GRID)
    shutil.rmtree(folder / "records")
    world.statuses = {"tiny": Status.FAILED}
    assert sweep(*TINY)[0] == 3
    assert len(ids(folder)) == 30


def test_the_folder_may_be_a_path_without_records(tmp_path):
    from profiler.storage.stores.record_store import folder_faults

    assert folder_faults(tmp_path / "nowhere") == []
    (tmp_path / "file").touch()
    assert folder_faults(Path(tmp_path / "file")) == []
