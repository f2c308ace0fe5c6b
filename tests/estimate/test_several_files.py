"""A job that several files describe: the recipe, accelerate's file, DeepSpeed's, the adapter's, and the script."""

import dataclasses
import json

import pytest
import yaml

from profiler.config.files.companion_files import (
    _LORA_EXTRAS,
    ACCELERATE_KEYS,
    DEEPSPEED_FIELDS,
    FSDP_FIELDS,
    LORA_FREE,
    LORA_NAMES,
    accelerate_part,
)
from profiler.config.launch.launchers import accelerate_values
from profiler.domain.errors import EXIT_OK, EXIT_USAGE, UsageError
from profiler.estimate.main import answer, main

RECIPE = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
    "dtype": "bfloat16",
    "num_generations": 8,
    "max_prompt_length": 128,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
}
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "deepspeed_config": {"zero_stage": 2, "offload_optimizer_device": "cpu", "zero3_init_flag": False},
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 4,
}
ADAPTER = {"peft_type": "LORA", "r": 32, "lora_alpha": 64, "target_modules": ["v_proj", "q_proj"], "bias": "none"}
ZERO_3 = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "none"}},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}


@pytest.fixture
def written(tmp_path):
    """Write files and return the words that name them."""

    def write(**files):
        words = []
        for stem, content in files.items():
            name, _, suffix = stem.rpartition("_")
            path = tmp_path / f"{name}.{suffix}"
            text = content if suffix in ("py", "sh") else (yaml.safe_dump if suffix == "yaml" else json.dumps)(content)
            path.write_text(text)
            words.append(f"config={path}")
        return words

    return write


def _found(words):
    return json.loads(answer([*words, "format=json"]))


def _notes(words):
    return " ".join(_found(words)["notes"])


def test_the_files_of_one_job_are_read_together(written):
    found = _found(written(recipe_yaml=RECIPE, accelerate_yaml=ACCELERATE, adapter_config_json=ADAPTER))
    trial = found["trial"]
    assert (trial["num_processes"], trial["tuning"], trial["lora_rank"]) == (4, "lora", 32)
    assert trial["lora_target_modules"] == ["q_proj", "v_proj"]
    assert (trial["distributed_type"], trial["zero_stage"]) == ("deepspeed", 2)
    assert (trial["offload_optimizer_device"], trial["offload_param_device"]) == ("cpu", "none")
    assert "ZeRO" not in " ".join(found["notes"])
    assert not any("num_processes" in line for line in found["notes"])


def test_the_order_of_the_files_does_not_matter(written):
    words = written(recipe_yaml=RECIPE, accelerate_yaml=ACCELERATE, adapter_config_json=ADAPTER)
    assert _found(words)["trial"] == _found(words[::-1])["trial"]


def test_json_and_yaml_are_alike(written):
    assert _found(written(recipe_yaml=RECIPE)) == _found(written(recipe_json=RECIPE))


def test_a_file_of_deepspeed_settles_the_stage_of_a_recipe(written):
    recipe = {**RECIPE, "deepspeed": "configs/zero3.json"}
    words = written(recipe_yaml=recipe, zero3_json=ZERO_3)
    assert "the fewest over which ZeRO-3 shards" in _notes(words)
    alone = _found([*words, "num_processes=1"])["trial"]
    assert (alone["zero_stage"], alone["num_processes"]) == (3, 1)
    assert "ZeRO-3" in _notes(written(recipe_yaml={**RECIPE, "deepspeed": ZERO_3}))


OF_DEEPSPEED = {
    "recipe_yaml": {"deepspeed": "configs/zero3.json"},
    "accelerate_yaml": {
        "distributed_type": "DEEPSPEED",
        "num_processes": 2,
        "deepspeed_config": {"deepspeed_config_file": "configs/zero3.json"},
    },
    "train_py": "args = GRPOConfig(deepspeed='configs/zero3.json', model_init_kwargs={'dtype': 'bfloat16'})\n"
    "GRPOTrainer('Qwen/Qwen2.5-0.5B', args=args)",
    "run_sh": "accelerate launch --num_processes 2 --use_deepspeed --deepspeed_config_file zero3.json train.py",
}


