"""One trial twice: on the CPU, read by torch's own profiler, and simulated with the CPU's choices.

Every phase of every step is compared, to the byte: what the real run has more is named below, each with its bytes. It
is memory of the host, which a card would not have, or scratch inside CPU kernels. Of the latter nothing stands at the
peak of a training step; in rollouts it does, and is listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from matrix import with_further
from measured_on_cpu import (
    HIDDEN,
    LAYERS,
    MODEL,
    PARAMETER_TENSORS,
    ROWS,
    TRIAL,
    VOCABULARY,
    Measured,
    Stretch,
    measure_on_cpu,
    steps_of,
    stretches,
)
from simulating import LORA, simulate

from profiler.domain.memory import Phase
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Attention, Dtype, Logprobs, Tuning
from profiler.simulation.device.cpu_choices import Choices

KIB = 1024

REWARD_WEIGHTS = 4
"""trl keeps the weights of the reward functions on the host: one float32 here."""
NUMBER = 8
"""A Python number in an expression with a tensor: torch makes a tensor of it, on the host on every device."""
RANDOM_STATE = torch.get_rng_state().nbytes
"""The CPU's random state, 5,056 bytes: checkpointing keeps it for every layer, on the host on every device."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A trial, and the memory of the host that its CPU run has and a card would not have."""

    keys: Mapping[str, Any]
    until_backward: int = 0
    """Kept from forward until backward."""
    with_the_optimizer: int = 0
    """Made by the first step of the optimizer and kept."""


CASES = {
    "float32": Case(keys={}),
    "autocast to bfloat16": Case(keys={"bf16": True}),
    "LoRA over bfloat16, with a reference": Case(
        keys={"bf16": True, "dtype": Dtype.BFLOAT16, "tuning": Tuning.LORA, "beta": 0.04, **LORA},
        # The scaling of seven adapters in every layer, and beta.
        until_backward=(7 * LAYERS + 1) * NUMBER,
    ),
    "checkpointing, log-probabilities of 2025, eager attention, AdamW's loop": Case(
        keys={
            "gradient_checkpointing": True,
            "logprobs": Logprobs.FULL,
            "attn_implementation": Attention.EAGER,
            "optim": Optimizer.ADAMW_TORCH,
        },
        # The random state and the scaling of the attention scores of every layer.
        until_backward=LAYERS * (RANDOM_STATE + NUMBER),
        # Its step counts.
        with_the_optimizer=PARAMETER_TENSORS * 4,
    ),
}

COMPARED = with_further(CASES, list(CASES)[1:3])
"""Autocast, and LoRA; the cases of float32 and of older losses are further ones."""

PASSING = {
    # One addition to each step count: the number and its cast.
    Phase.OPTIMIZER: 2 * NUMBER,
}
"""Temporary memory of the host that may be in use at a phase's peak."""


@cache
def both(case: str) -> tuple[Measured, tuple[Stretch, ...]]:
    keys = TRIAL | CASES[case].keys
    simulated = simulate(model_config=MODEL, choices=Choices.CPU, shortcut_rollout=False, **keys)
    return measure_on_cpu(model_config=MODEL, **keys), stretches(steps_of(simulated.trace))


def pairs(case: str) -> list[tuple[Stretch, Stretch, int]]:
    """Stretch by stretch: measured, simulated, and what the host keeps for good at its beginning."""
    measured, simulated = both(case)
    ends = measured.stretches
    assert [each.phase for each in ends] == [each.phase for each in simulated]
    kept, found = REWARD_WEIGHTS, []
    for real, own in zip(ends, simulated, strict=True):
        found.append((real, own, kept))
        if real.phase is Phase.OPTIMIZER:
            kept = REWARD_WEIGHTS + CASES[case].with_the_optimizer
    return found


