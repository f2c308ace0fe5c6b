"""Constructs of public scripts and files that were read for the first time: what a trainer gets of what is made."""

import json

import pytest
import yaml
from rebuilt import facts_of, read

from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.estimate.main import main


def refusal(folder, name, text, capsys, *words):
    assert main(list(read(folder, name, text, *words))) == EXIT_USAGE
    return capsys.readouterr().err


SCRIPT = """import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TrainingArguments
from trl import SFTConfig, SFTTrainer
LOAD
adapter = LoraConfig(r=8, target_modules="all-linear")
MADE
"""
LOAD = 'model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype=torch.bfloat16)'
ARGS = "SFTConfig(max_length=512, per_device_train_batch_size=2)"


def script(made):
    return SCRIPT.replace("LOAD", LOAD).replace("MADE", made.replace("ARGS", ARGS))


@pytest.mark.parametrize(
    ("made", "tuning"),
    [
        ("SFTTrainer(model=model, args=ARGS).train()", "full"),
        ("print(adapter)\nSFTTrainer(model=model, args=ARGS).train()", "full"),
        ("SFTTrainer(model=model, args=ARGS, peft_config=adapter).train()", "lora"),
        ("SFTTrainer(model=get_peft_model(model, adapter), args=ARGS).train()", "lora"),
        ("more = dict(peft_config=adapter)\nSFTTrainer(model=model, args=ARGS, **more).train()", "lora"),
        (
            "name = 'a/b-7B'\nif '14B' in name:\n    SFTTrainer(model=model, args=ARGS, peft_config=adapter).train()\n"
            "else:\n    SFTTrainer(model=model, args=ARGS).train()",
            "full",
        ),
    ],
)
def test_an_adapter_counts_where_a_trainer_gets_it(tmp_path, made, tuning):
    """Of Liar-Mask/FedGRPO: the adapter is for models of 14B, and 7B was answered with it."""
    found = facts_of(read(tmp_path, "train.py", script(made), "trl=1.16"))
    assert found["trial"]["tuning"] == tuning
    assert any("no trainer gets the adapter of line 6" in each for each in found["notes"]) is (tuning == "full")


def test_an_adapter_of_one_of_two_trainers_is_asked_for(tmp_path, capsys):
    made = (
        "if is_large():\n    trainer = SFTTrainer(model=model, args=ARGS, peft_config=adapter)\n"
        "else:\n    trainer = SFTTrainer(model=model, args=ARGS)\ntrainer.train()"
    )
    said_so = refusal(tmp_path, "train.py", script(made), capsys)
    assert "that one trainer gets (line 8 of train.py) and another one does not (line 10 of train.py)" in said_so
    words = read(tmp_path, "train.py", script(made), "trl=1.16", "tuning=full")
    assert facts_of(words)["trial"]["tuning"] == "full"


PLAIN = "TrainingArguments(output_dir='out', per_device_train_batch_size=2HOW)"
PARSED = """from transformers import HfArgumentParser
(given,) = HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()
"""


@pytest.mark.parametrize(
    ("made", "is_off"),
    [
        (f"given = {PLAIN.replace('HOW', '')}\nSFTTrainer(model=model, args=given).train()", True),
        (f"SFTTrainer(model, {PLAIN.replace('HOW', '')}).train()", True),
        (f"{PARSED}SFTTrainer(model=model, args=given).train()", True),
        (
            PLAIN.replace("HOW", ", gradient_checkpointing=True, bf16=True").join(("SFTTrainer(model, ", ").train()")),
            False,
        ),
        (
            f"model.gradient_checkpointing_enable()\nSFTTrainer(model, {PLAIN.replace('HOW', ', bf16=True')}).train()",
            False,
        ),
        ("SFTTrainer(model=model, args=ARGS).train()", False),
    ],
)
def test_arguments_of_transformers_leave_off_what_trl_has_on(tmp_path, made, is_off):
    """trl makes its own arguments of all that they say: without layers computed again, 0.5B needs 16.5 GiB, not 4.9."""
    words = read(tmp_path, "train.py", script(made), "trl=1.16", "max_length=512", "per_device_train_batch_size=2")
    found = facts_of(words)
    trial, notes = found["trial"], " ".join(found["notes"])
    assert trial["gradient_checkpointing"] is trial["bf16"] is not is_off
    assert ("gradient_checkpointing=false (of TrainingArguments, which line" in notes) is is_off