ABSENT = {
    "recipe_yaml": ({**RECIPE, "deepspeed": "configs/zero3.json"}, "zero_stage=configs/zero3.json: is a file of Deep"),
    "own_yaml": ({**RECIPE, "accelerate_config": "acc.yaml"}, "distributed_type=acc.yaml: is a file of accelerate"),
    "run_sh": ("accelerate launch --config_file $A train_grpo.py", "distributed_type=$A: is a file of accelerate"),
    "several_sh": ("accelerate launch --num_processes 4 --config_file a.yaml train_grpo.py", "distributed_type=a.yaml"),
    "train_py": (OF_DEEPSPEED["train_py"], "zero_stage=configs/zero3.json: is a file of DeepSpeed that is not here"),
}
"""Files that name another one that says how memory is shared, and what is said where that is not here."""

OTHERS = {"own_yaml": ACCELERATE, "run_sh": ACCELERATE, "several_sh": ACCELERATE}


@pytest.mark.parametrize("naming", ABSENT)
def test_an_absent_file_of_how_memory_is_shared_is_refused(written, naming, capsys):
    """No figure without sharding is near that of the job; the file itself or a key settles it."""
    content, said = ABSENT[naming]
    keys = ["model=qwen2.5-0.5b", "per_device_train_batch_size=4", "num_generations=4", "dtype=bfloat16", "trl=1.16"]
    words = [*written(**{naming: content}), *keys]
    assert main([*words, "gpu=h100"]) == EXIT_USAGE
    refused = capsys.readouterr().err
    assert said in refused
    assert "Give it as well, as config=" in refused
    found = _found([*words, "zero_stage=3", "num_processes=2"])["trial"]
    assert (found["zero_stage"], found["num_processes"], found["distributed_type"]) == (3, 2, "deepspeed")
    assert _found([*words, "distributed_type=no", "num_processes=1"])["trial"]["distributed_type"] == "no"
    other = OTHERS.get(naming, ZERO_3)
    given = written(**{"given_yaml" if other is ACCELERATE else "zero3_json": other})
    stages = {
        _found([*each, "num_processes=4"])["trial"]["zero_stage"] for each in ((*words, *given), (*given, *words))
    }
    assert stages == {2 if other is ACCELERATE else 3}


@pytest.mark.parametrize("naming", OF_DEEPSPEED)
def test_a_named_file_of_deepspeed_is_read(written, naming):
    """Where it lies near the other file, or is given too; the answer is that of both."""
    files = {"train_py": OF_DEEPSPEED["train_py"].replace("configs/zero3.json", "")} if naming == "run_sh" else {}
    content = OF_DEEPSPEED[naming]
    files[naming] = {**RECIPE, **content} if naming == "recipe_yaml" else content
    if naming == "accelerate_yaml":
        files["recipe_yaml"] = RECIPE
    words = [word for word in written(**files, zero3_json=ZERO_3) if naming != "run_sh" or "train" not in word]
    alone = [word for word in words if not word.endswith("zero3.json")]
    found = _found([*alone, "num_processes=2"])
    assert (found["trial"]["zero_stage"], found["trial"]["num_processes"]) == (3, 2)
    assert found["trial"] == _found([*words, "num_processes=2"])["trial"]


def test_zero_is_counted_where_the_number_of_gpus_is_known(written):
    words = written(recipe_yaml=RECIPE, zero3_json=ZERO_3)
    sharded = _found([*words, "num_processes=8"])
    assert (sharded["trial"]["distributed_type"], sharded["trial"]["zero_stage"]) == ("deepspeed", 3)
    assert "ZeRO" not in " ".join(sharded["notes"])
    assert sharded["peak_allocated_bytes"] < _found([*words, "num_processes=2"])["peak_allocated_bytes"]
    alone, by_hand = _found(words), _found([*words, "num_processes=2"])
    assert alone["trial"] == by_hand["trial"]
    assert "num_processes=2 (the fewest over which ZeRO-3 shards)" in " ".join(alone["notes"])
    assert "ZeRO" not in " ".join(by_hand["notes"])


