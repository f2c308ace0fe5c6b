"""From a command line to exit code and results, with fakes for the outside world."""

import subprocess
import sys
from pathlib import Path, PurePath

import pytest
from sweep_fakes import H100, VERSIONS

from profiler.config.options.run_options import RunOptions
from profiler.config.trials.identity import trial_id
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.trial import Backend
from profiler.sweep.parts import import_report

GRID = "+grid=lora_vs_full"


def test_a_sweep_runs_its_plan_and_writes_the_report(sweep, world, tmp_path):
    code, out, err = sweep(GRID)
    assert (code, err) == (0, "")
    assert out == "backend=auto: simulated, because there is none in this test.\n"
    ((plan, how),) = world.runs
    assert len(plan) == 25
    assert how["options"] == RunOptions(results_dir=PurePath(tmp_path / "results"))
    assert how["versions"] == VERSIONS
    assert {trial.trial_id for trial in plan} == {trial_id(trial.spec, VERSIONS) for trial in plan}
    folder = tmp_path / "results" / "lora_vs_full"
    assert folder.is_dir()
    assert world.tables["folder"] == folder
    assert set(world.tables["estimates"]) == {trial.trial_id for trial in plan}
    assert world.tables["question"].startswith("Which sizes fit")
    assert world.tables["command"].startswith("python -m profiler.sweep +grid=lora_vs_full")
    assert [where for where, _ in world.sampled] == [folder]


def test_the_same_command_again_runs_nothing_and_writes_the_same_report(sweep, world):
    sweep(GRID)
    code, out, _ = sweep(GRID)
    assert code == 0
    assert len(world.runs) == 1
    assert "25 of 25 trials are stored already" in out
    assert world.sampled[0] == world.sampled[1]


def test_resume_false_runs_all_again(sweep, world):
    sweep(GRID)
    sweep(GRID, "resume=false")
    assert [len(plan) for plan, _ in world.runs] == [25, 25]
    assert world.runs[1][1]["options"].resume is False


def test_what_failed_runs_again_and_makes_exit_code_3(sweep, world):
    world.statuses = {"qwen2.5-3b": Status.FAILED, "qwen2.5-7b": Status.OOM, "qwen2.5-14b": Status.UNSUPPORTED}
    code, _, err = sweep(GRID)
    assert code == 3
    assert "5 of 25 trials have no answer" in err
    world.statuses = {}
    assert sweep(GRID)[0] == 0
    assert {trial.spec.model for trial in world.runs[1][0]} == {"qwen2.5-3b"}


def test_dry_run_lists_the_trials_and_writes_nothing(sweep, world, tmp_path):
    code, out, _ = sweep(GRID, "dry_run=true")
    assert code == 0
    assert not world.runs
    assert not list(tmp_path.iterdir())
    lines = out.splitlines()
    assert len(lines) == 1 + 1 + 25 + 1 + 2
    assert lines[1].split() == ["trial", "model", "method", "estimated", "rule", "on", "the", "card"]
    assert "qwen2.5-0.5b" in lines[2]
    assert "28.0 GiB" in lines[2]
    assert "fits: h100-80gb" in lines[2]
    assert "GiB more than h100-80gb has" in lines[-4]
    assert lines[-2].startswith("25 simulated trials: about 0.052 CPU-hours (0.015 to 0.26), ")
    assert lines[-1].startswith("  Nothing like them has run in this results_dir.")


def test_ctrl_c_is_exit_code_130_and_names_the_command_that_continues(sweep, world):
    world.interrupt = True
    code, _, err = sweep(GRID)
    assert code == 130
    assert err.startswith("Interrupted.")
    assert world.tables["records"] == []


def test_ctrl_c_leaves_tables_and_page_of_finished_trials(sweep, world):
    sweep(GRID, "model=tiny")
    world.tables, world.sampled, world.interrupt = {}, [], True
    code, _, _ = sweep(GRID, "model=tiny,qwen2.5-0.5b")
    assert code == 130
    assert len(world.tables["records"]) == 5
    assert [how for _, how in world.sampled] == [{"to_terminal": False, "trial_ids": ()}]


def test_auto_is_cuda_where_a_gpu_is_visible(sweep, world):
    world.visible = H100
    _, out, _ = sweep(GRID, "model=tiny")
    assert out == "backend=auto: cuda, because NVIDIA H100 is visible.\n"
    plan, how = world.runs[0]
    assert {(trial.spec.backend, trial.spec.gpu) for trial in plan} == {(Backend.CUDA, None)}
    assert (how["options"].jobs, how["gpu_uuids"]) == (None, ("GPU-1",))


def test_auto_is_simulated_where_torch_has_no_cuda(world, tmp_path, capsys):
    from dataclasses import replace

    from profiler.sweep.main import main

    world.visible = H100
    parts = world.parts(installed_versions=lambda: replace(VERSIONS, torch="2.13.0+cpu"))
    assert main([GRID, "dry_run=true", "model=tiny"], parts=parts) == 0
    assert "simulated, because torch 2.13.0+cpu is a build without CUDA" in capsys.readouterr().out


