"""Files of a user's own, of public repositories, that were answered wrongly when they were read for the first time."""

import json

import pytest
from rebuilt import facts_of, read

from profiler.domain.errors import EXIT_USAGE
from profiler.estimate.main import main

QWEN = "Qwen/Qwen2.5-0.5B"


def refusal(folder, name, text, capsys, *words):
    assert main(list(read(folder, name, text, *words))) == EXIT_USAGE
    return " ".join(capsys.readouterr().err.split())


def trial_of(folder, name, text, *words):
    return facts_of(read(folder, name, text, *words))["trial"]


def said_of(folder, name, text, *words):
    return " ".join(facts_of(read(folder, name, text, *words))["notes"])


# Adapters that keys of a user's own switch on

FLAT = f"model_name_or_path: {QWEN}\nmax_length: 512\nper_device_train_batch_size: 2\nlora_r: 8\n"


@pytest.mark.parametrize("switch", ["peft_enabled", "enable_lora", "lora_enabled", "enable_peft", "use_lora"])
def test_a_switch_of_an_adapter_is_asked_for(tmp_path, capsys, switch):
    """Of jonathanlu31/final_project: adapters of 8B were full training, 76 GiB in place of 36."""
    said = refusal(tmp_path, "sft.yaml", f"{FLAT}{switch}: true\n", capsys)
    assert f"tuning=true: is {switch} in sft.yaml, and trl's key is use_peft" in said
    assert trial_of(tmp_path, "sft.yaml", f"{FLAT}{switch}: true\n", "tuning=lora")["lora_rank"] == 8


@pytest.mark.parametrize("own", ["source_column: es", "stage: stage-5", "train_split: train"])
def test_sizes_of_an_adapter_next_to_own_keys_ask_for_it(tmp_path, capsys, own):
    """Of 2107404013/Numbertheory-qwen and ludolara/americasnlp2026: their scripts always make an adapter."""
    said = refusal(tmp_path, "sft.yaml", f"{FLAT}{own}\n", capsys)
    assert "tuning=lora_r=8: is of an adapter in sft.yaml, which is of a script with keys of its own" in said
    for tuning in ("lora", "full"):
        assert trial_of(tmp_path, "sft.yaml", f"{FLAT}{own}\n", f"tuning={tuning}")["tuning"] == tuning


def test_sizes_of_an_adapter_in_a_file_of_trl_have_no_effect(tmp_path):
    assert trial_of(tmp_path, "sft.yaml", FLAT)["tuning"] == "full"
    assert "no effect of lora_r: trl makes an adapter where use_peft is true" in said_of(tmp_path, "sft.yaml", FLAT)
    assert "no effect of lora_r" not in said_of(tmp_path, "sft.yaml", f"{FLAT}use_peft: true\n")


def test_the_name_of_an_own_file_says_its_trainer(tmp_path):
    text = "model_name: a/b\nnum_train_epochs: 1\nper_device_train_batch_size: 2\nbf16: true\nlearning_rate: 0.1\n"
    trial = trial_of(tmp_path, "lora_sft.yaml", text, f"model={QWEN}", "max_length=256")
    assert (trial["recipe"], trial["max_length"]) == ("sft", 256)


# Sections

OWN = {
    "model": {"name": QWEN, "dtype": "bf16"},
    "training": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "grpo": {"num_generations": 4, "max_completion_length": 64, "beta": 0.0},
}


def own(**sections):
    return json.dumps({**OWN, **sections})


def test_short_names_of_types_are_those_of_own_files(tmp_path):
    """Of Raumberg/myllm; trl itself knows no `bf16` as a type."""
    assert trial_of(tmp_path, "own.yaml", own(), "trl=1.16")["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"engine": {"name": "deepspeed", "config": "configs/deepspeed/stage_3.json"}}, "zero_stage"),
        ({"engine": {"name": "none", "config": "configs/ds_zero3.json"}}, "zero_stage"),
        ({"distributed": {"kind": "fsdp"}}, "sharding"),
        ({"run": {"strategy": "deepspeed_stage_2"}}, "zero_stage"),
        ({"accelerate": {"plugin": "zero3"}}, "zero_stage"),
    ],
)
def test_what_a_section_says_of_sharding_is_asked_for(tmp_path, capsys, sections, key):
    """Of Raumberg/myllm, whose ZeRO-3 was passed over: 8B on one GPU."""
    said = refusal(tmp_path, "own.yaml", own(**sections), capsys, "trl=1.16")
    assert "in a file of a script of its own, which shares the training among GPUs" in said
    assert f"Give num_processes= with {key}= as well" in said


def test_an_engine_that_shards_nothing_is_passed_over(tmp_path):
    assert trial_of(tmp_path, "own.yaml", own(engine={"name": "vllm", "seed": 1}), "trl=1.16")["num_generations"] == 4