def test_zero_is_counted_next_to_vllm(written):
    words = [*written(recipe_yaml={**RECIPE, "use_vllm": True}, zero3_json=ZERO_3), "num_processes=8"]
    found = _found(words)
    assert (found["trial"]["zero_stage"], found["trial"]["use_vllm"]) == (3, True)
    assert "ZeRO" not in " ".join(found["notes"])


def test_zero_without_a_closed_form_is_named(written):
    found = _found(written(recipe_yaml={**RECIPE, "optim": "lion_32bit"}, accelerate_yaml=ACCELERATE))
    assert found["trial"]["distributed_type"] == "multi_gpu"
    notes = " ".join(found["notes"])
    assert "what ZeRO-2 changes (it shards gradients and optimizer states over 4 GPUs" in notes
    assert "that optimizer states are offloaded (offload_optimizer_device=cpu)" in notes


def test_sizes_of_buckets_that_differ_are_named(written):
    zero = {**ZERO_3, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "sub_group_size": 1e9}}
    notes = _notes([*written(recipe_yaml=RECIPE, zero2_json=zero), "num_processes=2"])
    assert "reduce_bucket_size=auto of zero2.json (DeepSpeed's default counts)" in notes
    assert "sub_group_size" not in notes


def test_accelerate_has_stage_2_unless_its_file_says_otherwise(written):
    accelerate = {"distributed_type": "DEEPSPEED", "num_processes": 2}
    assert _found(written(recipe_yaml=RECIPE, accelerate_yaml=accelerate))["trial"]["zero_stage"] == 2


