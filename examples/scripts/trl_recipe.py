"""Train a model by one of trl's trainers with its defaults: the job whose memory is compared between releases.

python -m profiler.run backend=emulated steps=2 examples/scripts/trl_recipe.py --trainer grpo --lora

trl_recipe.yaml sets what makes the job and nothing else, so that a changed default shows. Rows have 512 tokens, where one
word is one token, and completions are made without decoding them.
"""

import argparse
from pathlib import Path

import torch
import trl
import yaml
from datasets import Dataset
from peft import LoraConfig
from transformers import BitsAndBytesConfig, GenerationMixin

settings = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
arguments = argparse.ArgumentParser()
arguments.add_argument("--trainer", choices=["sft", "dpo", "grpo"], required=True)
arguments.add_argument("--lora", action="store_true", help="peft's default LoRA in place of all weights")
arguments.add_argument("--qlora", action="store_true", help="the same over weights in 4 bits")
arguments.add_argument("--vllm", action="store_true", help="GRPO's completions are made by vLLM on the same GPU")
arguments.add_argument("--model", default=settings.pop("model_name_or_path"), help="in place of trl_recipe.yaml's")
chosen = arguments.parse_args()

TOKENS = 512
TEXT = " ".join(["one two three four"] * (TOKENS // 4))
settings["output_dir"] = "trainer_output"
job = dict(model=chosen.model, peft_config=LoraConfig(task_type="CAUSAL_LM") if chosen.lora or chosen.qlora else None)
if chosen.qlora:
    settings["model_init_kwargs"] = {"quantization_config": BitsAndBytesConfig(load_in_4bit=True)}


def filled(self, input_ids=None, **_):
    """Return prompts with completions of the full length."""
    completions = torch.full((len(input_ids), TOKENS), 7, device=input_ids.device)
    return torch.cat([input_ids, completions], dim=1)


def rows(**columns):
    """Return 64 equal rows."""
    return Dataset.from_dict({name: [text] * 64 for name, text in columns.items()})


if chosen.trainer == "sft":
    trainer = trl.SFTTrainer(args=trl.SFTConfig(**settings), train_dataset=rows(text=TEXT), **job)
elif chosen.trainer == "dpo":
    pairs = rows(prompt="one two", chosen=TEXT, rejected=TEXT)
    trainer = trl.DPOTrainer(args=trl.DPOConfig(**settings), train_dataset=pairs, **job)
else:
    GenerationMixin.generate = filled
    if chosen.vllm:
        settings |= {"use_vllm": True, "vllm_mode": "colocate"}
    trainer = trl.GRPOTrainer(
        args=trl.GRPOConfig(num_generations=4, max_completion_length=TOKENS, **settings),
        train_dataset=rows(prompt="one two three four"),
        reward_funcs=lambda completions, **_: [float(len(each)) for each in completions],
        **job,
    )
trainer.train()