@pytest.mark.parametrize("name", ["grad_checkpoint", "grad_ckpt", "enable_gradient_checkpointing", "use_checkpointing"])
def test_checkpointing_that_is_off_by_another_name_is_asked_for(tmp_path, capsys, name):
    """Of itsmeduncan/civic-slm: it was trl's default, which is on, and `true` was said to be a model."""
    text = json.dumps({**OWN, "training": {**OWN["training"], name: False}})
    said = refusal(tmp_path, "own.yaml", text, capsys, "trl=1.16")
    assert f"gradient_checkpointing=false: is training.{name} in own.yaml" in said
    assert trial_of(tmp_path, "own.yaml", text, "gradient_checkpointing=false")["gradient_checkpointing"] is False


@pytest.mark.parametrize("name", ["eval_ood", "evaluation_extra", "benchmark_math", "inference_server"])
def test_sections_of_other_runs_ask_for_nothing(tmp_path, name):
    """Of contiloop/scp_stage5_dpo: GPUs and rows of an evaluation were asked for as those of the training."""
    text = own(**{name: {"metric": {"batch_size": 8, "gpus": 1}, "vllm": {"dtype": "float16"}}})
    assert trial_of(tmp_path, "own.yaml", text, "trl=1.16")["per_device_train_batch_size"] == 4


@pytest.mark.parametrize("name", ["final_eval", "quick_test"])
def test_sections_that_end_as_evaluations_ask_for_nothing(tmp_path, name):
    """Of nuinashco/ua-safe-summarization: tokens of an evaluation were asked for in SFT, which has no such key."""
    text = own(**{name: {"max_new_tokens": 128}})
    assert trial_of(tmp_path, "own.yaml", text, "trl=1.16")["max_completion_length"] == 64


def test_values_of_other_keys_of_a_file_are_taken(tmp_path):
    grpo = {**OWN["grpo"], "max_completion_length": "${sizes.tokens}"}
    text = own(seed=7, sizes={"tokens": 96}, grpo=grpo, training={**OWN["training"], "seed": "${seed}"})
    trial = trial_of(tmp_path, "own.yaml", text, "trl=1.16")
    assert (trial["max_completion_length"], trial["seed"]) == (96, 7)


@pytest.mark.parametrize("key", ["full_finetuning", "fast_inference"])
def test_arguments_of_unsloth_in_a_section_are_of_its_files(tmp_path, capsys, key):
    """Of nuinashco/ua-safe-summarization: "does not fit" by trl's own trainer, and nothing of Unsloth was said."""
    text = own(model={**OWN["model"], key: True})
    assert f"is a file of Unsloth, by its key {key}" in refusal(tmp_path, "own.yaml", text, capsys)


# Scripts


@pytest.mark.parametrize("module", ["unsloth", "unsloth.chat_templates", "unsloth.models.loader"])
def test_any_module_of_unsloth_changes_the_trainer(tmp_path, capsys, module):
    """Of nuinashco/ua-safe-summarization, which loads its model in another module."""
    text = f"from {module} import chat\nfrom trl import SFTConfig, SFTTrainer\n"
    text += f"SFTTrainer('{QWEN}', args=SFTConfig(max_length=512)).train()\n"
    said = refusal(tmp_path, "train.py", text, capsys)
    assert "trains with Unsloth, which it imports, and none of its loads of a model is here" in said


@pytest.mark.parametrize("key", ["per_device_train_batch_size", "bf16", "num_generations"])
def test_a_trainer_without_such_an_argument_is_refused(tmp_path, capsys, key):
    """Of Bihan/tpu-examples: 8 rows were counted, of a script that says one and cannot run."""
    text = (
        "from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(output_dir='a')\n"
        f"GRPOTrainer(model='{QWEN}', args=args, reward_funcs=f, {key}=1).train()\n"
    )
    said = refusal(tmp_path, "train.py", text, capsys)
    assert f"gives {key} to GRPOTrainer (line 3 of train.py), which has no such argument" in said


def test_a_reward_model_of_an_earlier_trainer_is_refused(tmp_path, capsys):
    """Of sayands/noisy-lms: `tokenizer` is an argument of a trainer without a recipe."""
    text = (
        "from transformers import AutoModelForSequenceClassification as A\n"
        "from trl import RewardConfig, RewardTrainer\n"
        f"model = A.from_pretrained('{QWEN}', num_labels=1)\n"
        "RewardTrainer(model=model, args=RewardConfig(max_length=128), GIVEN=t).train()\n"
    )
    said = refusal(tmp_path, "train.py", text.replace("GIVEN", "tokenizer"), capsys)
    assert "tokenizer=line 4: is an argument of RewardTrainer of trl before 0.16" in said
    assert trial_of(tmp_path, "train.py", text.replace("GIVEN", "processing_class"))["recipe"] == "reward"


PREFERENCE = """import sys
from copy import deepcopy
from dataclasses import dataclass
from transformers import AutoModelForCausalLM, HfArgumentParser
from peft import LoraConfig
from trl import DPOConfig, DPOTrainer
@dataclass
class More:
    use_peft: bool = False
args = HfArgumentParser(More).parse_args_into_dataclasses()[0]
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
peft = LoraConfig(r=8, target_modules=["q_proj"])
DPOTrainer(model, ref_model=None if args.use_peft else deepcopy(model), args=DPOConfig(max_length=512),
           peft_config=peft if args.use_peft else None).train()
"""