@pytest.mark.parametrize(
    ("accelerate", "said"),
    [
        ({"distributed_type": "FSDP", "num_processes": 2}, "what FSDP changes (fsdp_version=1, fsdp_reshard_after"),
        ({"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": True}}, "fsdp_offload_params=true"),
        ({"distributed_type": "MEGATRON_LM"}, "what Megatron-LM changes"),
        ({"distributed_type": "MULTI_GPU", "mixed_precision": "fp8"}, "mixed_precision=fp8 of accelerate.yaml"),
        ({"distributed_type": "NO", "dynamo_config": {"dynamo_backend": "INDUCTOR"}}, "what torch.compile changes"),
        (
            {"distributed_type": "NO", "parallelism_config": {"pp_size": 2}},
            "what parallelism_config of accelerate.yaml",
        ),
    ],
)
def test_what_accelerate_changes_without_a_formula_is_named(written, accelerate, said):
    assert said in _notes(written(recipe_yaml=RECIPE, accelerate_yaml=accelerate))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("tp_size", "each layer is split over GPUs (tensor parallelism)"),
        ("sp_size", "each row is split over GPUs (DeepSpeed-Ulysses); trl's GRPO and RLOO refuse it"),
        ("dp_replicate_size", "the model is sharded over a part of the GPUs"),
    ],
)
def test_a_row_or_a_layer_that_is_split_is_refused_by_name(written, name, said):
    key = f"parallelism_config_{name}"
    accelerate = {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": {"fsdp_version": 2}}
    sizes = {"parallelism_config_dp_shard_size": 4, key: 1}
    whole = written(recipe_yaml=RECIPE, accelerate_yaml={**accelerate, "parallelism_config": sizes})
    assert _found(whole)["trial"]["distributed_type"] == "fsdp"
    split = written(recipe_yaml=RECIPE, accelerate_yaml={**accelerate, "parallelism_config": {**sizes, key: 2}})
    with pytest.raises(UsageError) as caught:
        answer([*split, "gpu=h100-80gb"])
    assert f"{key}=2: {said}" in " ".join(fault.sentence() for fault in caught.value.faults)
    options = {"use_fsdp": True, "num_processes": 4, "fsdp_version": 2, key: 2}
    faults = [
        accelerate_part("line", accelerate_values({**options, "use_parallelism_config": used}, {})).faults
        for used in (False, True)
    ]
    assert [[fault.found for fault in each] for each in faults] == [[], ["2"]]


def test_rows_that_ring_attention_splits_are_counted_for_sft(written):
    accelerate = {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": {"fsdp_version": 2}}
    sizes = {"parallelism_config_cp_size": 4}
    recipe = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "max_length": 4096, "dtype": "bfloat16"}
    split = {**accelerate, "parallelism_config": sizes}
    whole, parts = (
        _found([*written(recipe_yaml=recipe, accelerate_yaml=each), "recipe=sft", "trl=1.16"])
        for each in (accelerate, split)
    )
    assert (whole["trial"]["cp_size"], parts["trial"]["cp_size"]) == (1, 4)
    assert parts["peak_allocated_bytes"] < whole["peak_allocated_bytes"]
    for changed, said in (
        ((RECIPE, split), "cp_size=4: splits each row over GPUs, which trl's GRPO and RLOO refuse"),
        ((recipe, {**split, "distributed_type": "MULTI_GPU"}), "cp_size=4: is accelerate's with FSDP 2 only"),
    ):
        with pytest.raises(UsageError) as caught:
            answer(written(recipe_yaml=changed[0], accelerate_yaml=changed[1]))
        assert said in " ".join(fault.sentence() for fault in caught.value.faults)


def test_fsdp_2_is_counted(written):
    accelerate = {
        "distributed_type": "FSDP",
        "num_processes": 4,
        "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True, "fsdp_activation_checkpointing": True},
    }
    words = written(recipe_yaml=RECIPE, accelerate_yaml=accelerate)
    found = _found(words)
    trial = found["trial"]
    assert (trial["distributed_type"], trial["fsdp_version"], trial["num_processes"]) == ("fsdp", 2, 4)
    assert (trial["fsdp_activation_checkpointing"], trial["gradient_checkpointing"]) == (True, False)
    assert "FSDP" not in " ".join(found["notes"])
    assert _found([*words, "distributed_type=multi_gpu"])["trial"]["distributed_type"] == "multi_gpu"
    own = written(own_yaml={**RECIPE, "fsdp": "full_shard", "fsdp_config": {"version": 2}})
    assert _found([*own, "num_processes=4"])["trial"]["distributed_type"] == "fsdp"


@pytest.mark.parametrize(("stated", "loads"), [({}, True), ({"fsdp_cpu_ram_efficient_loading": False}, False)])
def test_accelerate_hands_out_the_weights_unless_that_is_off(written, stated, loads):
    accelerate = {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": {"fsdp_version": 2, **stated}}
    found = _found(written(recipe_yaml=RECIPE, accelerate_yaml=accelerate))
    assert found["trial"]["fsdp_cpu_ram_efficient_loading"] is loads


def test_transformers_loads_on_every_gpu_unless_asked(written):
    for own, loads in (({}, False), ({"cpu_ram_efficient_loading": True}, True)):
        words = written(own_yaml={**RECIPE, "fsdp": "full_shard", "fsdp_config": {"version": 2, **own}})
        assert _found([*words, "num_processes=4"])["trial"]["fsdp_cpu_ram_efficient_loading"] is loads


def test_fsdp_without_a_closed_form_is_named(written):
    accelerate = {"distributed_type": "FSDP", "num_processes": 4, "fsdp_config": {"fsdp_version": 2}}
    as_default = _found(written(recipe_yaml={**RECIPE, "dtype": "float32"}, accelerate_yaml=accelerate))
    assert as_default["trial"]["distributed_type"] == "fsdp"
    found = _found(written(recipe_yaml={**RECIPE, "bf16": False}, accelerate_yaml=accelerate))
    assert found["trial"]["distributed_type"] == "multi_gpu"
    keys = "fsdp_version=2, fsdp_reshard_after_forward=true, fsdp_cpu_ram_efficient_loading=true"
    assert f"what FSDP changes ({keys}): it shards" in " ".join(found["notes"])


@pytest.mark.parametrize(
    ("other", "key", "said"),
    [
        (("zero3_json", {**ZERO_3, "gradient_accumulation_steps": 4}), "gradient_accumulation_steps", "is 2 in recipe"),
        (("zero3_json", {**ZERO_3, "train_micro_batch_size_per_gpu": 1}), "per_device_train_batch_size", "is 4 in"),
        (("adapter_json", {**ADAPTER, "base_model_name_or_path": "Qwen/Qwen2.5-7B"}), "model", "in adapter.json"),
        (("second_yaml", {"per_device_train_batch_size": 2}), "per_device_train_batch_size", "2 in second.yaml"),
    ],
)
def test_files_that_contradict_each_other_are_a_fault(written, capsys, other, key, said):
    words = written(recipe_yaml=RECIPE, **dict([other]))
    assert main(words) == EXIT_USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{key}=") and said in line and f"Give {key}= on the command line" in line
    settled = {"model": "qwen2.5-7b", "gradient_accumulation_steps": 4, "per_device_train_batch_size": 4}[key]
    assert main([*words, f"{key}={settled}"]) == EXIT_OK


def test_stages_of_zero_that_contradict_each_other_are_a_fault(written, capsys):
    assert main(written(recipe_yaml=RECIPE, accelerate_yaml=ACCELERATE, zero3_json=ZERO_3)) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "zero_stage=3: is 2 in accelerate.yaml and 3 in zero3.json" in said


def test_the_same_value_in_two_files_is_no_contradiction(written):
    adapter = {**ADAPTER, "base_model_name_or_path": "Qwen/Qwen2.5-0.5B", "target_modules": ["q_proj", "v_proj"]}
    recipe = {**RECIPE, "use_peft": True, "lora_r": 32, "lora_target_modules": ["v_proj", "q_proj"]}
    assert _found(written(recipe_yaml=recipe, adapter_json=adapter))["trial"]["lora_rank"] == 32


def test_what_an_adapter_changes_without_a_formula_is_named(written):
    adapter = {**ADAPTER, "rank_pattern": {"q_proj": 64}, "bias": "all"}
    notes = _notes(written(recipe_yaml=RECIPE, adapter_json=adapter))
    assert "what rank_pattern={q_proj:64} of adapter.json changes" in notes
    assert "what bias=all of adapter.json changes" in notes


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("adapter_json", {"peft_type": "IA3"}, "only LORA"),
        ("accelerate_yaml", {"distributed_type": "XLA"}, "is no training on NVIDIA GPUs"),
        ("config_json", {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}, "Give it as model=."),
    ],
)
def test_files_without_a_recipe_are_refused_by_name(written, capsys, name, content, said):
    assert main(written(recipe_yaml=RECIPE, **{name: content})) == EXIT_USAGE
    assert said in capsys.readouterr().err


