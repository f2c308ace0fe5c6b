"""Train a model by GRPO with a vLLM server on another card: the trainer that grpo_server.sh starts.

One word is one token here, so that prompts have 256 tokens. Completions have the maximum length: no token ends one.
"""

import argparse

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

arguments = argparse.ArgumentParser()
arguments.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
arguments.add_argument("--port", type=int, default=8000, help="port of the server")
arguments.add_argument("--steps", type=int, default=2)
chosen = arguments.parse_args()


def length(completions, **_):
    """Reward long completions."""
    return [float(len(completion)) for completion in completions]


trainer = GRPOTrainer(
    model=chosen.model,
    reward_funcs=length,
    args=GRPOConfig(
        output_dir="trainer_output",
        use_vllm=True,
        vllm_mode="server",
        vllm_server_port=chosen.port,
        vllm_server_timeout=600,
        per_device_train_batch_size=8,
        num_generations=8,
        max_completion_length=256,
        max_steps=chosen.steps,
        save_strategy="no",
        report_to="none",
    ),
    train_dataset=Dataset.from_dict({"prompt": [" ".join(["word"] * 256)] * 64}),
)
trainer.train()
