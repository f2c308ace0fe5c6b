"""A script whose text does not show that it cannot notice the layers of its model runs with all of them."""

from pathlib import Path

import pytest

from profiler.scripts.plain_scripts import reason_to_run_whole

PLAIN = """
import argparse
import os
import re

import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

os.environ["WANDB_DISABLED"] = "true"
PATTERN = re.compile(r"<answer>.*</answer>")


class Format:
    def __call__(self, completions, **kwargs):
        return [1.0 if PATTERN.search(text) else 0.0 for text in completions]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="Qwen/Qwen2.5-7B")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(options.model, torch_dtype=torch.bfloat16)
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    model = get_peft_model(model, LoraConfig(r=16))
    data = load_dataset("openai/gsm8k", "main", split="train").map(lambda row: {"prompt": row["question"]})
    print(len(data), torch.cuda.is_available())
    trainer = GRPOTrainer(model=model, reward_funcs=[Format()], args=GRPOConfig(output_dir="out"), train_dataset=data,
                          processing_class=tokenizer)
    trainer.train()
    trainer.save_model("out")


if __name__ == "__main__":
    main()
"""
AFTER_LOADING = "    model.gradient_checkpointing_enable()\n"
PLANTED = {
    "reads the depth": "    print(model.config.num_hidden_layers)\n",
    "takes one layer": "    model.model.layers[10].requires_grad_(False)\n",
    "freezes some layers": "    for name, weight in model.named_parameters():\n        weight.data = name\n",
    "registers a hook": "    model.register_forward_hook(print)\n",
    "shows the model": "    print(model)\n",
    "formats the model": "    print(f'{model}')\n",
    "keeps the model elsewhere": "    kept = [model]\n",
    "gives the model another name": "    other = model\n",
    "hands the model on": "    Format().model = model\n",
    "unpacks the model": "    model, _ = prepared()\n",
    "walks over the model": "    model: object = AutoModelForCausalLM.from_pretrained('a')\n",
    "changes its configuration": "    model.config.num_hidden_layers = 4\n",
    "shortens the layers": "    model.model.layers = model.model.layers[:10]\n",
    "loads without a name": "    print(AutoModelForCausalLM.from_pretrained('a').num_parameters())\n",
    "replaces a method of trl": "    GRPOTrainer.compute_loss = print\n",
    "names a class of trl anew": "    Trainer = GRPOTrainer\n",
    "derives from a trainer": "    class Mine(GRPOTrainer):\n        pass\n",
    "reads the memory of the card": "    print(torch.cuda.max_memory_allocated())\n",
    "wraps the model": "    model = torch.nn.DataParallel(model)\n",
    "imports another library": "    import deepspeed\n",
    "imports a file of its own": "    from .rewards import reward\n",
    "imports all names": "    from trl import *\n",
    "imports a module through another": "    from logging import sys\n",
    "reaches a module through another": "    print(argparse._sys.modules)\n",
    "reaches a module without a mark": "    print(re.enum.sys)\n",
    "replaces a function of os": "    os.getenv = print\n",
    "runs a text": "    exec('print(model)')\n",
    "asks for a name": "    print(getattr(model, 'config'))\n",
    "looks at names": "    print(globals()['trainer'])\n",
    "writes a file": "    open('a', 'w').write('a')\n",
    "writes its rows": "    Dataset.from_list([]).to_json('a')\n",
    "runs a command": "    os.system('nvidia-smi')\n",
    "removes a name": "    del model\n",
    "matches a value": "    match options:\n        case str() as found:\n            print(found)\n",
    "uses an imported name anew": "    torch = None\n",
}


def reason(folder: Path, text: str) -> str:
    script = folder / "train.py"
    script.write_text(text)
    return reason_to_run_whole(script)


def test_a_plain_script_has_no_reason(tmp_path: Path) -> None:
    assert reason(tmp_path, PLAIN) == ""


@pytest.mark.parametrize("what", PLANTED)
def test_a_script_that_may_notice_layers_has_one(what: str, tmp_path: Path) -> None:
    line = 1 + PLAIN[: PLAIN.index(AFTER_LOADING) + len(AFTER_LOADING)].count("\n")
    found = reason(tmp_path, PLAIN.replace(AFTER_LOADING, AFTER_LOADING + PLANTED[what]))
    assert found.startswith((f"line {line} ", f"line {line + 1} ", "line 10 ")), found


@pytest.mark.parametrize(
    "argument",
    ["callbacks=[Format()]", "optimizers=(None, None)", "**options", "rollout_func=print", "compute_metrics=print"],
)
def test_an_argument_that_gets_the_model_is_a_reason(argument: str, tmp_path: Path) -> None:
    assert "gives" in reason(tmp_path, PLAIN.replace("processing_class=tokenizer", argument))


@pytest.mark.parametrize(
    "use", ["print(trainer.model)", "result = trainer.train()", "print(trainer.train())", "x = [trainer]"]
)
def test_another_use_of_the_trainer_is_a_reason(use: str, tmp_path: Path) -> None:
    found = reason(tmp_path, PLAIN.replace("trainer.train()", use))
    assert "the trainer `trainer`" in found


def test_a_module_next_to_a_script_hides_a_library(tmp_path: Path) -> None:
    (tmp_path / "datasets.py").touch()
    assert reason(tmp_path, PLAIN) == "datasets is a module next to it"


def test_a_text_that_is_no_program_is_a_reason(tmp_path: Path) -> None:
    assert reason(tmp_path, "print(") == "its text cannot be read"
    assert reason_to_run_whole(tmp_path / "absent.py") == "its text cannot be read"
