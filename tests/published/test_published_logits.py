"""Rows that others measured with earlier releases of trl are met by the closed form of their logits.

The rows have completions of a known length and no reference model. That trl is 1.0 to 1.9 in those that do not
name it was found by their emulation (docs/evidence.md).
"""

import pytest

from profiler.analytical import estimate
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.trials.trial import Logprobs
from profiler.storage.foreign.published import read_published

_QLORA = {
    "backend": "simulated",
    "gpu": "rtx-3080-laptop-16gb",
    "tuning": "qlora",
    "lora_rank": 8,
    "lora_alpha": 16,
    "lora_dropout": 0.05,
    "lora_target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": True,
    "lengths": "forced",
    "max_prompt_length": 11,
}
"""The script of the rows (examples/scripts/grpo_qlora.py)."""


@pytest.mark.parametrize(
    ("row", "model", "group", "tokens", "logprobs"),
    [
        ("1.7b-96", "qwen3-1.7b", 8, 96, Logprobs.SELECTIVE_KEPT),
        ("8b-96", "qwen3-8b", 8, 96, Logprobs.SELECTIVE_KEPT),
        ("8b-g16-96", "qwen3-8b", 16, 96, Logprobs.SELECTIVE_IN_PLACE),
        ("8b-160", "qwen3-8b", 8, 160, Logprobs.SELECTIVE_IN_PLACE),
        ("8b-224", "qwen3-8b", 8, 224, Logprobs.SELECTIVE_IN_PLACE),
        ("8b-288", "qwen3-8b", 8, 288, Logprobs.SELECTIVE_IN_PLACE),
    ],
)
def test_measured_tensors_are_met(row, model, group, tokens, logprobs):
    (figure,) = [each for each in read_published() if each.id == f"coursia-qlora-{row}-allocated"]
    assert figure.value is not None
    measured = figure.value * 2**30

    def peak(way):
        keys = {"model": model, "num_generations": group, "max_completion_length": tokens, "logprobs": way.value}
        spec = parse_point({**_QLORA, **keys}, architecture_of=builtin_architecture)
        return estimate(spec, builtin_architecture(model)).peak_allocated_bytes

    assert peak(logprobs) == pytest.approx(measured, rel=0.003)
    assert peak(Logprobs.FULL) < 0.95 * measured
