"""Every grid file composes and expands to the stated points, and each point is a trial."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import builders
import hydra
import pytest
import yaml

from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.grid import expand, read_grid
from profiler.config.trials.identity import labels, trial_id
from profiler.config.trials.specification import parse_point, parse_points
from profiler.domain.trials.trial import SPEC_KEYS, TRIAL_KEYS, Lengths, Logprobs, Tuning
from profiler.sweep.command import ALL_KEYS, read_command
from profiler.sweep.prepared import composition
from profiler.sweep.prepared.composition import compose

SWEEPS = Path(__file__).parents[2] / "sweeps"

SIZES = {
    "lora_vs_full": 25,
    "oxen_2025": 20,
    "num_generations": 4,
    "completion_length": 12,
    "group_and_length": 16,
    "optimizer": 6,
    "logprobs": 4,
    "gradient_checkpointing": 10,
    "full": 180,
    "sft": 30,
    "sizes": 120,
    "dpo": 30,
    "fsdp": 78,
    "verl_report": 6,
    "claims": 152,
    "vllm": 8,
    "guard": 7,
}

IDS = {
    "lora_vs_full": ("41ca2eb3bd60bd45", "efce394b2dcf4c80"),
    "oxen_2025": ("37aab23263e54a28", "87cc4d0fdf4cd771"),
    "num_generations": ("fdad1952128c3ab2", "5d9817f7c832aeba"),
    "completion_length": ("8786bbd896d7371c", "fbcad36ddff3f0dd"),
    "group_and_length": ("f4b1fa0d50bc844d", "dd2f3ea6d415b662"),
    "optimizer": ("2aa4a2aeab7e0838", "0aaa3934a3fbb7be"),
    "logprobs": ("112c12c65bc464b8", "3b93ba13a4ab33ca"),
    "gradient_checkpointing": ("a4b23af736f0f48e", "40e7ddc12fdb1357"),
    "full": ("c1cf3cf017876769", "a4186b6be2307a0e"),
    "sizes": ("2e984bee7e0cbe19", "851e6414c23701d0"),
    "sft": ("008910095f7675dc", "796cd6088c01d54d"),
    "dpo": ("bd1344e12ed0824b", "a6278fffbe0f7119"),
    "fsdp": ("b1d16d32e6f1fe40", "be45c054d807eea2"),
    "verl_report": ("736631d39b145d20", "68512436ee7b7203"),
    "claims": ("65df8ce7c1fbb44b", "b26f9c24a053fb10"),
    "vllm": ("e181cc50ccff4750", "2c82ab9af8d66e59"),
    "guard": ("4103c12ec7052014", "baadc48991ba3e75"),
}
"""Hashes of the trial ids of each grid in order, on a simulated and on a real GPU, as the version that added it had."""

QWEN = [f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "3b", "7b", "14b")]


def specs_of(name, *words):
    command = read_command([f"+grid={name}", "backend=simulated", *words])
    return parse_points(expand(read_grid(name, compose(command)), command.axes), architecture_of=builtin_architecture)


def test_every_grid_file_is_tested():
    assert {path.stem for path in (SWEEPS / "grid").glob("*.yaml")} == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_a_grid_has_its_points(name):
    specs = specs_of(name)
    assert len(specs) == SIZES[name]
    rows = labels(specs)
    assert len({(row, spec.model) for row, spec in zip(rows, specs, strict=True)}) == SIZES[name]
    if name not in ("claims", "verl_report"):  # no method of theirs is run with every model
        assert len(set(rows)) * len({spec.model for spec in specs}) == SIZES[name]


@pytest.mark.parametrize("name", SIZES)
def test_the_trials_of_a_grid_keep_their_ids(name):
    """Stored results are found by these ids. A changed default must be stated in the grids that relied on it."""
    for backend, expected in zip(("simulated", "cuda"), IDS[name], strict=True):
        specs = specs_of(name, f"backend={backend}")
        for version in ("0.1.0", "0.2.0"):
            found = " ".join(trial_id(spec, replace(builders.VERSIONS, profiler=version)) for spec in specs)
            assert hashlib.sha256(found.encode()).hexdigest()[:16] == expected, (backend, version)


@pytest.mark.parametrize("name", SIZES)
def test_a_grid_states_its_question_and_only_what_differs_from_the_defaults(name):
    values = yaml.safe_load((SWEEPS / "grid" / f"{name}.yaml").read_text())
    assert values["question"].endswith("?")
    defaults = _config_file()
    assert [key for key in set(values) & set(SPEC_KEYS) if values[key] == defaults[key]] == []


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_the_configuration_file_states_the_declared_defaults(tuning):
    place = {"backend": "simulated", "tuning": tuning}
    written = parse_point({**_config_file(), **place}, architecture_of=builtin_architecture)
    assert written == parse_point({"model": "qwen2.5-0.5b", **place}, architecture_of=builtin_architecture)


def test_the_configuration_file_explains_every_choice():
    """But losses of other programs, which no sweep runs."""
    of_others = [each.value for each in Logprobs if not each.is_of_trl]
    lines = (SWEEPS / "config.yaml").read_text().splitlines()
    for key in TRIAL_KEYS:
        (line,) = [line for line in lines if line.startswith(f"{key.name}: ")]
        if key.choices is not None:
            words = [word for word in key.allowed if word not in of_others]
            assert [word for word in words if word not in line.partition("#")[2]] == [], key.name


def test_a_composed_configuration_has_every_key():
    assert set(compose(read_command(["+grid=optimizer"]))) >= set(ALL_KEYS)


def composed(folder, **files):
    """The configuration of the grid `mine` in a folder whose grids have these contents."""
    (folder / "grid").mkdir(exist_ok=True)
    shutil.copy(SWEEPS / "config.yaml", folder)
    for name, text in files.items():
        (folder / "grid" / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    return compose(read_command(["-cd", str(folder), "+grid=mine"]))


def test_a_changed_grid_is_read_again(tmp_path):
    assert composed(tmp_path, mine="steps: 2")["steps"] == 2
    assert composed(tmp_path, mine="steps: 3")["steps"] == 3


def test_a_grid_of_a_grid_is_composed_as_before(tmp_path):
    """Hydra removes the list of defaults from what it read."""
    assert composed(tmp_path, mine="defaults: [base]\nseed: 5", base="steps: 2")["steps"] == 2
    assert composed(tmp_path)["steps"] == 2


@pytest.mark.parametrize("name", SIZES)
def test_groups_of_hydra_change_nothing_and_are_not_loaded(name, monkeypatch):
    """Groups of its own configuration say where a job of Hydra logs, and none runs."""
    loaded, load = [], composition.KeptPackageSource.load_config

    def noted(source, config_path):
        loaded.append(config_path)
        return load(source, config_path)

    monkeypatch.setattr(composition.KeptPackageSource, "load_config", noted)
    command = read_command([f"+grid={name}"])
    found = compose(command)
    assert loaded == []
    monkeypatch.setattr(composition, "_composed", lambda overrides: hydra.compose("config", overrides=overrides))
    assert compose(command) == found
    assert "hydra/job_logging/default" in loaded


def test_a_group_of_hydra_that_is_named_is_loaded(tmp_path):
    named = "defaults: [{override /hydra/job_logging: stdout}]\nsteps: 2"
    assert composed(tmp_path, mine=named)["steps"] == 2
    assert compose(read_command(["+grid=optimizer", "hydra/job_logging=stdout"]))["steps"] == 3


def _config_file():
    values = yaml.safe_load((SWEEPS / "config.yaml").read_text())
    assert set(values) == {*ALL_KEYS, "defaults"}
    return {key: values[key] for key in SPEC_KEYS}


def test_lora_vs_full():
    specs = specs_of("lora_vs_full")
    methods = ["full", "full + 8-bit", "full + 8-bit + checkpointing", "LoRA", "LoRA + checkpointing"]
    assert [(spec.model, label) for spec, label in zip(specs, labels(specs), strict=True)] == [
        (model, method) for model in QWEN for method in methods
    ]
    assert {spec.beta for spec in specs} == {0.04}
    targets = ("q_proj", "k_proj", "o_proj", "up_proj", "down_proj")
    assert {spec.lora_target_modules for spec in specs} == {None, targets}
    assert {spec.steps_per_generation for spec in specs} == {4}


def test_oxen_2025():
    specs = specs_of("oxen_2025")
    models = ["qwen2.5-0.5b", "llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "qwen2.5-14b"]
    assert list(dict.fromkeys(spec.model for spec in specs)) == models
    assert labels(specs)[:4] == ["full", "full + 8-bit", "full + 8-bit + checkpointing", "LoRA"]
    first = specs[0]
    assert (first.logprobs, first.optim, first.attn_implementation) == ("full", "adamw_torch", "flash_attention_2")
    assert (first.generation_batch_size, first.num_generations, first.gradient_accumulation_steps) == (4, 4, 4)


def test_num_generations_puts_the_group_into_one_backward():
    for words, groups in [((), [4, 8, 16, 64]), (("num_generations=2,32",), [2, 32])]:
        specs = specs_of("num_generations", *words)
        assert [spec.num_generations for spec in specs] == groups
        assert all(spec.generation_batch_size == spec.num_generations for spec in specs)


def test_overrides_on_the_command_line():
    specs = specs_of("lora_vs_full", "model=qwen2.5-0.5b,qwen2.5-3b", "num_generations=4,8")
    assert len(specs) == 2 * 2 * 5
    tiny = specs_of("lora_vs_full", "model=tiny", "tuning=full,lora")
    seen = {(str(spec.tuning), str(spec.optim), spec.gradient_checkpointing) for spec in tiny}
    bundles = [("adamw_torch_fused", False), ("adamw_8bit", False), ("adamw_8bit", True), ("adamw_torch_fused", True)]
    assert seen == {(tuning, *bundle) for tuning in ("full", "lora") for bundle in bundles}
    assert len(tiny) == 8
    assert len(specs_of("logprobs", "num_generations=choice(2,4)", "seed=range(0,3)")) == 4 * 2 * 3
    assert len(specs_of("logprobs", "model=Qwen/Qwen2.5-7B,qwen2.5-7b")) == 4
    assert len(specs_of("logprobs", "tuning=lora", "lora_target_modules=[q_proj],[q_proj,v_proj]")) == 8


def test_the_group_goes_through_one_backward_and_every_completion_to_its_limit():
    specs = specs_of("group_and_length")
    assert {(spec.num_generations, spec.max_completion_length) for spec in specs} == {
        (group, length) for group in (4, 8, 16, 32) for length in (512, 1024, 2048, 4096)
    }
    assert all(spec.per_device_train_batch_size == spec.generation_batch_size == spec.num_generations for spec in specs)
    assert {(spec.model, spec.tuning, spec.lengths) for spec in specs} == {("qwen2.5-7b", Tuning.LORA, Lengths.FORCED)}
