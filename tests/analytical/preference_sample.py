"""Trials of recipes on preferences that a seed draws, and what each of them needs by its simulation.

Seeds and values were written down before any of the trials ran. `RECIPE_sampled.jsonl` has a line per trial, which
`python tests/analytical/preference_sample.py RECIPE FIRST LAST` writes.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from profiler.domain.trials.trial import TrialSpec

SEEDS: Mapping[str, int] = {"dpo": 30, "kto": 31, "reward": 32}
COUNT = 60

_AXES: Mapping[str, Sequence[object]] = {
    "model": (
        "qwen2.5-0.5b",
        "qwen2.5-1.5b",
        "qwen2.5-3b",
        "qwen2.5-7b",
        "qwen2.5-14b",
        "qwen3-0.6b",
        "qwen3-8b",
        "llama-3.2-1b",
        "llama-3.2-3b",
        "llama-3.1-8b",
        "mistral-7b",
    ),
    "gpu": ("h100-80gb", "a100-80gb", "rtx-4090-24gb", "l4-24gb"),
    "tuning": ("full", "lora", "lora", "qlora"),
    "lora_rank": (8, 16, 64),
    "lora_dropout": (0.0, 0.0, 0.05),
    "optim": ("adamw_torch_fused", "adamw_torch_fused", "adamw_8bit", "paged_adamw_8bit", "sgd"),
    "max_length": (256, 512, 1024, 2048, 4096),
    "max_prompt_length": (32, 128, 200),
    "lengths": ("ragged", "ragged", "forced"),
    "per_device_train_batch_size": (1, 2, 4, 8),
    "gradient_accumulation_steps": (1, 2, 4),
    "gradient_checkpointing": (True, True, False),
    "precompute_ref_log_probs": (False, False, True),
    "precompute_ref_batch_size": (None, 4, 16),
    "attn_implementation": ("sdpa", "sdpa", "flash_attention_2", "eager"),
    "dtype": ("bfloat16", "bfloat16", "bfloat16", "float32"),
    "steps": (1, 2, 3),
}


_OF_A_REFERENCE = ("max_prompt_length", "precompute_ref_log_probs", "precompute_ref_batch_size")


def sample(recipe: str) -> tuple[TrialSpec, ...]:
    """Return the trials of a recipe."""
    from maintenance.samples.sampling import sample_trials

    left_out = _OF_A_REFERENCE if recipe == "reward" else ()
    axes = {"recipe": (recipe,), **{key: values for key, values in _AXES.items() if key not in left_out}}
    return sample_trials(COUNT, seed=SEEDS[recipe], axes=axes, fixed={"backend": "simulated", "recipe": recipe})


def kept(recipe: str) -> tuple[dict[str, Any], ...]:
    """Return what each trial needs, in the order of the sample."""
    text = Path(__file__).with_name(f"{recipe}_sampled.jsonl").read_text()
    return tuple(json.loads(line) for line in text.splitlines())


def simulated(spec: TrialSpec) -> dict[str, Any]:
    """Return the peaks of allocated and reserved memory, and that of allocated memory in each phase, in bytes."""
    from profiler.allocator import AllocatorConfig, replay_on_card
    from profiler.domain.models.builtin_models import BUILTIN_MODELS
    from profiler.worker.simulated import simulate

    trace = simulate(spec, BUILTIN_MODELS[spec.model].config).trace
    found = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    return {
        "model": spec.model,
        "allocated": found.peak_allocated_bytes,
        "reserved": found.peak_reserved_bytes,
        "phases": {phase.value: peak.peak_allocated_bytes for phase, peak in found.phases.items()},
    }


if __name__ == "__main__":
    first, last = map(int, sys.argv[2:])
    for spec in sample(sys.argv[1])[first:last]:
        # trl prints its metrics.
        with redirect_stdout(sys.stderr):
            found = simulated(spec)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
