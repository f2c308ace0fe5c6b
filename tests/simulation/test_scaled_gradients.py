"""Autocast to float16, whose gradients are scaled: compared with trials that were emulated, and what torch refuses.

The peaks are those of torch's counters in torch's CUDA build (torch 2.13.0+cu130, trl 1.16.0, transformers 5.23.0,
accelerate 1.15.0) on emulated cards: recipe=sft with 4 rows of 1,024 tokens, 4 micro-batches, 2 steps.
"""

from typing import Any

import pytest
import torch
from simulating import LORA, SMALL, simulate

from profiler.analytical.estimate import estimate
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Dtype, TrialSpec, Tuning
from profiler.simulation.session import Simulation
from profiler.worker.simulated import card_of, outcome_on_card, simulate_few_layers

EMULATED = (
    ({"tuning": "full", "dtype": "float32", "gpu": "t4-16gb"}, 9_866_261_504, 11_475_615_744),
    ({"tuning": "lora", "dtype": "float16", "gpu": "h100-80gb"}, 1_788_916_736, 1_958_739_968),
    ({"tuning": "lora", "dtype": "bfloat16", "gpu": "t4-16gb"}, 2_522_816_512, 2_749_366_272),
)


def _spec(**keys: object) -> TrialSpec:
    own = {
        "backend": "simulated",
        "model": "qwen2.5-0.5b",
        "recipe": "sft",
        "max_length": 1024,
        "lengths": "forced",
        "steps": 2,
        "fp16": True,
    }
    return parse_point({**own, **keys}, architecture_of=builtin_architecture)


@pytest.mark.parametrize(("keys", "allocated", "reserved"), EMULATED)
def test_a_trial_needs_what_the_emulated_one_needs(keys: Any, allocated: int, reserved: int) -> None:
    spec = _spec(**keys)
    assert spec.fp16
    assert not spec.bf16
    run = simulate_few_layers(spec, BUILTIN_MODELS[spec.model].config, (card_of(spec),))
    assert run is not None
    peaks = outcome_on_card(run, spec).peaks
    assert peaks is not None
    assert (peaks.allocated_bytes, peaks.reserved_bytes) == (allocated, reserved)
    architecture = builtin_architecture(spec.model)
    assert architecture is not None
    assert estimate(spec, architecture).peak_allocated_bytes == pytest.approx(allocated, rel=0.01)


def test_the_optimizer_steps_and_the_scaler_keeps_two_numbers() -> None:
    """The scaler keeps its factor and how many steps it grew; the rest is that of the same trial in bfloat16.

    It steps where the number that counts gradients that are not finite is 0; a fused optimizer reads it in its kernel.
    """
    unfused = {"optim": Optimizer.ADAMW_TORCH}
    keys: dict[str, Any] = {**SMALL, **LORA, **unfused, "tuning": Tuning.LORA, "dtype": Dtype.FLOAT32}
    scaled = simulate(**keys, bf16=False, fp16=True).left_at_the_end()
    other = simulate(**keys).left_at_the_end()
    assert scaled[Category.OPTIMIZER_STATE] == other[Category.OPTIMIZER_STATE] > 0
    assert sum(scaled.values()) - sum(other.values()) == 2 * 512


@pytest.mark.parametrize(
    ("dtype", "error", "says"),
    [
        (torch.bfloat16, NotImplementedError, "not implemented for 'BFloat16'"),
        (torch.float16, ValueError, "Attempting to unscale FP16 gradients"),
    ],
)
def test_gradients_of_16_bits_are_refused_as_on_a_card(dtype: torch.dtype, error: type[Exception], says: str) -> None:
    simulation = Simulation(KNOWN_GPUS["t4-16gb"])
    with simulation.running(), pytest.raises(error, match=says):
        weight = torch.nn.Parameter(torch.empty(8, 8, dtype=dtype, device="meta"))
        scaler = torch.amp.GradScaler("meta")
        scaler.scale(weight.sum().float()).backward()
        scaler.unscale_(torch.optim.SGD([weight]))