def test_unknown_keys_of_a_companion_are_listed_or_refused(written, capsys):
    words = written(recipe_yaml=RECIPE, accelerate_yaml={**ACCELERATE, "my_key": 1})
    assert main(words) == EXIT_OK
    assert "my_key" in capsys.readouterr().err
    assert main([*words, "strict=true"]) == EXIT_USAGE


def test_the_generation_batch_is_that_of_all_processes(written):
    recipe = {**RECIPE, "generation_batch_size": 32}
    assert _found(written(recipe_yaml=recipe))["trial"]["steps_per_generation"] == 8
    assert _found([*written(recipe_yaml=recipe), "num_processes=4"])["trial"]["steps_per_generation"] == 2
    words = written(recipe_yaml=recipe, accelerate_yaml=ACCELERATE)
    assert _found(words)["trial"]["steps_per_generation"] == 2


def test_lora_without_modules_adapts_what_peft_does(written):
    found = _found(written(recipe_yaml={**RECIPE, "use_peft": True}))
    assert found["trial"]["lora_target_modules"] == ["q_proj", "v_proj"]
    assert "lora_target_modules=[q_proj,v_proj] (peft's default)" in found["notes"][0]


def test_scales_are_in_float32_unless_the_recipe_quantises_them(written):
    recipe = {**RECIPE, "use_peft": True, "load_in_4bit": True}
    plain = _found(written(recipe_yaml=recipe))
    nested = _found(written(recipe_yaml={**recipe, "use_bnb_nested_quant": True}))
    assert [each["trial"]["bnb_4bit_use_double_quant"] for each in (plain, nested)] == [False, True]
    assert plain["peak_allocated_bytes"] > nested["peak_allocated_bytes"]
    # Without weights in 4 bits there are no scales.
    full = _found(written(recipe_yaml={**RECIPE, "use_bnb_nested_quant": False}))
    assert full["trial"]["bnb_4bit_use_double_quant"] is True


