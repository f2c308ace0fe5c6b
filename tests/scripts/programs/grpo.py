"""A script with trl's GRPOTrainer on the CPU, with a reference model."""

import sys

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

trainer = GRPOTrainer(
    model="tiny",
    reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
    args=GRPOConfig(
        output_dir=sys.argv[1],
        use_cpu=True,
        bf16=False,
        beta=0.1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=4,
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_dict({"prompt": ["one two three"] * 32}),
)
trainer.train()
