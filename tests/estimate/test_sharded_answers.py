"""What sharded GPUs gather is named after the verdict, where it is most of the peak."""

import json

import pytest

import grpo_vram
from profiler.estimate.main import answer

JOB = {"model": "qwen2.5-32b", "gpu": "h100-80gb", "num_processes": 8}
ZERO_3 = {"distributed_type": "deepspeed", "zero_stage": 3}
FSDP = {"distributed_type": "fsdp"}


def _said(keys, *more):
    return " ".join(answer([*(f"{key}={value}" for key, value in {**JOB, **keys}.items()), *more]).split())


@pytest.mark.parametrize(
    ("keys", "part", "hint"),
    [
        # 2 x 32,763,876,352 B and a bucket of 10^9 B: 62.0 GiB.
        (ZERO_3, "in rollout, is gathered: 62.0 GiB of 127.1 GiB", "use_vllm=true gathers one tensor at a time"),
        # The reference twice, 4 x 32,763,876,352 B, and norm and head, 2 x 778,573,120 B: 123.5 GiB.
        ({**FSDP, "beta": 0.04}, "in score, is gathered: 123.5 GiB of 177.9 GiB", "beta=0 and LoRA need none"),
    ],
)
def test_most_of_the_peak_is_named_with_what_avoids_it(keys, part, hint):
    said = _said(keys)
    assert said.index("Does not fit") < said.index("Most of the peak") < said.index("Host memory")
    assert part in said
    assert hint in said
    assert (
        part in json.loads(answer([*(f"{k}={v}" for k, v in {**JOB, **keys}.items()), "format=json"]))["peak_gathered"]
    )
    assert hint in grpo_vram.estimate(**JOB, **keys).gathered


@pytest.mark.parametrize(
    "keys", [{**ZERO_3, "zero_stage": 2}, {**ZERO_3, "use_vllm": "true"}, {"tuning": "lora"}, FSDP]
)
def test_another_category_at_the_peak_is_not_named(keys):
    assert "Most of the peak" not in _said(keys)


# Files that shard a job over a number of GPUs that they do not state

OF_ZERO = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
ROWS = {"per_device_train_batch_size": 1, "bf16": True}
TRL = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "dtype": "bfloat16", "max_length": 512, **ROWS}
SHARDED = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2, "fsdp_reshard_after_forward": True}}
LLAMA_FACTORY = {"stage": "sft", "finetuning_type": "lora", "do_train": True, "cutoff_len": 512, "lora_target": "all"}
AXOLOTL = {
    "base_model": "Qwen/Qwen2.5-0.5B",
    "datasets": [{"path": "a", "type": "alpaca"}],
    "sequence_len": 512,
    "micro_batch_size": 1,
    "gradient_accumulation_steps": 4,
    "adapter": "lora",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_linear": True,
    "optimizer": "adamw_torch",
    "bf16": True,
}
SWIFT = "swift sft --model Qwen/Qwen2.5-0.5B --tuner_type lora --dataset a --max_length 512 --torch_dtype bfloat16"
UNSTATED = {
    "trl": ("ZeRO-3", {"sft.yaml": {**TRL, "deepspeed": OF_ZERO}}),
    "trl and accelerate": (
        "ZeRO-2",
        {"sft.yaml": TRL, "zero.yaml": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}}},
    ),
    "trl and FSDP": ("FSDP", {"sft.yaml": TRL, "fsdp.yaml": SHARDED}),
    "LLaMA-Factory": (
        "ZeRO-3",
        {
            "lora.yaml": {
                **LLAMA_FACTORY,
                **ROWS,
                "model_name_or_path": TRL["model_name_or_path"],
                "deepspeed": "z.json",
            },
            "z.json": OF_ZERO,
        },
    ),
    "axolotl": ("ZeRO-3", {"lora.yaml": {**AXOLOTL, "deepspeed": "deepspeed_configs/zero3_bf16.json"}}),
    "ms-swift": ("ZeRO-3", {"run.sh": f"{SWIFT} --deepspeed zero3\n"}),
}


def _written(folder, files):
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return [f"config={folder / name}" for name in files]


@pytest.mark.parametrize("case", UNSTATED)
def test_the_fewest_gpus_are_taken_and_said(tmp_path, case):
    name, files = UNSTATED[case]
    words = [*_written(tmp_path, files), "gpu=h100-80gb"]
    said = " ".join(answer(words).split())
    assert f"That is {name} on 2 GPUs, the fewest that the files allow; num_processes= states yours." in said
    assert f"num_processes=2 (the fewest over which {name} shards)" in said
    for gpus in (2, 8):
        stated = " ".join(answer([*words, f"num_processes={gpus}"]).split())
        assert f"on {gpus} GPUs" in stated and "the fewest" not in stated
    of_two = json.loads(answer([*words, "num_processes=2", "format=json"]))
    assert json.loads(answer([*words, "format=json"]))["trial"] == of_two["trial"]


