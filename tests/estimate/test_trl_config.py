import dataclasses
import json

import pytest
import yaml

from profiler.config.trl_config import TRL_DEFAULTS, read_trl_config
from profiler.config.trl_keys import FREE_KEYS, KEY_OF, MODEL_KEYS, NEUTRAL_VALUES
from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import answer, main


def _write(tmp_path, **values):
    path = tmp_path / "grpo.yaml"
    path.write_text(yaml.safe_dump(values))
    return f"config={path}"


def _trial(*words):
    return json.loads(answer([*words, "format=json"]))["trial"]


def test_a_config_of_trl_becomes_the_trial_that_it_describes(tmp_path):
    word = _write(
        tmp_path,
        model_name_or_path="Qwen/Qwen2.5-7B-Instruct",
        use_peft=True,
        lora_r=32,
        lora_target_modules=["q_proj", "v_proj"],
        per_device_train_batch_size=4,
        generation_batch_size=16,
        max_completion_length=1024,
        num_generations=8,
        dtype="auto",
        optim="adamw_bnb_8bit",
        learning_rate=1e-6,
        report_to="none",
        beta=0.04,
    )
    trial = _trial(word)

    assert trial["model"] == "qwen2.5-7b"
    assert (trial["tuning"], trial["lora_rank"]) == ("lora", 32)
    assert trial["lora_target_modules"] == ["q_proj", "v_proj"]
    assert (trial["steps_per_generation"], trial["gradient_accumulation_steps"]) == (4, 1)
    assert (trial["dtype"], trial["optim"], trial["beta"]) == ("bfloat16", "adamw_8bit", 0.04)
    assert trial["max_completion_length"] == 1024


def test_absent_keys_have_the_defaults_of_trl_and_the_command_line_wins(tmp_path):
    trial = _trial(_write(tmp_path, model_name_or_path="Qwen/Qwen2.5-0.5B"), "beta=0.1")

    assert trial["per_device_train_batch_size"] == 8
    assert trial["dtype"] == "float32"
    assert trial["beta"] == 0.1


def test_unknown_keys_and_unsupported_values_are_reported_together(tmp_path, capsys):
    word = _write(
        tmp_path,
        model_name_or_path="Qwen/Qwen2.5-0.5B",
        use_vllm=True,
        learning_rte=1e-6,
        num_generations=1,
        fsdp="full_shard",
    )

    assert main([word, "tuning=lorra"]) == EXIT_USAGE
    said = {line.partition("=")[0]: line for line in capsys.readouterr().err.splitlines()}
    assert set(said) == {"use_vllm", "learning_rte", "num_generations", "fsdp", "tuning"}
    assert "Did you mean 'learning_rate'?" in said["learning_rte"]


@pytest.mark.parametrize(
    "values", [{"generation_batch_size": 12}, {"generation_batch_size": 16, "steps_per_generation": 2}]
)
def test_an_impossible_generation_batch_is_a_fault(values):
    assert [fault.key for fault in read_trl_config(values).faults] == ["generation_batch_size"]


@pytest.mark.parametrize(("content", "said"), [("- 1", "contains no keys"), ("a: [", "is not valid YAML")])
def test_a_file_without_a_configuration(tmp_path, capsys, content, said):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)

    assert main([f"config={path}"]) == EXIT_USAGE
    assert said in capsys.readouterr().err
    assert main([f"config={tmp_path / 'nowhere.yaml'}"]) == EXIT_USAGE


def test_all_keys_of_the_installed_trl_are_known_with_their_defaults():
    from trl import GRPOConfig, ModelConfig, ScriptArguments

    keys = {
        field.name: field.default
        for kind in (ScriptArguments, ModelConfig, GRPOConfig)
        for field in dataclasses.fields(kind)
    }
    known = {*FREE_KEYS, *NEUTRAL_VALUES, *KEY_OF, *MODEL_KEYS, "model_init_kwargs"}

    assert set(keys) <= known
    # bf16 is None there, which trl's `__post_init__` makes true where there is no fp16
    assert {key: keys[key] for key in TRL_DEFAULTS if key != "bf16"} == {
        key: value for key, value in TRL_DEFAULTS.items() if key != "bf16"
    }
