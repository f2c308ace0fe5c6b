"""Keys of `accelerate launch` and of the environment in a recipe of trl, and rewards that are models."""

import json
from pathlib import Path

import pytest
import yaml

from profiler.config.files.arguments import ACCELERATE_CONFIGS, launch_part
from profiler.config.files.companion_files import accelerate_part
from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import answer, main

RECIPE = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
    "dtype": "bfloat16",
    "num_generations": 8,
    "per_device_train_batch_size": 8,
}


@pytest.fixture
def found(tmp_path):
    """Return the answer to a recipe with more keys, and to words of the command line."""

    def answered(*words, **more):
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump({**RECIPE, **more}))
        return json.loads(answer([f"config={path}", *words, "format=json"]))

    return answered


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["zero_stage=3"], "deepspeed"),
        (["offload_optimizer_device=cpu"], "deepspeed"),
        (["fsdp_reshard_after_forward=false"], "fsdp"),
        ([], "multi_gpu"),
        # What is stated wins: in a grid of several shardings the keys of one have no meaning with the others.
        (["zero_stage=3", "distributed_type=multi_gpu"], "multi_gpu"),
    ],
)
def test_keys_of_a_sharding_imply_it(words, kind):
    """DDP was answered where only the stage of ZeRO was given."""
    job = ["model=qwen2.5-0.5b", "tuning=full", "num_processes=2", "gpu=h100", "format=json"]
    trial = json.loads(answer([*job, *words]))["trial"]
    assert trial["distributed_type"] == kind
    assert (trial["zero_stage"] is None) is (kind != "deepspeed")


def test_processes_of_the_recipe_count(found):
    stated = found(num_processes=4)
    assert stated["trial"]["num_processes"] == 4
    assert stated == found("num_processes=4")


def test_the_command_line_wins_over_the_recipe(found):
    assert found("num_processes=2", num_processes=4)["trial"]["num_processes"] == 2


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("zero2", (8, "deepspeed", 2)),
        ("zero3", (8, "deepspeed", 3)),
        ("fsdp2", (8, "fsdp", None)),
        ("multi_gpu", (8, "multi_gpu", None)),
        ("single_gpu", (1, "no", None)),
    ],
)
def test_a_configuration_of_trl_is_read_by_its_name(found, name, expected):
    trial = found(accelerate_config=name)["trial"]
    assert (trial["num_processes"], trial["distributed_type"], trial["zero_stage"]) == expected


def test_processes_of_the_recipe_win_over_the_configuration_that_it_names(found):
    assert found(accelerate_config="zero3", num_processes=2)["trial"]["num_processes"] == 2


PATHS = ["examples/accelerate_configs/deepspeed_zero3.yaml", "../trl/accelerate_configs/zero3.yaml"]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_into_trl_names_its_file(found, path, tmp_path):
    sharded = {"num_processes": 8, "distributed_type": "deepspeed", "zero_stage": 3}
    recipe = found(accelerate_config=path)["trial"]
    (tmp_path / "run.sh").write_text(f"accelerate launch --config_file {path} train_grpo.py --config recipe.yaml")
    line = json.loads(answer([f"config={tmp_path / 'run.sh'}", "trl=1.16", "format=json"]))
    assert f"{path} as trl has it" in " ".join(line["notes"])
    assert [{key: trial[key] for key in sharded} for trial in (recipe, line["trial"])] == [sharded] * 2


def test_the_configurations_are_those_of_trl():
    """Each says for memory what the file of the installed trl says."""
    import trl

    files = {path.stem: path for path in (Path(trl.__path__[0]) / "accelerate_configs").glob("*.yaml")}
    assert files.keys() == ACCELERATE_CONFIGS.keys()
    for name, path in files.items():
        ours, theirs = (
            launch_part("r", {"accelerate_config": name}),
            accelerate_part(name, yaml.safe_load(path.read_text())),
        )
        offloads = {"offload_optimizer_device": "none", "offload_param_device": "none"}
        assert {**offloads, **ours.job} == {**offloads, **theirs.job}, name
        assert (ours.values, ours.faults) == ({}, theirs.faults), name


def test_the_allocator_of_the_environment_is_named(found):
    env = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "WANDB_MODE": "offline"}
    said = " ".join(found(env=env)["notes"])
    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True of recipe.yaml (alloc_conf= counts it)" in said
    assert "expandable" not in " ".join(found("alloc_conf=expandable_segments:True", env=env)["notes"])


@pytest.mark.parametrize("key", ["reward_funcs", "reward_model_name_or_path"])
def test_a_reward_model_without_a_slash_counts_by_its_name(found, key):
    name = "skywork-qwen3-8b"
    scored = found(**{key: [name] if key == "reward_funcs" else name})
    assert scored["trial"]["reward_models"] == ["qwen3-8b"]
    assert f"the reward model {name} as qwen3-8b (by its name)" in scored["notes"][0]
    assert scored["peak_allocated_bytes"] == found("reward_models=qwen3-8b")["peak_allocated_bytes"]
    assert scored["peak_allocated_bytes"] != found()["peak_allocated_bytes"]


def test_a_reward_with_a_size_that_is_not_built_in_is_named(found):
    assert "the reward model grader-13b, which has no formula" in " ".join(found(reward_funcs=["grader-13b"])["notes"])


def test_names_of_functions_need_no_memory(found):
    functions = ["accuracy", "format", "tag_count", "my_lib.rewards.soft_b", "length2", "cosine"]
    assert found(reward_funcs=functions) == found()


@pytest.mark.parametrize("adapter", [{}, {"use_peft": False}, {"lora_r": 16}])
def test_quantised_weights_without_an_adapter_are_refused(tmp_path, capsys, found, adapter):
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**RECIPE, "load_in_4bit": True, **adapter}))
    assert main([f"config={path}"]) == EXIT_USAGE
    assert "load_in_4bit: true: without use_peft is refused by transformers" in capsys.readouterr().err
    assert found("tuning=qlora", load_in_4bit=True, **adapter)["trial"]["tuning"] == "qlora"
    assert found(load_in_4bit=True, use_peft=True)["trial"]["tuning"] == "qlora"


def test_transformers_refuses_quantised_weights_without_an_adapter():
    """The rule that the refusal repeats."""
    from types import SimpleNamespace

    from transformers.trainer_utils import validate_quantization_for_training

    model = SimpleNamespace(is_quantized=True, hf_quantizer=SimpleNamespace(is_trainable=True, is_qat_trainable=False))
    with pytest.raises(ValueError, match="cannot perform fine-tuning on purely quantized models"):
        validate_quantization_for_training(model)


def test_an_early_recipe_has_no_rule_for_its_evaluation(found):
    early = {"vllm_device": "auto", "use_vllm": True, "eval_strategy": "steps", "per_device_eval_batch_size": 4}
    assert found(num_processes=7, **early)["trial"]["num_processes"] == 7
