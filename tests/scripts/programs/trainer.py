"""A script with transformers' Trainer on the CPU: evaluation and a checkpoint after the second step."""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16)]
trainer = Trainer(
    model=LlamaForCausalLM(config),
    args=TrainingArguments(
        output_dir=sys.argv[1],
        use_cpu=True,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=rows,
    eval_dataset=rows[:4],
)
trainer.train()
