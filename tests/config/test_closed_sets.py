"""A value of a closed set that is not known is a fault, in files of trl, accelerate, DeepSpeed and peft."""

import json

import pytest
import yaml

from profiler.config.files.companion_files import accelerate_part
from profiler.config.options.reading import DEVICES, STRATEGIES, ZERO_STAGES
from profiler.config.trl.argument_values import checked_values
from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import answer, main

RECIPE = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
    "dtype": "bfloat16",
    "num_generations": 8,
    "per_device_train_batch_size": 8,
}


@pytest.fixture
def files(tmp_path):
    """Write files and return the words that name them."""

    def write(**contents):
        words = []
        for name, content in contents.items():
            path = tmp_path / f"{name}.yaml"
            path.write_text(yaml.safe_dump(content))
            words.append(f"config={path}")
        return words

    return write


def _deepspeed(**zero):
    return {"zero_optimization": zero, "train_micro_batch_size_per_gpu": "auto"}


def _accelerate(kind, **others):
    return {"distributed_type": kind, "num_processes": 2, "mixed_precision": "bf16", **others}


UNKNOWN = [
    *(("zero_optimization.stage", _deepspeed(stage=stage)) for stage in ("3", 9, [3], -1, True, 2.5, "auto")),
    ("zero_optimization", {"zero_optimization": True}),
    ("zero_optimization.offload_optimizer.device", _deepspeed(stage=3, offload_optimizer={"device": "gpu"})),
    ("zero_optimization.offload_param.device", _deepspeed(stage=3, offload_param={"device": ["cpu"]})),
    ("zero_optimization.offload_param", _deepspeed(stage=3, offload_param="cpu")),
    ("zero_optimization.cpu_offload", _deepspeed(stage=3, cpu_offload="perhaps")),
    ("bf16.enabled", {**_deepspeed(stage=2), "bf16": {"enabled": "si"}}),
    ("bf16", {**_deepspeed(stage=2), "bf16": True}),
    ("distributed_type", _accelerate("FSPD")),
    ("mixed_precision", _accelerate("MULTI_GPU", mixed_precision="bf8")),
    ("dynamo_config.dynamo_backend", _accelerate("MULTI_GPU", dynamo_config={"dynamo_backend": "INDUCTER"})),
    ("use_cpu", _accelerate("MULTI_GPU", use_cpu="perhaps")),
    *(
        ("deepspeed_config.zero_stage", _accelerate("DEEPSPEED", deepspeed_config={"zero_stage": stage}))
        for stage in ("3", 9, [3], -1)
    ),
    (
        "deepspeed_config.offload_param_device",
        _accelerate("DEEPSPEED", deepspeed_config={"zero_stage": 3, "offload_param_device": "gpu"}),
    ),
    ("deepspeed_config", _accelerate("DEEPSPEED", deepspeed_config=[3])),
    ("fsdp_config.fsdp_version", _accelerate("FSDP", fsdp_config={"fsdp_version": 3})),
    *(
        ("fsdp_config.fsdp_sharding_strategy", _accelerate("FSDP", fsdp_config={"fsdp_sharding_strategy": each}))
        for each in ("FULL_SHRAD", "HYBRID_SHARD", "NO_SHARD", 7, [1])
    ),
    ("fsdp_config.fsdp_reshard_after_forward", _accelerate("FSDP", fsdp_config={"fsdp_reshard_after_forward": "x"})),
    ("fsdp_config.fsdp_offload_params", _accelerate("FSDP", fsdp_config={"fsdp_offload_params": "some"})),
    (
        "fsdp_config.fsdp_activation_checkpointing",
        _accelerate("FSDP", fsdp_config={"fsdp_activation_checkpointing": 3}),
    ),
    (
        "fsdp_config.fsdp_cpu_ram_efficient_loading",
        _accelerate("FSDP", fsdp_config={"fsdp_cpu_ram_efficient_loading": "some"}),
    ),
    ("task_type", {"peft_type": "LORA", "task_type": "CAUSALLM"}),
    ("bias", {"peft_type": "LORA", "bias": "some"}),
    ("peft_type", {"peft_type": "LORRA"}),
]

UNKNOWN_IN_RECIPES = [
    ("use_peft", "zzz"),
    ("load_in_4bit", [1]),
    ("packing", "bfd"),
    ("use_bnb_nested_quant", "no way"),
    ("eval_on_start", "often"),
    ("eval_strategy", "step"),
    ("evaluation_strategy", 3),
    ("generation_batch_size", "many"),
    ("generation_batch_size", 0),
    ("deepspeed", [3]),
    ("deepspeed", True),
    ("fsdp", "full_shrad auto_wrap"),
    ("fsdp", "hybrid_shard"),
    ("fsdp", 3),
    ("accelerate_config", "zero4"),
    ("accelerate_config", 3),
    ("attn_implementation", "flash"),
    ("dtype", "bf16"),
    ("optim", "adamv"),
    ("vllm_mode", "local"),
]
"""Keys of recipes; those of a trial were faults before."""