BITS = "bits = BitsAndBytesConfig(HOW)\nmodel = AutoModelForCausalLM.from_pretrained(NAME, quantization_config=bits"
TRAINS = "\nSFTTrainer(model=model, args=ARGS, peft_config=adapter).train()"


@pytest.mark.parametrize("how", ["**settings['bits']", "load_in_4bit=settings['bits'] == 4", "**of(settings), x=1"])
def test_weights_that_may_be_quantised_are_asked_for(tmp_path, capsys, how):
    """Of esmaeil-mirvakili: 4 bits by a section of a file were answered as weights in float32."""
    bits = BITS.replace("HOW", how).replace("NAME", "'Qwen/Qwen2.5-0.5B'")
    made = f"{bits}, torch_dtype=torch.bfloat16){TRAINS}"
    text = script(made).replace(LOAD, "settings = load()")
    said_so = refusal(tmp_path, "train.py", text, capsys)
    assert "is that of weights which are quantised by what is not in the file (line 7 of train.py)" in said_so
    words = read(tmp_path, "train.py", text, "trl=1.16", "tuning=qlora")
    assert facts_of(words)["trial"]["tuning"] == "qlora"
    known = text.replace(how, "load_in_4bit=True")
    assert facts_of(read(tmp_path, "train.py", known, "trl=1.16"))["trial"]["tuning"] == "qlora"


def test_weights_of_other_models_do_not_quantise_the_trained_one(tmp_path):
    """Of MaxiRuess/reasoning-distillation-grpo: an evaluation loads in 4 bits, and the trained model did so too."""
    judge = (
        "def judge(path, small):\n    bits = BitsAndBytesConfig(load_in_4bit=True) if small else None\n"
        "    return AutoModelForCausalLM.from_pretrained(path, quantization_config=bits)\n"
    )
    text = script(f"{judge}{TRAINS}\njudge('out', True)")
    found = facts_of(read(tmp_path, "train.py", text, "trl=1.16"))
    assert found["trial"]["tuning"] == "lora"
    assert not any("quantised weights" in each for each in found["notes"])


GRPO = """from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
from parts.own import OwnTrainer
args = GRPOConfig(per_device_train_batch_size=4, num_generations=4, max_completion_length=256)
TRAINER(model="Qwen/Qwen2.5-0.5B", args=args, reward_funcs=[good]).train()
"""
OWN_TRAINER = """from trl import GRPOTrainer
class OwnTrainer(GRPOTrainer):
    def __init__(self, args, groups, **rest):
        args.num_generations = args.num_generations * groups
        super().__init__(args=args, **rest)
"""


def test_a_size_that_is_changed_is_asked_for(tmp_path, capsys):
    """Of Liar-Mask/FedGRPO: 5 completions per prompt were answered as trl's 8, by a class that was not used."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "own.py").write_text(OWN_TRAINER)
    unused = facts_of(read(tmp_path, "train.py", GRPO.replace("TRAINER", "GRPOTrainer"), "trl=1.16"))
    assert unused["trial"]["num_generations"] == 4
    said_so = refusal(tmp_path, "train.py", GRPO.replace("TRAINER", "OwnTrainer"), capsys)
    assert "num_generations=4: is set to what is not in the file (line 4 of parts/own.py)" in said_so
    words = read(tmp_path, "train.py", GRPO.replace("TRAINER", "OwnTrainer"), "trl=1.16", "num_generations=2")
    assert facts_of(words)["trial"]["num_generations"] == 2


DPO = """from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer
def load():
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", torch_dtype="bfloat16")
    return model, OTHER
def trains(policy, ref):
    args = DPOConfig(max_length=512, per_device_train_batch_size=2)
    DPOTrainer(model=policy, ref_model=ref, args=args, peft_config=LoraConfig(r=8)).train()
