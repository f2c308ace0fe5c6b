"""Train a model by trl's AsyncGRPO, which generates on a vLLM server while it trains: another trainer for grpo_server.sh.

TRAINER=async_grpo_server.py python -m profiler.run gpus=2xh100-80gb python=PYTHON bash examples/scripts/grpo_server.sh
"""

import argparse

from datasets import Dataset
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

arguments = argparse.ArgumentParser()
arguments.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
arguments.add_argument("--port", type=int, default=8000, help="port of the server")
arguments.add_argument("--steps", type=int, default=2)
chosen = arguments.parse_args()


def length(completions, **_):
    """Reward long completions."""
    return [float(len(completion)) for completion in completions]


if __name__ == "__main__":  # the process that generates imports this file
    trainer = AsyncGRPOTrainer(
        model=chosen.model,
        reward_funcs=length,
        args=AsyncGRPOConfig(
            output_dir="trainer_output",
            vllm_server_base_url=f"http://localhost:{chosen.port}",
            vllm_server_timeout=600,
            per_device_train_batch_size=8,
            num_generations=8,
            max_completion_length=256,
            max_steps=chosen.steps,
            save_strategy="no",
            report_to="none",
        ),
        train_dataset=Dataset.from_dict({"prompt": [[{"role": "user", "content": " ".join(["word"] * 256)}]] * 64}),
    )
    trainer.train()
