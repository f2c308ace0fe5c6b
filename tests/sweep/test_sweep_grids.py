"""Every grid file composes and expands to the stated points, and each point is a trial."""

from pathlib import Path

import pytest

from profiler.config.grid import expand, read_grid
from profiler.config.labels import labels
from profiler.config.model_lookup import builtin_architecture
from profiler.config.specification import parse_point, parse_points
from profiler.domain.trial import Backend, Lengths, TrialSpec, Tuning
from profiler.sweep.command import ALL_KEYS, read_command
from profiler.sweep.composition import compose

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
}

QWEN = [f"qwen2.5-{size}" for size in ("0.5b", "1.5b", "3b", "7b", "14b")]

WHERE = {"backend", "gpu"}


def specs_of(name, *words):
    command = read_command([f"+grid={name}", "backend=simulated", *words])
    return parse_points(expand(read_grid(name, compose(command)), command.axes), architecture_of=builtin_architecture)


def test_every_grid_file_is_tested():
    assert {path.stem for path in (SWEEPS / "grid").glob("*.yaml")} == set(SIZES)


@pytest.mark.parametrize("name", SIZES)
def test_a_grid_has_its_points(name):
    specs = specs_of(name)
    assert len(specs) == SIZES[name]
    rows = len(set(labels(specs)))
    assert rows * len({spec.model for spec in specs}) == SIZES[name]


@pytest.mark.parametrize("name", SIZES)
def test_a_grid_writes_every_value_out_and_states_its_question(name):
    text = (SWEEPS / "grid" / f"{name}.yaml").read_text()
    values = compose(read_command([f"+grid={name}"]))
    grid = read_grid(name, values)
    assert f"# {grid.question}" in text
    for key in set(TrialSpec.__dataclass_fields__) - WHERE:
        assert f"{key}: " in text, key


def test_the_defaults_are_the_specs():
    values = compose(read_command(["+grid=optimizer"]))
    defaults = {key: values[key] for key in TrialSpec.__dataclass_fields__}
    assert set(values) >= set(ALL_KEYS)
    assert defaults["backend"] == "auto"
    plain = parse_point({**_config_file(), "backend": "simulated"}, architecture_of=builtin_architecture)
    assert plain == TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="qwen2.5-0.5b")


def _config_file():
    import yaml

    values = yaml.safe_load((SWEEPS / "config.yaml").read_text())
    assert set(values) == {*ALL_KEYS, "defaults", "hydra"}
    return {key: values[key] for key in TrialSpec.__dataclass_fields__}


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
