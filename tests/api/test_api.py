"""The Python API: the same answers as the commands, from values of Python, with every fault of the input."""

import ast
import json
import re
from inspect import getdoc
from pathlib import Path

import pytest

import grpo_vram
import profiler.api
from profiler.advise.main import main as advise_command
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.trials.optimizers import Optimizer
from profiler.estimate.main import answer
from profiler.rendering.memory_words import reserved_note
from profiler.solve.main import main as solve_command

PAGE = Path(__file__).parents[2] / "docs" / "python.md"
RECIPE = """\
model_name_or_path: Qwen/Qwen2.5-7B
use_peft: true
dtype: bfloat16
num_generations: 8
per_device_train_batch_size: 8
max_completion_length: 512
wandb_projet: x
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(RECIPE)
    return path


JOBS = [
    {"model": "qwen2.5-7b", "tuning": "lora", "gpu": "a100-40gb"},
    {"model": "qwen2.5-0.5b", "optim": "adamw_8bit", "gradient_checkpointing": False, "gpu": "4090"},
    {"model": "qwen3-8b", "tuning": "lora", "lora_target_modules": ["q_proj", "v_proj"], "gpu_memory_gib": 24},
    {"model": "llama-3.1-8b", "num_processes": 8, "distributed_type": "fsdp", "beta": 0.04},
    {"model": "qwen2.5-3b", "recipe": "sft", "max_length": 2048, "gpu": "24GiB"},
]
WORDS = [
    ["model=qwen2.5-7b", "tuning=lora", "gpu=a100-40gb"],
    ["model=qwen2.5-0.5b", "optim=adamw_8bit", "gradient_checkpointing=false", "gpu=4090"],
    ["model=qwen3-8b", "tuning=lora", "lora_target_modules=[q_proj,v_proj]", "gpu_memory_gib=24"],
    ["model=llama-3.1-8b", "num_processes=8", "distributed_type=fsdp", "beta=0.04"],
    ["recipe=sft", "model=qwen2.5-3b", "max_length=2048", "gpu=24GiB"],
]


@pytest.mark.parametrize(("keys", "words"), zip(JOBS, WORDS, strict=True))
def test_an_estimate_is_that_of_the_command(keys, words):
    found = grpo_vram.estimate(**keys)
    assert str(found) == answer(words)
    shown = json.loads(answer([*words, "format=json"]))
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes, found.peak_phase) == (
        shown["peak_allocated_bytes"],
        shown["peak_reserved_bytes"],
        shown["peak_phase"],
    )
    assert found.origin == shown["origin"] == "estimated"
    assert found.peak_allocated_bytes == max(phase.peak_allocated_bytes for phase in found.phases)
    assert {card.gpu.name for card in found.cards} >= set(KNOWN_GPUS)
    assert found.card is not None
    assert found.card.gpu.name == found.keys["gpu"]
    assert found.explained is not None and reserved_note(found.explained.spec) in found.how_wrong


def test_a_recipe_is_read_and_keys_win(recipe):
    job = grpo_vram.read_recipe(recipe, gpu="h100-80gb")
    found = grpo_vram.estimate(job, num_generations=4)
    assert (found.keys["num_generations"], found.keys["max_completion_length"]) == (4, 512)
    assert found.keys["gpu"] == "h100-80gb"
    assert grpo_vram.estimate(job, gpu="4090").keys["gpu"] == "rtx-4090-24gb"
    assert found.assumed[0] == "Ignored, because trl has no such keys: wandb_projet."
    assert str(grpo_vram.estimate(job)).endswith(answer([f"config={recipe}", "gpu=h100-80gb"])[-400:])
    changed = job.with_keys(max_completion_length=2048)
    assert grpo_vram.estimate(changed).peak_allocated_bytes > grpo_vram.estimate(job).peak_allocated_bytes
    assert job.keys == {"gpu": "h100-80gb"}, "a job is a value"


def test_a_limit_is_that_of_the_command(capsys, recipe):
    found = grpo_vram.solve("max_completion_length", grpo_vram.read_recipe(recipe), gpu="a100-40gb", margin=0.1)
    words = ["max_completion_length", f"config={recipe}", "gpu=a100-40gb", "margin=0.1", "confirm=false"]
    assert solve_command([*words, "format=json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["answers"]
    assert (found.largest, found.beyond) == (shown["largest"], shown["beyond"])
    assert found.at_largest.left_bytes >= 0.1 * found.at_largest.gpu.memory_bytes > found.at_beyond.left_bytes


def test_the_smallest_card_is_that_of_the_command(capsys):
    found = grpo_vram.smallest_card(model="qwen2.5-7b", tuning="lora")
    assert solve_command(["gpu", "model=qwen2.5-7b", "tuning=lora", "format=json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["answers"]
    assert found.card.gpu.name == shown["smallest"]
    job = grpo_vram.Job(keys={"model": "qwen2.5-7b", "tuning": "lora", "gpu": "h200-141gb"})
    assert grpo_vram.smallest_card(job, gpu_memory_gib=24) == found
    assert grpo_vram.smallest_card(model="llama-3.1-70b", tuning="full").card is None


def test_advice_is_that_of_the_command(capsys):
    found = grpo_vram.advise(model="qwen2.5-7b", tuning="full", gpu="a100-40gb")
    assert advise_command(["model=qwen2.5-7b", "tuning=full", "gpu=a100-40gb"]) == 0
    assert capsys.readouterr().out == str(found)
    assert found.fits
    assert found.before.left_bytes < 0 <= found.after.left_bytes
    assert found.yaml.rstrip() in str(found)
    assert found.keys["optim"] != spec_to_mapping(grpo_vram.estimate(model="qwen2.5-7b").explained.spec)["optim"]
    assert sum(step.saved_bytes for step in found.steps) > 0


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({}, "model="),
        ({"modle": "qwen2.5-7b"}, "modle=.* is unknown. Did you mean 'model'"),
        ({"model": "qwen2.5-7b", "format": "json"}, "format=json: is an option of the command line"),
        ({"model": "qwen2.5-7b", "fail_if": "tight"}, "fail_if=tight: is an option of the command line"),
        ({"model": "qwen2.5-7b", "num_generations": "8"}, "num_generations="),
        ({"model": "qwen2.5-7b", "num_generations": [4, 8]}, "num_generations="),
        ({"model": "qwen2.5-7b", "beta": object()}, "beta="),
        ({"model": "qwen2.5-7b", "trl": "0.18"}, "trl="),
        ({"model": "a,b"}, "model="),
        ({"model": 'x" num_generations=3'}, "model="),
    ],
)
@pytest.mark.parametrize("call", [grpo_vram.estimate, grpo_vram.advise, grpo_vram.smallest_card])
def test_wrong_keys_carry_their_faults(call, keys, says):
    with pytest.raises(grpo_vram.UsageError) as caught:
        call(**keys)
    assert re.search(says, str(caught.value))
    assert caught.value.faults


def test_all_faults_come_at_once():
    with pytest.raises(grpo_vram.UsageError) as caught:
        grpo_vram.solve("max_completion_length", model="qwen2.5-7b", gpu="4090", margin=7, modle="x", num_generations=0)
    assert {fault.key for fault in caught.value.faults} >= {"margin", "modle"}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: grpo_vram.solve("gpu", model="qwen2.5-7b"), "smallest_card finds the smallest card"),
        (lambda: grpo_vram.solve("beta", model="qwen2.5-7b", gpu="4090"), "beta"),
        (lambda: grpo_vram.solve("", model="qwen2.5-7b"), "name one key"),
        (lambda: grpo_vram.estimate(model="qwen2.5-7b", gpu="any"), "gpu=any: asks for every card"),
        (lambda: grpo_vram.read_recipe(), "config=none: needs at least one file"),
        (lambda: grpo_vram.read_recipe("absent.yaml"), "config=absent.yaml"),
    ],
)
def test_a_wrong_question_is_a_fault(call, says):
    with pytest.raises(grpo_vram.UsageError, match=says):
        call()


SCRIPT_OF_VERL = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2.5-7B \\
    data.max_prompt_length=512 data.max_response_length=1024 trainer.n_gpus_per_node=8 trainer.nnodes=1
"""
YAML_OF_VERL = """\
actor_rollout_ref: {model: {path: Qwen/Qwen2.5-7B}}
trainer: {n_gpus_per_node: 8}
no_such: text
"""
SCRIPT_OF_TRL = """\
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="x", num_generations=8, max_completion_length=512, bf16=True)
trainer = GRPOTrainer(model="Qwen/Qwen2.5-3B", args=args, peft_config=LoraConfig(r=32), reward_funcs=len)
"""
FILES = {
    "grpo.yaml": RECIPE,
    "train.py": SCRIPT_OF_TRL,
    "accelerate.yaml": "distributed_type: FSDP\nnum_processes: 4\nfsdp_config: {fsdp_version: 2}\n",
    "zero.json": json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}),
    "adapter_config.json": json.dumps({"peft_type": "LORA", "r": 64, "target_modules": ["q_proj", "v_proj"]}),
    "verl.yaml": YAML_OF_VERL,
    "run.sh": SCRIPT_OF_VERL,
}


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (["train.py"], {}),
        (["grpo.yaml", "accelerate.yaml"], {}),
        (["grpo.yaml", "zero.json"], {"num_processes": 2}),
        (["grpo.yaml", "adapter_config.json"], {}),
        (["verl.yaml"], {"trainer.n_gpus_per_node": 4}),
        (["run.sh"], {"data.max_response_length": 2048}),
        (["verl"], {"actor_rollout_ref.model.path": "qwen2.5-7b"}),
        (["verl-megatron"], {"actor_rollout_ref.model.path": "qwen2.5-7b"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_each_kind_of_file_is_answered_as_by_the_command(files, names, keys):
    job = grpo_vram.read_recipe(*names, **keys)
    words = [*(f"config={name}" for name in names), *(f"{key}={value}" for key, value in keys.items()), "gpu=a100-80gb"]
    found = grpo_vram.estimate(job, gpu="a100-80gb")
    said = []
    printed = answer(words, say=said.append)
    assert str(found).splitlines()[:4] == printed.splitlines()[:4]
    assert str(found).splitlines()[-4:] == printed.splitlines()[-4:]
    shown = json.loads(answer([*words, "format=json"]))
    assert found.peak_allocated_bytes == shown.get("peak_allocated_bytes", shown.get("peak_bytes"))
    assert found.fit in (shown.get("fit"), found.card.fit)
    assert found.card.gpu.name == "a100-80gb"
    assert found.card in found.cards
    assert len(found.cards) == len(KNOWN_GPUS)
    assert found.peak_allocated_bytes == max(phase.peak_allocated_bytes for phase in found.phases)
    assert found.peak_phase in [phase.phase for phase in found.phases]
    assert (found.verl is None) == (found.explained is not None)
    assert {*said} <= {*found.assumed}


def test_a_job_of_verl_that_memory_does_not_decide_says_why(files):
    refused = grpo_vram.estimate(
        grpo_vram.read_recipe("verl.yaml"), **{"actor_rollout_ref.rollout.tensor_model_parallel_size": 8}
    )
    assert refused.fit == "not possible"
    assert refused.reasons
    assert refused.reasons[0] in " ".join(str(refused).split())
    assert grpo_vram.estimate(grpo_vram.read_recipe("verl.yaml")).reasons == ()


@pytest.mark.parametrize(
    "call", [grpo_vram.advise, grpo_vram.smallest_card, lambda job: grpo_vram.solve("num_generations", job)]
)
def test_a_job_of_verl_has_only_an_estimate(files, call):
    with pytest.raises(
        grpo_vram.UsageError, match=r"config=verl\.yaml: is a configuration of verl, .* only an estimate"
    ):
        call(grpo_vram.read_recipe("verl.yaml"))


def test_faults_of_a_job_of_verl_come_at_once(files):
    with pytest.raises(grpo_vram.UsageError) as caught:
        grpo_vram.read_recipe("verl.yaml", tuning="lora", gpu="h999", strict=True)
    assert {fault.key for fault in caught.value.faults} == {"tuning", "gpu", "no_such"}


def test_types_that_mypy_sees_are_those_that_are_imported():
    tree = ast.parse(Path(str(grpo_vram.__file__)).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    assert {name.name for part in block.body for name in part.names} == set(grpo_vram.__all__) - {"main"}


def test_values_of_python_stand_for_those_of_yaml(tmp_path):
    named = grpo_vram.estimate(model="qwen2.5-7b", tuning="full", optim=Optimizer.ADAMW_8BIT)
    assert named.keys["optim"] == "adamw_8bit"
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, '
        '"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": true}'
    )
    assert grpo_vram.estimate(model=tmp_path).keys["model"] == str(tmp_path)
    pair = grpo_vram.estimate(model="qwen2.5-7b", tuning="lora", lora_target_modules=("v_proj", "q_proj"))
    assert pair.keys["lora_target_modules"] == ["q_proj", "v_proj"]


def test_the_package_has_every_name_of_the_api():
    assert set(grpo_vram.__all__) == {*profiler.api.__all__, "VramCallback", "main"}


@pytest.mark.parametrize("name", sorted(set(grpo_vram.__all__) - {"main"}))
def test_every_name_is_documented_and_on_the_page(name):
    assert getdoc(getattr(grpo_vram, name))
    assert name in PAGE.read_text()


def test_the_examples_of_the_page_run(recipe, tmp_path, monkeypatch, capsys):
    (tmp_path / "accelerate.yaml").write_text("num_processes: 1\n")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    exec("\n".join(blocks), {})
    assert "max_completion_length: " in capsys.readouterr().out
