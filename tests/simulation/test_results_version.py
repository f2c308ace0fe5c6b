"""Kept results of simulated trials: a change of them requires a new `SIMULATION_RESULTS_VERSION`."""

import pytest
from simulating import FOUR_MICRO_BATCHES, LORA, small_spec

from profiler.config.trials.identity import SIMULATION_RESULTS_VERSION
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Attention, Logprobs, Rollout, Tuning
from profiler.worker.simulated import run_simulated

CASES = {
    "full": {"gradient_checkpointing": False},
    "full + checkpointing": {},
    "LoRA": {"tuning": Tuning.LORA, **LORA},
    "QLoRA": {"tuning": Tuning.QLORA, **LORA},
    "8-bit": {"optim": Optimizer.ADAMW_8BIT, "beta": 0.04},
    "full log-probabilities": {"logprobs": Logprobs.FULL, "attn_implementation": Attention.EAGER},
    "sliced": {"logprobs": Logprobs.SLICED, "rollout": Rollout.SYNTHETIC},
    "flash attention": {"attn_implementation": Attention.FLASH_ATTENTION_2, "gpu": "a100-40gb"},
}

FOUND = (
    2,
    {
        "full": (71512576, 90177536),
        "full + checkpointing": (71070720, 90177536),
        "LoRA": (70560768, 90177536),
        "QLoRA": (70370304, 90177536),
        "8-bit": (71323136, 90177536),
        "full log-probabilities": (68524544, 69206016),
        "sliced": (69357056, 71303168),
        "flash attention": (20999680, 44040192),
    },
)
"""The version, and of each case the peaks of allocated and reserved memory in bytes."""


@pytest.mark.slow
def test_changed_results_have_a_new_version():
    found = {}
    for name, keys in CASES.items():
        spec = small_spec(**FOUR_MICRO_BATCHES, **keys)
        outcome = run_simulated(spec, BUILTIN_MODELS[spec.model].config)
        found[name] = (outcome.peaks.allocated_bytes, outcome.peaks.reserved_bytes)
    # Without a new version a sweep would reuse records from before the change.
    assert (SIMULATION_RESULTS_VERSION, found) == FOUND


def test_an_earlier_trial_in_the_process_changes_nothing():
    """bitsandbytes keeps tensors of the first 4-bit model of a process."""
    spec = small_spec(**FOUR_MICRO_BATCHES, **CASES["QLoRA"])
    first, second = (run_simulated(spec, BUILTIN_MODELS[spec.model].config) for _ in range(2))
    assert (first.peaks.allocated_bytes, first.peaks.reserved_bytes) == FOUND[1]["QLoRA"]
    assert second.peaks.phases == first.peaks.phases
