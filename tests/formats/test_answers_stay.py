"""What was answered before a format was added is answered with the same bytes.

`answered.json` has the hash of the answer to each public recipe of `tests/estimate/public_recipes.json`, alone and with
keys, and to each script here. `ANSWERS_KEPT=new python -m pytest tests/formats/test_answers_stay.py` writes it again.
"""

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from profiler.domain.errors import EXIT_OK, Fault, UsageError
from profiler.estimate.main import main

HERE = Path(__file__).parent
KEPT = HERE / "answered.json"
RECIPES: list[dict[str, Any]] = json.loads((HERE.parent / "estimate" / "public_recipes.json").read_text())

SCRIPTS = {
    "literals": """
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"
ROWS = 2 * 4

def main():
    bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True)
    model = AutoModelForCausalLM.from_pretrained(MODEL, torch_dtype=torch.bfloat16, quantization_config=bnb)
    args = GRPOConfig(
        output_dir=f"out/{MODEL}",
        per_device_train_batch_size=ROWS,
        gradient_accumulation_steps=GRADIENTS,
        fp16=is_old(),
    )
    lora = LoraConfig(r=64, target_modules=["q_proj", "k_proj"], task_type="CAUSAL_LM")
    GRPOTrainer(model=model, reward_funcs=[good, "Qwen/Qwen2.5-0.5B"], args=args, peft_config=lora).train()

if large:
    GRADIENTS = 4
""",
    "outside": """
import argparse, os
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--model-name", default="Qwen/Qwen2.5-1.5B-Instruct")
parser.add_argument("-r", "--rows", type=int, default="8")
parser.add_argument("--beta", type=float, required=True)
options = parser.parse_args()
args = GRPOConfig(
    per_device_train_batch_size=options.rows,
    num_generations=int(os.environ.get("GENERATIONS", "8")),
    beta=options.beta,
)
GRPOTrainer(model=options.model_name, reward_funcs=[good], args=args)
""",
    "sft": """
from trl import SFTConfig, SFTTrainer

args = dict(per_device_train_batch_size=4, max_length=2048)
SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=SFTConfig(**args, **others, bf16=True))
""",
}


def _no_hub(model: str) -> Mapping[str, object]:
    raise UsageError([Fault(key="model", found=model, problem="the hub cannot be reached")])


def _answer(*words: str) -> str:
    """Return the hash of what the command prints; of an answer alone."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words, load_model=_no_hub)
    text = out.getvalue() + err.getvalue() if code == EXIT_OK else "refused"
    return hashlib.sha256(text.encode()).hexdigest()[:16] if code == EXIT_OK else text


def _answers() -> dict[str, str]:
    """Return the hash of each answer; the files are in the working directory, so that no sentence names another."""
    found = {}
    for number, recipe in enumerate(RECIPES):
        Path("recipe.yaml").write_text(yaml.safe_dump(recipe["keys"]))
        for words in ((), ("num_processes=8", "format=json"), ("gpu=any",)):
            found[" ".join([str(number), recipe["repository"], *words])] = _answer("config=recipe.yaml", *words)
    for name, text in SCRIPTS.items():
        Path("train.py").write_text(text)
        for words in (("trl=1.16",), ("format=json",)):
            found[f"{name} {words[0]}"] = _answer("config=train.py", *words)
    return found


@pytest.mark.slow
def test_every_answer_is_equal_to_the_byte(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = _answers()
    if os.environ.get("ANSWERS_KEPT") == "new":
        KEPT.write_text(json.dumps(found, indent=1) + "\n")
    kept = json.loads(KEPT.read_text())
    assert sum(text != "refused" for text in kept.values()) >= 60
    assert {name: found.get(name) for name, text in kept.items() if text != "refused"} == {
        name: text for name, text in kept.items() if text != "refused"
    }
