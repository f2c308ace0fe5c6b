"""Seams of peft."""

from profiler.seams.expectations import Equals, Parameters
from profiler.seams.seam import Seam

PEFT: tuple[Seam, ...] = (
    Seam(
        owner="peft.peft_model:PeftModel",
        name="get_base_model",
        expected=Parameters("self"),
        used_by=("training/recipes/grpo/trainer.py",),
        why="returns the transformers model, whose `generate` is replaced",
        since="0.18",
    ),
    Seam(
        owner="peft.tuners.lora.model:LoraModel",
        name="prefix",
        expected=Equals("lora_"),
        used_by=("simulation/tracing/attribution.py", "training/models/sizes.py"),
        why="parameters with it in their name are adapters",
        since="0.18",
    ),
)