def test_a_reference_that_the_line_rules_out_is_none(tmp_path):
    """Of azige1/medical-qa-posttraining, whose line has `--use_peft True`."""
    (tmp_path / "dpo_training.py").write_text(PREFERENCE)
    words = ("trl=1.16", "dtype=bfloat16")
    trial = trial_of(tmp_path, "run.sh", "python dpo_training.py --use_peft True\n", *words)
    assert (trial["recipe"], trial["tuning"]) == ("dpo", "lora")


PARSED = """import argparse
from reasoning import Arguments, SFTConfig
from transformers import AutoModelForCausalLM, HfArgumentParser
from trl import SFTTrainer
def main(given):
    parsed: tuple[Arguments, SFTConfig] = HfArgumentParser((Arguments, SFTConfig)).parse_yaml_file(given.config)
    model_args, training_args = parsed
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    SFTTrainer(model=model, args=training_args, train_dataset=rows).train()
"""
CLASSES = """from dataclasses import dataclass
import trl
@dataclass
class Arguments:
    model_name_or_path: str = ""
@dataclass
class SFTConfig(trl.SFTConfig):
    run_prefix: str = ""
    gradient_checkpointing: bool = False
"""


@pytest.mark.parametrize("inside", ["from reasoning.configs import Arguments, SFTConfig", "from .configs import *"])
def test_a_package_above_a_script_is_read(tmp_path, inside):
    """Of jonathanlu31/final_project: its YAML was named in the line and asked for."""
    inside = inside.replace("*", "Arguments, SFTConfig")
    for folder in ("scripts", "recipes", "src/reasoning"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/reasoning/__init__.py").write_text(f"{inside}\n")
    (tmp_path / "src/reasoning/configs.py").write_text(CLASSES)
    (tmp_path / "scripts/run_sft.py").write_text(PARSED)
    recipe = f"model_name_or_path: {QWEN}\nper_device_train_batch_size: 3\nmax_length: 200\nrun_prefix: a\n"
    (tmp_path / "recipes/sft.yaml").write_text(recipe)
    line = 'cd "$(dirname "$0")"\npython ../scripts/run_sft.py --config sft.yaml\n'
    trial = trial_of(tmp_path / "recipes", "sft.sh", line, "trl=1.16", "dtype=bfloat16")
    found = (trial["per_device_train_batch_size"], trial["max_length"], trial["gradient_checkpointing"])
    assert found == (3, 200, False)


def test_a_path_of_another_machine_is_found_by_its_end(tmp_path):
    """Of sayands/noisy-lms: a script that is there was "not here", and its arguments counted as trl's."""
    (tmp_path / "src").mkdir()
    (tmp_path / "scripts").mkdir()
    text = f"from trl import SFTConfig, SFTTrainer\nSFTTrainer('{QWEN}', args=SFTConfig(max_length=99)).train()\n"
    (tmp_path / "src/train_sft.py").write_text(text)
    line = "ROOT=/home/someone/code/project\npython $ROOT/src/train_sft.py\n"
    assert trial_of(tmp_path / "scripts", "run.sh", line, "trl=1.16")["max_length"] == 99


BRANCHES = """if [ -n "$CONFIG" ]; then
  ARGS=(--config_file zero3.yaml --num_processes "$GPUS")
elif [ "$GPUS" -gt 1 ]; then
  ARGS=(--config_file several.yaml)
else
  ARGS=(--config_file one.yaml)
fi
ARGS+=(--main_process_port 29500)
accelerate launch "${ARGS[@]}" train_sft.py --model_name_or_path Qwen/Qwen2.5-0.5B --max_length 256
"""


def test_options_that_branches_choose_hide_no_program(tmp_path, capsys):
    """Of rubenbalbastre/grpo-llm-unlearning: a file of one branch was the program, and nothing trained."""
    said = refusal(tmp_path, "run.sh", BRANCHES, capsys)
    assert "is a file of accelerate that is not here, and it says how GPUs share memory" in said
    words = ("distributed_type=no", "num_processes=1", "trl=1.16")
    assert trial_of(tmp_path, "run.sh", BRANCHES, *words)["max_length"] == 256


def test_a_cell_whose_commands_go_on_in_a_branch_is_python(tmp_path):
    """Of yahorlahunovich/chart-prm: lines of `pip` in a branch ended it."""
    cells = [
        'if old:\n    !pip install -q \\\n        "trl==1.2.0" \\\n        "peft"\n'
        "else:\n    !pip install trl\nlength = 128",
        "from trl import SFTConfig, SFTTrainer\nargs = SFTConfig(max_length=length)\n",
        f"SFTTrainer('{QWEN}', args=args)\n",
    ]
    text = json.dumps({"cells": [{"cell_type": "code", "source": each} for each in cells]})
    assert trial_of(tmp_path, "a.ipynb", text, "trl=1.16")["max_length"] == 128