model, other = load()
trains(model, other)
"""


def test_a_reference_that_is_nothing_is_none(tmp_path, capsys):
    """Of esmaeil-mirvakili: `return policy, None` was refused as a second model."""
    words = read(tmp_path, "train.py", DPO.replace("OTHER", "None"), "trl=1.16")
    assert facts_of(words)["trial"]["tuning"] == "lora"
    said_so = refusal(tmp_path, "train.py", DPO.replace("OTHER", "copy_of(model)"), capsys, "trl=1.16")
    assert "ref_model=line 9 of train.py: is a second model" in said_so


def test_arguments_without_a_trainer_leave_the_adapter_open(tmp_path, capsys):
    """Of gbangban/ai-ideology-study: arguments in a module of their own were answered as full fine-tuning."""
    text = "from trl import GRPOConfig\ndef made():\n    return GRPOConfig(per_device_train_batch_size=4)\n"
    assert main(list(read(tmp_path, "args.py", text, "model=qwen2.5-0.5b"))) == EXIT_OK
    assert "take them from elsewhere: tuning" in capsys.readouterr().err
    words = read(tmp_path, "args.py", text, "trl=1.16", "model=qwen2.5-0.5b", "tuning=full")
    assert facts_of(words)["trial"]["tuning"] == "full"


OWN = {
    "model": {"name_or_path": "Qwen/Qwen2.5-0.5B", "torch_dtype": "bfloat16"},
    "train": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "max_length": 512},
}


@pytest.mark.parametrize(
    ("said", "recipe"),
    [
        ({"stage": "rm"}, "reward"),
        ({"task": "reward-modeling"}, "reward"),
        ({"run": {"training_type": "DPO"}}, "dpo"),
        ({"objective": "kto"}, "kto"),
        ({"algorithm": "ipo"}, "dpo"),
        ({"method": "DPOTrainer"}, "dpo"),
        ({"train": {**OWN["train"], "mode": "sft"}}, "sft"),
        ({"reward": {"method": "dpo"}}, "sft"),
        ({"data": {"task": "dpo"}}, "sft"),
    ],
)
def test_a_file_of_a_user_says_its_trainer(tmp_path, said, recipe):
    """Of Ghazaleh-Ramezani/prefopt-repro: a reward model (`stage: rm`) was answered as SFT."""
    text = yaml.safe_dump({**OWN, **said})
    assert facts_of(read(tmp_path, "job.yaml", text, "trl=1.16"))["trial"]["recipe"] == recipe


FLAT = {"model_name_or_path": "Qwen/Qwen2.5-0.5B", "per_device_train_batch_size": 4, "max_length": 512, "seed": 1}


@pytest.mark.parametrize(("said", "recipe"), [({}, "sft"), ({"stage": "rm"}, "reward"), ({"method": "kto"}, "kto")])
def test_a_flat_file_says_its_trainer(tmp_path, said, recipe):
    words = read(tmp_path, "job.yaml", yaml.safe_dump({**FLAT, **said}), "trl=1.16")
    assert facts_of(words)["trial"]["recipe"] == recipe


@pytest.mark.parametrize("key", ["stage", "objective", "recipe"])
def test_a_trainer_without_a_recipe_is_refused(tmp_path, capsys, key):
    said_so = refusal(tmp_path, "job.yaml", yaml.safe_dump({**OWN, key: "orpo"}), capsys)
    assert "is for orpo, which has no recipe here" in said_so


LORA = {"r": 8, "target_modules": ["q_proj"]}


@pytest.mark.parametrize(
    ("more", "by"),
    [
        ({"full_ft": {"weight_decay": 0.1}, "lora": LORA}, "full_ft.weight_decay"),
        ({"tuning": {"method": "full-finetuning"}, "lora": LORA}, "tuning.method"),
        ({"run": {"full_finetune": True}, "lora": LORA}, "run.full_finetune"),
        ({"run": {"full_finetune": False}, "lora": LORA}, ""),
        ({"run": {"fullscreen": True}, "lora": LORA}, ""),
        ({"full_ft": {"weight_decay": 0.1}}, ""),
    ],
)
def test_a_file_with_both_tunings_is_asked(tmp_path, capsys, more, by):
    """Of MaxIv25: sections of full fine-tuning and of an adapter were answered as the adapter."""
    text = yaml.safe_dump({**OWN, **more})
    if by:
        said_so = refusal(tmp_path, "job.yaml", text, capsys)
        assert f"tuning=null: is full by {by} and an adapter by other keys in job.yaml" in said_so
    words = read(tmp_path, "job.yaml", text, "trl=1.16", *(["tuning=full"] if by else []))
    assert facts_of(words)["trial"]["tuning"] == ("full" if by or "lora" not in more else "lora")


def test_sizes_that_a_file_leaves_to_its_script_are_named(tmp_path, capsys):
    """Of Ghazaleh-Ramezani/prefopt-repro: the shared part of several files was answered with 8 rows in silence."""
    train = {"gradient_accumulation_steps": 2, "max_length": 512}
    words = read(tmp_path, "job.yaml", yaml.safe_dump({**OWN, "train": train}), "trl=1.16")
    main(list(words))
    asked = "Assumed, because the files take them from elsewhere: per_device_train_batch_size."
    assert asked in capsys.readouterr().err
    main(list(read(tmp_path, "job.yaml", yaml.safe_dump(OWN), "trl=1.16")))
    assert "take them from elsewhere" not in capsys.readouterr().err


def test_unsloth_of_a_users_own_file_is_named(tmp_path):
    text = yaml.safe_dump({**OWN, "model": {**OWN["model"], "use_unsloth": True}})
    assert any(
        "Unsloth (model.use_unsloth of job.yaml)" in each
        for each in facts_of(read(tmp_path, "job.yaml", text))["notes"]
    )


def test_a_notebook_counts_the_same_adapter(tmp_path):
    cells = [{"cell_type": "code", "source": script("SFTTrainer(model=model, args=ARGS).train()"), "metadata": {}}]
    notebook = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    assert facts_of(read(tmp_path, "train.ipynb", notebook, "trl=1.16"))["trial"]["tuning"] == "full"


PACKAGED = """import argparse
from pack.sizes import ROWS
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--length", type=int)
given = parser.parse_args()
args = SFTConfig(per_device_train_batch_size=ROWS, max_length=given.length, gradient_checkpointing=True)
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=args).train()
"""


def test_a_module_in_the_folder_of_sources_is_read(tmp_path):
    """Of linnhuang: `python -m` of a package in src/ was answered by trl's defaults, and did not fit."""
    folder = tmp_path / "src" / "pack"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(PACKAGED)
    (folder / "sizes.py").write_text("ROWS = 3\n")
    found = facts_of(read(tmp_path, "run.sh", "python -m pack.train --length 640\n", "trl=1.16"))
    trial = found["trial"]
    assert (trial["per_device_train_batch_size"], trial["max_length"], trial["gradient_checkpointing"]) == (
        3,
        640,
        True,
    )
    assert not any("is not here" in each for each in found["notes"])