@pytest.mark.parametrize("case", COMPARED)
def test_the_peak_of_every_training_phase_is_that_of_the_cpu(case: str) -> None:
    for real, own, kept in pairs(case):
        if real.phase not in (Phase.SCORE, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            continue
        passing = CASES[case].until_backward if real.phase in (Phase.FORWARD, Phase.BACKWARD) else 0
        if real.phase is Phase.OPTIMIZER:
            passing = CASES[case].with_the_optimizer + PASSING[Phase.OPTIMIZER]
        assert 0 <= real.peak_bytes - own.peak_bytes - kept <= passing


@pytest.mark.parametrize("case", COMPARED)
def test_the_peak_of_the_steps_is_within_one_percent(case: str) -> None:
    """A looser bound than the comparison above, with models and host included."""
    measured, simulated = both(case)
    real, own = (
        max(each.peak_bytes for each in side if each.phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER))
        for side in (measured.stretches, simulated)
    )
    assert real == pytest.approx(own, rel=0.01)


@pytest.mark.parametrize("case", COMPARED)
def test_persistent_memory_is_equal_to_the_byte(case: str) -> None:
    """At the end of every backward and optimizer step: weights, reference, adapters, gradients and states."""
    for real, own, kept in pairs(case):
        if real.phase in (Phase.BACKWARD, Phase.REWARD):
            assert real.end_bytes - own.end_bytes == kept
    last_real, last_own, _ = pairs(case)[-1]
    assert last_real.end_bytes - last_own.end_bytes == REWARD_WEIGHTS + CASES[case].with_the_optimizer


SCRATCH = {
    "multinomial": (262_233, "noise as large as the probabilities; the same on CUDA, and simulated"),
    "_scaled_dot_product_flash_attention_for_cpu": (13_568, "a block of scores for each thread"),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (1_997_312, "blocks for each thread; bfloat16: repacked"),
    "mm": (189_568, "oneDNN's scratch for bfloat16; float32 takes none"),
    "addmm": (91_136, "oneDNN's scratch for bfloat16"),
    "bmm": (ROWS * VOCABULARY * HIDDEN * 2 + 28_928, "the LM head copied for every row, and oneDNN's scratch"),
    "mul": (196_608, "bfloat16 times float32: one of them cast first; CUDA casts as it reads"),
    "add": (524_288, "bfloat16 plus float32: the same"),
    "cat": (98_304, "the cache's bfloat16 and a float32: the same"),
    "sum": (1_536, "a mask of bool, cast to int64 first; on CUDA a scratch block of the operation"),
    "cumsum": (1_536, "the same"),
}
"""What CPU kernels take inside one operation, at most, and why: named, and not part of any peak of training.

Operation: bytes in these trials with one thread on a CPU with AVX-512 and without AMX, and the reason.
"""
SMALL_BYTES = KIB


@pytest.mark.parametrize("case", COMPARED)
def test_scratch_inside_cpu_kernels_is_what_is_listed(case: str) -> None:
    found = {key: size for key, size in both(case)[0].inside_operations.items() if size > SMALL_BYTES}
    assert {name for _, name in found} <= SCRATCH.keys()
    # Kernels for other CPUs take other scratch; with AMX oneDNN takes a few KiB more.
    if torch.backends.cpu.get_cpu_capability() == "AVX512" and not torch.cpu._is_amx_tile_supported():
        assert all(size <= SCRATCH[name][0] for (_, name), size in found.items())


@pytest.mark.parametrize("case", COMPARED)
def test_the_peak_of_a_rollout_is_that_of_the_cpu_without_scratch(case: str) -> None:
    prompt_ids = ROWS * 32 * 8  # on the host, while they are on their way to the device
    inside = both(case)[0].inside_operations
    scratch = max(size for (phase, name), size in inside.items() if phase is Phase.ROLLOUT and name != "multinomial")
    for real, own, kept in pairs(case):
        if real.phase is Phase.ROLLOUT:
            # With AMX a kernel takes its scratch while the prompts are still there.
            assert 0 <= real.peak_bytes - own.peak_bytes - kept <= prompt_ids + scratch


def test_the_scratch_of_sampling_is_simulated() -> None:
    sampled = simulate(model_config=MODEL, choices=Choices.CPU, **TRIAL).trace
    assert ROWS * VOCABULARY * 4 in sampled.sizes_bytes
    # Beyond the scratch, a few bytes for results, and eight more where another test has made torch fill new memory.
    beyond = both("float32")[0].inside_operations[Phase.ROLLOUT, "multinomial"] - ROWS * VOCABULARY * 4
    assert 0 < beyond < SMALL_BYTES
