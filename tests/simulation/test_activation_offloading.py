"""Activations that wait for backward in pinned memory: by trl in its own trainer, by torch in the others."""

from typing import Any

import pytest
import torch
from matrix import with_further
from simulating import LORA, simulate, small_spec

from profiler.allocator import parse_alloc_conf, replay_on_card
from profiler.analytical.estimate import has_form
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.errors import UsageError
from profiler.domain.trials.trial import Dtype, Lengths, Recipe, Rollout, Tuning
from profiler.simulation.tracing.host_values import content_of, pinned

SFT: dict[str, Any] = {"recipe": Recipe.SFT, "max_length": 64, "gradient_checkpointing": False}
MIB = 1 << 20


COMMON: dict[str, Any] = {
    "activation_offloading": True,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
    "lengths": Lengths.FORCED,
    "rollout": Rollout.SYNTHETIC,
}


@pytest.mark.parametrize(
    ("keys", "allocated", "reserved"),
    [
        (SFT, 85_756_416, 84 * MIB),
        ({"gradient_checkpointing": True}, 71_540_224, 86 * MIB),
        (
            {
                "gradient_checkpointing": False,
                "recipe": Recipe.RLOO,
                "tuning": Tuning.LORA,
                "lora_rank": 8,
                "lora_alpha": 16,
                "lora_target_modules": ("all-linear",),
            },
            70_899_200,
            86 * MIB,
        ),
    ],
)
def test_the_peaks_are_those_of_torchs_cuda_build(keys: dict[str, Any], allocated: int, reserved: int) -> None:
    """The same trials with backend=emulated, trl 1.16 and torch 2.13."""
    trace = simulate(**COMMON | keys).trace
    found = replay_on_card(trace, capacity_bytes=None, config=parse_alloc_conf(""))
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (allocated, reserved)
    # trl brings tensors back on a stream of its own, torch on that of the computation.
    assert set(trace.streams.values()) == ({1} if keys.get("recipe") is Recipe.SFT else set())


OFFLOADED = [
    (Recipe.SFT, Tuning.FULL),
    (Recipe.DPO, Tuning.LORA),
    (Recipe.KTO, Tuning.FULL),
    (Recipe.REWARD, Tuning.LORA),
]
"""Each recipe, and both methods; the other pairs are further cases."""
PAIRS = [(recipe, tuning) for recipe, _ in OFFLOADED for tuning in (Tuning.FULL, Tuning.LORA)]


@pytest.mark.parametrize("pair", with_further(PAIRS, OFFLOADED), ids="-".join)
def test_recomputed_layers_use_views_of_what_comes_back(pair: tuple[Recipe, Tuning]) -> None:
    """trl records such a view on the default stream, which delays no release where the host is as far as the card.

    The weights are in float32, under autocast: no such view was met with weights in bfloat16.
    """
    recipe, tuning = pair
    keys: dict[str, Any] = {
        "recipe": recipe,
        "max_length": 64,
        "gradient_checkpointing": True,
        "tuning": tuning,
        "dtype": Dtype.FLOAT32,
    }
    keys |= {"beta": 0.1} if recipe in (Recipe.DPO, Recipe.KTO) else {}
    keys |= LORA if tuning is Tuning.LORA else {}
    trace = simulate(**COMMON | keys).trace
    assert set(trace.streams.values()) == {1}
    assert {-block - 1 for block in trace.streams} <= set(trace.events)


def test_a_pinned_tensor_has_a_shape_and_no_memory() -> None:
    tensor = pinned((1 << 20, 1 << 20), torch.bfloat16)
    assert (tensor.shape, tensor.dtype) == ((1 << 20, 1 << 20), torch.bfloat16)
    assert tensor.untyped_storage().nbytes() == 2
    assert content_of(tensor) is not None
    assert content_of(torch.empty(2)) is None


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"backend": "cpu", "recipe": "sft"}, "trl's offloading asks for a GPU"),
        ({"backend": "emulated", "num_processes": 2}, "was never compared on several GPUs"),
    ],
)
def test_offloading_that_is_not_known_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_point({"model": "tiny", "activation_offloading": True, **keys}, architecture_of=architecture_of)


def test_there_is_no_closed_form() -> None:
    assert has_form(small_spec(), architecture_of("tiny"))
    assert not has_form(small_spec(activation_offloading=True), architecture_of("tiny"))


def architecture_of(name: str) -> Any:
    return builtin_architecture(name)