SET = (
    "args = SFTConfig(output_dir='out', per_device_train_batch_size=2MORE)\n"
    "SETS\nSFTTrainer(model=model, args=args).train()"
)


@pytest.mark.parametrize(
    ("more", "sets"),
    [
        ("", "args.max_length = 256\nargs.max_seq_length = 4096"),
        ("", "args.max_seq_length = 4096\nargs.max_length = 256"),
        (", max_length=256", "args.max_seq_length = 4096"),
    ],
)
def test_the_older_name_of_a_length_set_later_is_without_effect(tmp_path, more, sets):
    """Of Lyken17/threadweaver: `SFTConfig` copies `max_seq_length` when it is made, if at all."""
    text = script(SET.replace("MORE", more).replace("SETS", sets))
    assert facts_of(read(tmp_path, "train.py", text))["trial"]["max_length"] == 256


def test_a_length_that_only_its_older_name_sets_is_asked_for(tmp_path, capsys):
    text = script(SET.replace("MORE", "").replace("SETS", "args.max_seq_length = 4096"))
    said = refusal(tmp_path, "train.py", text, capsys)
    assert "is set after the arguments are made (line 8 of train.py), which trl 0.14 and 0.15 alone take" in said
    assert facts_of(read(tmp_path, "train.py", text, "max_length=512"))["trial"]["max_length"] == 512


def test_the_older_name_of_a_length_counts_where_it_is_made(tmp_path):
    text = script(SET.replace("MORE", ", max_seq_length=512").replace("SETS", ""))
    assert facts_of(read(tmp_path, "train.py", text))["trial"]["max_length"] == 512


@pytest.mark.parametrize("name", ["SFT", "DPO"])
def test_a_model_that_scores_rows_is_of_reward_models_alone(tmp_path, capsys, name):
    """Of HKUSTDial/EllieSQL: a classifier by DPO had logits of the whole vocabulary."""
    text = (
        f"from transformers import AutoModelForSequenceClassification\nfrom trl import {name}Config, {name}Trainer\n"
        'model = AutoModelForSequenceClassification.from_pretrained("Qwen/Qwen2.5-0.5B", num_labels=3)\n'
        f"{name}Trainer(model=model, args={name}Config(max_length=512, per_device_train_batch_size=2)).train()\n"
    )
    said = refusal(tmp_path, "train.py", text, capsys, "trl=1.16")
    assert "line 3 of train.py: trains a model that scores rows, and recipe=reward alone has a formula" in said
