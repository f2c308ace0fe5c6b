"""GRPO with QLoRA as the published rows `coursia-...` describe it: nf4 with double quantisation, LoRA on seven projections.

python -m profiler.run backend=emulated gpu=rtx-3080-laptop-16gb steps=2 examples/scripts/grpo_qlora.py \
    --model Qwen/Qwen3-8B --completion 96

It was written from that description; the script of the publisher was not used. `--filled` makes completions without decoding
them, which saves minutes: tensors have the same peak, and reserved memory lacks what the growing cache leaves behind.
`--widened` makes bitsandbytes widen every 4-bit weight before a product, as its releases before 0.50 did.
"""

import argparse

import bitsandbytes.backends.cuda.ops as operators
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer

arguments = argparse.ArgumentParser()
arguments.add_argument("--model", required=True)
arguments.add_argument("--completion", type=int, required=True)
arguments.add_argument("--generations", type=int, default=8)
arguments.add_argument("--filled", action="store_true")
arguments.add_argument("--widened", action="store_true", help="widen every 4-bit weight, as bitsandbytes before 0.50")
chosen = arguments.parse_args()

if chosen.widened:
    operators._gemm_4bit_custom_max_m = 0

quantization = BitsAndBytesConfig(
    load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=torch.bfloat16
)
model = AutoModelForCausalLM.from_pretrained(
    chosen.model, quantization_config=quantization, dtype=torch.bfloat16, device_map={"": 0}
)
tokenizer = AutoTokenizer.from_pretrained(chosen.model)
rows = Dataset.from_dict({"prompt": ["one two three four five six seven eight nine ten eleven"] * 256})
settings = GRPOConfig(
    output_dir="trainer_output",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    num_generations=chosen.generations,
    max_completion_length=chosen.completion,
    beta=0.0,
    gradient_checkpointing=True,
    bf16=True,
    max_steps=3,
    save_strategy="no",
    report_to="none",
)
adapters = LoraConfig(
    r=8,
    lora_alpha=16,
    lora_dropout=0.05,
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    task_type="CAUSAL_LM",
)
trainer = GRPOTrainer(
    model=model,
    processing_class=tokenizer,
    reward_funcs=lambda completions, **_: [float(len(each)) for each in completions],
    args=settings,
    train_dataset=rows,
    peft_config=adapters,
)


def filled(self, *_, **inputs):
    """Return prompts with completions of the full length."""
    prompts = inputs["input_ids"]
    completions = torch.full((len(prompts), chosen.completion), 7, device=prompts.device)
    return torch.cat([prompts, completions], dim=1)


if chosen.filled:
    PeftModelForCausalLM.generate = filled
trainer.train()