@pytest.mark.parametrize(("key", "content"), UNKNOWN, ids=[f"{key}={content}"[:70] for key, content in UNKNOWN])
def test_an_unlisted_value_next_to_a_recipe_is_a_fault(files, capsys, key, content):
    assert main([*files(recipe=RECIPE, companion=content), "num_processes=2"]) == EXIT_USAGE
    assert f"{key}=" in capsys.readouterr().err


@pytest.mark.parametrize(("key", "value"), UNKNOWN_IN_RECIPES)
def test_an_unlisted_value_in_a_recipe_is_a_fault(files, capsys, key, value):
    assert main(files(recipe={**RECIPE, key: value})) == EXIT_USAGE
    lines = capsys.readouterr().err.splitlines()
    (line,) = (line for line in lines if not line.startswith("Ignored, "))
    assert line.startswith(f"{key}=")


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({"version": 3}, "fsdp_config.version"),
        ({"fsdp_version": "2"}, "fsdp_config.fsdp_version"),
        ({"reshard_after_forward": "hybrid_shard"}, "fsdp_config.reshard_after_forward"),
        ({"activation_checkpointing": "some"}, "fsdp_config.activation_checkpointing"),
        ({"cpu_ram_efficient_loading": "some"}, "fsdp_config.cpu_ram_efficient_loading"),
        ({"cpu_offload": "x"}, "fsdp_config.cpu_offload"),
        ("fsdp.json", "fsdp_config"),
    ],
)
def test_an_unlisted_value_of_fsdp_config_is_a_fault(files, capsys, config, key):
    assert main(files(recipe={**RECIPE, "fsdp": True, "fsdp_config": config})) == EXIT_USAGE
    assert f"{key}=" in capsys.readouterr().err


def _sharding(words):
    trial = json.loads(answer([*words, "num_processes=2", "format=json"]))["trial"]
    keys = ("distributed_type", "zero_stage", "offload_optimizer_device")
    return tuple(trial[key] for key in keys)


@pytest.mark.parametrize("stage", ZERO_STAGES[1:])
def test_every_known_stage_is_read(files, stage):
    assert _sharding(files(recipe=RECIPE, ds=_deepspeed(stage=stage)))[:2] == ("deepspeed", stage)


def test_flags_of_earlier_versions_of_deepspeed_offload(files):
    assert _sharding(files(recipe=RECIPE, ds=_deepspeed(stage=2, cpu_offload=True)))[2] == "cpu"
    assert DEVICES == ("none", "cpu", "nvme")


@pytest.mark.parametrize(("strategy", "reshards"), [*STRATEGIES.items(), ("full_shard", True), (2, False)])
def test_every_strategy_with_a_formula_is_read(strategy, reshards):
    part = accelerate_part("a.yaml", _accelerate("FSDP", fsdp_config={"fsdp_sharding_strategy": strategy}))
    assert (part.faults, part.job["fsdp_reshard_after_forward"]) == ((), reshards)


@pytest.mark.parametrize(
    ("fsdp", "expected"),
    [
        ("full_shard auto_wrap", (True, False)),
        (["shard_grad_op", "auto_wrap"], (False, False)),
        ("full_shard offload", (True, True)),
    ],
)
def test_options_of_fsdp_are_read(fsdp, expected):
    _, job, faults = checked_values({"fsdp": fsdp, "fsdp_config": {"version": 2}})
    assert (faults, job["fsdp_reshard_after_forward"], job["fsdp_offload_params"]) == ((), *expected)


def test_flags_are_read_from_texts_as_trls_parser_does(files):
    words = files(recipe={**RECIPE, "use_peft": "yes", "load_in_4bit": "true"})
    assert json.loads(answer([*words, "format=json"]))["trial"]["tuning"] == "qlora"


def test_one_process_is_started_without_a_distributed_type(files):
    """`single_gpu.yaml` of trl 1.16 has 8 processes, and accelerate starts one."""
    words = files(recipe=RECIPE, acc=_accelerate("NO", num_processes=8))
    assert json.loads(answer([*words, "format=json"]))["trial"]["num_processes"] == 1


def test_a_stage_in_quotes_has_a_hint(files, capsys):
    assert main(files(recipe=RECIPE, ds=_deepspeed(stage="3"))) == EXIT_USAGE
    assert "must be one of 0, 1, 2, 3. Write it without quotes." in capsys.readouterr().err


def test_an_unquoted_no_is_a_distributed_type(files):
    """YAML 1.1 reads it as false."""
    words = files(recipe=RECIPE, acc=_accelerate(kind=False, num_processes=4))
    assert json.loads(answer([*words, "format=json"]))["trial"]["num_processes"] == 1