def test_a_named_backend_prints_no_line(sweep, world):
    _, out, _ = sweep(GRID, "model=tiny", "tuning=full,lora", "backend=cpu", "jobs=2")
    assert out == ""
    plan, how = world.runs[0]
    assert len(plan) == 8
    assert {(trial.spec.backend, trial.spec.gpu) for trial in plan} == {(Backend.CPU, None)}
    assert how["options"].jobs == 2


def test_backends_can_be_an_axis(sweep, world):
    sweep("+grid=logprobs", "model=tiny", "backend=auto,cpu")
    labels = [trial.label for trial in world.runs[0][0]]
    assert "full + checkpointing, backend=cpu, logprobs=full" in labels
    assert len(labels) == 8


def test_records_of_other_sweeps_are_labelled_apart(sweep, world):
    sweep(GRID, "model=tiny")
    sweep(GRID, "model=tiny", "num_generations=8")
    records = world.tables["records"]
    assert len(records) == 10
    assert len({record.label for record in records}) == 10
    assert world.sampled[1][1]["trial_ids"] == {trial.trial_id for trial in world.runs[1][0]}


@pytest.mark.parametrize("words", [["grid=logprobs"], ["-m", "+grid=logprobs"], ["++grid=logprobs", "--multirun"]])
def test_plus_and_multirun_are_accepted(sweep, world, words):
    assert sweep(*words)[0] == 0
    assert len(world.runs[0][0]) == 4


def test_a_model_of_the_user_is_read_from_its_folder(sweep, world, tmp_path):
    config = '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2, '
    (tmp_path / "config.json").write_text(config + '"num_attention_heads": 4, "vocab_size": 512}')
    code, _, err = sweep(GRID, f"model={tmp_path},{tmp_path}/config.json,tiny")
    assert (code, err) == (0, "")
    assert len(world.runs[0][0]) == 15


def test_a_folder_of_the_users_own_grids(sweep, world, tmp_path):
    (tmp_path / "mine" / "grid").mkdir(parents=True)
    (tmp_path / "mine" / "grid" / "two.yaml").write_text("# @package _global_\naxes: {seed: [1, 2]}\nmodel: tiny\n")
    assert sweep("-cd", str(tmp_path / "mine"), "+grid=two")[0] == 0
    assert [trial.spec.seed for trial in world.runs[0][0]] == [1, 2]


def test_sweeps_of_the_current_folder_come_first(sweep, world, tmp_path, monkeypatch):
    (tmp_path / "sweeps" / "grid").mkdir(parents=True)
    (tmp_path / "sweeps" / "grid" / "logprobs.yaml").write_text("# @package _global_\nmodel: tiny\n")
    monkeypatch.chdir(tmp_path)
    assert sweep("+grid=logprobs")[0] == 0
    assert [trial.spec.model for trial in world.runs[0][0]] == ["tiny"]


def test_hydra_leaves_no_file_and_no_log_handler(sweep, tmp_path, monkeypatch):
    import logging

    monkeypatch.chdir(tmp_path)
    handlers = list(logging.getLogger().handlers)
    sweep("+grid=logprobs", results_dir=tmp_path / "here")
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert Path.cwd() == tmp_path
    assert logging.getLogger().handlers == handlers


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--help"], "oxen_2025"),
        (["--cfg", "job"], "model: qwen2.5-0.5b"),
        (["--cfg=job", GRID, "model=a,b"], "- a"),
        (["--info", "searchpath"], "sweeps"),
    ],
)
def test_hydras_own_flags(sweep, world, words, text):
    code, out, _ = sweep(*words, results_dir=None)
    assert code == 0
    assert text in out
    assert not world.runs


def test_hydras_own_flags_with_a_fault(sweep):
    code, _, err = sweep("--cfg", "job", "+grid=fulll", results_dir=None)
    assert code == 2
    assert "Did you mean 'full'?" in err


def test_the_sweep_never_imports_torch(tmp_path):
    program = (
        "import sys; from profiler.sweep.main import main; "
        "code = main(['+grid=full', 'steps=0']); "
        "heavy = {'torch', 'transformers', 'trl', 'pandas'} & set(sys.modules); "
        "sys.exit(f'{code} {heavy}' if heavy or code != 2 else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "steps=0" in done.stderr


def test_a_report_that_cannot_be_imported_stops_no_trial(monkeypatch):
    monkeypatch.setitem(sys.modules, "profiler.report.main", None)
    import_report()


def test_an_installed_package_includes_its_grids(sweep, world, tmp_path, monkeypatch):
    import shutil

    package = tmp_path / "site" / "profiler"
    shutil.copytree(Path(__file__).parents[2] / "sweeps", package / "sweeps")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(
        "profiler.sweep.prepared.composition.__file__", str(package / "sweep" / "prepared" / "composition.py")
    )
    assert sweep("+grid=logprobs")[0] == 0
    assert len(world.runs[0][0]) == 4