def test_names_are_those_of_the_installed_accelerate_and_peft():
    from accelerate.commands.config.config_args import ClusterConfig
    from peft import LoraConfig
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as TARGETS

    assert {each.name for each in dataclasses.fields(ClusterConfig)} == ACCELERATE_KEYS - {"ipex_config"}
    fields = {each.name: each.default for each in dataclasses.fields(LoraConfig)}
    tables = [set(LORA_NAMES), set(_LORA_EXTRAS), LORA_FREE]
    assert {name: sum(name in table for table in tables) for name in fields} == dict.fromkeys(fields, 1)
    assert set().union(*tables) == fields.keys()
    assert (fields["r"], fields["lora_alpha"], fields["lora_dropout"]) == (8, 8, 0.0)
    families = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "mixtral")
    assert {tuple(TARGETS[family]) for family in families} == {("q_proj", "v_proj")}


def test_every_field_of_accelerates_plugins_has_an_effect():
    """`fsdp_config` and `deepspeed_config` state the fields of these plugins, some by another name."""
    from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin

    renamed = {"transformer_cls_names_to_wrap": "transformer_layer_cls_to_wrap", "min_num_params": "min_num_params"}
    of_fsdp = {each.name.removeprefix("fsdp_") for each in dataclasses.fields(FullyShardedDataParallelPlugin)}
    assert {f"fsdp_{renamed.get(name, name)}" for name in of_fsdp} <= FSDP_FIELDS
    moe = {"transformer_moe_cls_names": "deepspeed_moe_layer_cls_names", "hf_ds_config": "deepspeed_config_file"}
    of_deepspeed = {each.name for each in dataclasses.fields(DeepSpeedPlugin)} - {"is_train_batch_min"}
    assert {moe.get(name, name) for name in of_deepspeed} <= DEEPSPEED_FIELDS


@pytest.mark.parametrize(
    ("accelerate", "said"),
    [
        (
            {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_auto_wrap_policy": "NO_WRAP"}},
            "fsdp_auto_wrap_policy=NO_WRAP (other parts of the model are gathered at once: the figure may be too low)",
        ),
        (
            {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3, "enable_msamp": True}},
            "enable_msamp=true (MS-AMP trains in 8 bits",
        ),
    ],
)
def test_a_key_of_a_plugin_that_changes_memory_is_named(accelerate, said):
    texts = [note.text for note in accelerate_part("a.yaml", accelerate).notes if not note.is_counted]
    assert any(text.startswith(said) for text in texts)
    usual = {
        "distributed_type": "FSDP",
        "fsdp_config": {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_use_orig_params": True},
    }
    assert not accelerate_part("a.yaml", usual).notes
    assert not accelerate_part(
        "a.yaml", {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 3, "zero3_init_flag": False}}
    ).notes