@pytest.mark.parametrize("case", UNSTATED)
def test_one_gpu_has_what_deepspeed_adds(tmp_path, case):
    """Float32 copies of the weights: 0.5B in full by ZeRO-2 is emulated with 10.2 GiB, and 4.6 without them."""
    name, files = UNSTATED[case]
    words = [*_written(tmp_path, files), "gpu=h100-80gb", "num_processes=1"]
    said, trial = " ".join(answer(words).split()), json.loads(answer([*words, "format=json"]))["trial"]
    assert "over 1 GPUs" not in said
    if name == "FSDP" or (name == "ZeRO-3" and trial["tuning"] != "full"):
        assert f"That is without {name}, which has no formula for this job." in said
        assert "on one GPU it shards nothing" in said
    else:
        assert f"{name} on one GPU" in said
        assert (trial["distributed_type"], trial["num_processes"]) == ("deepspeed", 1)


@pytest.mark.parametrize("loaded", ["float32", "float16"])
def test_deepspeed_makes_any_weights_bfloat16(tmp_path, loaded):
    """trl loads float32 where nothing is stated; emulated trials of both types have equal peaks in every phase."""
    files = {each: {**TRL, "dtype": each, "deepspeed": OF_ZERO} for each in ("bfloat16", loaded)}
    found = [
        json.loads(answer([*_written(tmp_path, {f"{each}.yaml": content}), "gpu=h100-80gb", "format=json"]))
        for each, content in files.items()
    ]
    assert [each["trial"]["dtype"] for each in found] == ["bfloat16", loaded]
    assert found[0]["peak_allocated_bytes"] == found[1]["peak_allocated_bytes"]


NO_FORM = {**TRL, "optim": "lion_32bit", "deepspeed": OF_ZERO}


def test_sharding_without_a_formula_is_in_the_verdict(tmp_path):
    words = [*_written(tmp_path, {"sft.yaml": NO_FORM}), "gpu=h100-80gb"]
    said = " ".join(answer(words).split())
    assert "That is one GPU without ZeRO-3, which has no formula for this job." in said
    assert "That is without ZeRO-3, which" in " ".join(answer([*words, "num_processes=8"]).split())


@pytest.mark.parametrize(("gpu", "verdict"), [("rtx-3060-12gb", "Not decided: "), ("h100-80gb", "Fits: ")])
def test_what_sharding_changes_leaves_the_verdict_open(tmp_path, gpu, verdict):
    """A card has to have room for all that sharding may add: without that, neither verdict holds."""
    words = [*_written(tmp_path, {"sft.yaml": NO_FORM}), "num_processes=8"]
    assert answer([*words, f"gpu={gpu}"]).startswith(verdict)
    (line,) = (line for line in answer([*words, "gpu=any"]).splitlines() if line.split()[:1] == [gpu])
    assert ("not decided" in line) is (verdict == "Not decided: ")


def test_a_generation_is_whole_on_the_gpus_that_are_taken(tmp_path):
    grpo = {"model_name_or_path": TRL["model_name_or_path"], "dtype": "bfloat16", "num_generations": 4, **ROWS}
    grpo |= {"per_device_train_batch_size": 4, "deepspeed": OF_ZERO}
    for batch, gpus in ((16, 2), (4, 1)):
        words = _written(tmp_path, {"grpo.yaml": {**grpo, "generation_batch_size": batch}})
        found = json.loads(answer([*words, "gpu=h100-80gb", "format=json"]))["trial"]
        assert (found["num_processes"], found["steps_per_generation"]) == (gpus, 2 if gpus == 2 else 1)


def test_rows_are_split_over_the_fewest_gpus_that_do(tmp_path):
    split = {**SHARDED, "parallelism_config": {"parallelism_config_cp_size": 4, "parallelism_config_dp_shard_size": 1}}
    words = _written(tmp_path, {"sft.yaml": {**TRL, "attn_implementation": "sdpa"}, "fsdp.yaml": split})
    found = json.loads(answer([*words, "gpu=h100-80gb", "format=json"]))["trial"]
    assert (found["num_processes"], found["cp_size"]) == (4, 4)
