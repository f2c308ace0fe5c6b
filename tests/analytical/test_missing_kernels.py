"""Kernels that old cards do not have."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.analytical.estimate import has_form
from profiler.analytical.explanation.explained import Fit, card_verdict
from profiler.analytical.formulas.models.trained import bfloat16_tensors
from profiler.analytical.optimizers import has_wide_states
from profiler.config.models.lookup import builtin_architecture
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.trials.kernels import FLASH_ATTENTION, FLASH_OF_FLOAT32, FUSED_HEAD, missing_kernel
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import ALL_LINEAR, Attention, Backend, Dtype, Logprobs, TrialSpec, Tuning

T4, L4 = KNOWN_GPUS["t4-16gb"], KNOWN_GPUS["l4-24gb"]


def _spec(**changes):
    return TrialSpec(model="qwen2.5-0.5b", backend=Backend.SIMULATED, gpu="h100-80gb", **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"bf16": True},
        {"bf16": True, "logprobs": Logprobs.SLICED},
        {"bf16": True, "dtype": Dtype.FLOAT32},
        {"bf16": True, "tuning": Tuning.LORA},
        {"bf16": False, "dtype": Dtype.BFLOAT16},
        {"bf16": True, "recipe": Recipe.SFT},
    ],
)
def test_the_fused_head_needs_wide_products_in_bfloat16(changes):
    assert missing_kernel(_spec(**changes), T4.chip) is FUSED_HEAD
    assert missing_kernel(_spec(**changes), L4.chip) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"bf16": True, "logprobs": Logprobs.FULL},
        {"bf16": False, "dtype": Dtype.FLOAT16},
        {"bf16": False, "dtype": Dtype.FLOAT32},
        {"bf16": False, "fp16": True, "dtype": Dtype.FLOAT32},
        {"bf16": False, "fp16": True, "dtype": Dtype.BFLOAT16, "tuning": Tuning.LORA},
    ],
)
def test_other_trials_run_on_a_t4(changes):
    assert missing_kernel(_spec(**changes), T4.chip) is None


@pytest.mark.parametrize(
    ("changes", "is_missing"),
    [
        ({"tuning": Tuning.LORA}, True),
        ({"tuning": Tuning.QLORA, "bf16": False, "fp16": True}, True),
        ({"tuning": Tuning.LORA, "dtype": Dtype.BFLOAT16}, False),
        ({"tuning": Tuning.LORA, "use_vllm": True}, False),
        ({"tuning": Tuning.LORA, "recipe": Recipe.SFT}, False),
        ({"tuning": Tuning.FULL}, False),
    ],
)
def test_adapters_over_float32_generate_without_flash(changes, is_missing):
    spec = _spec(**{"dtype": Dtype.FLOAT32, "attn_implementation": Attention.FLASH_ATTENTION_2, **changes})
    assert (missing_kernel(spec, L4.chip) is FLASH_OF_FLOAT32) is is_missing


def test_flash_attention_is_named_before_the_head():
    assert missing_kernel(_spec(attn_implementation=Attention.FLASH_ATTENTION_2), T4.chip) is FLASH_ATTENTION


def test_the_verdict_names_the_kernel_and_what_to_change(half_billion):
    verdict = card_verdict(_spec(bf16=True), half_billion, T4)
    assert verdict.fit is Fit.NO_KERNEL
    assert verdict.no_kernel_text == (
        "trl's fused LM head in bfloat16 does not run on t4-16gb. "
        "Use fp16=true (tuning=full needs dtype=float32 then), or with recipe=grpo logprobs=full."
    )
    assert card_verdict(_spec(bf16=True), half_billion, L4).no_kernel_text == ""


@pytest.mark.parametrize(
    ("changes", "has_update"),
    [
        # B of k and v has 128 x 16 values, below 4,096, and 128 x 32 are 4,096.
        ({}, False),
        ({"lora_rank": 32}, True),
        ({"lora_target_modules": ("q_proj", "o_proj")}, True),
        ({"optim": Optimizer.RMSPROP_32BIT, "lora_rank": 32}, False),
        ({"tuning": Tuning.LORA, "optim": Optimizer.RMSPROP_32BIT}, True),
        ({"tuning": Tuning.LORA, "recipe": Recipe.REWARD, "max_length": 64}, False),
    ],
)
def test_rmsprop_over_4_bits_needs_large_adapters(changes, has_update):
    adapted = {"lora_rank": 16, "lora_alpha": 32, "lora_target_modules": (ALL_LINEAR,), "optim": Optimizer.RMSPROP_8BIT}
    spec = _spec(**{"tuning": Tuning.QLORA, **adapted, **changes})
    assert has_form(spec, builtin_architecture(spec.model)) is has_update


@given(rank=st.integers(1, 128), targets=st.sampled_from(["q_proj", "k_proj", "down_proj"]))
def test_a_larger_rank_never_lacks_a_kernel_that_a_smaller_has(rank, targets):
    spec = _spec(tuning=Tuning.QLORA, optim=Optimizer.RMSPROP_8BIT, lora_alpha=8, lora_target_modules=(targets,))
    small, large = (
        has_wide_states(bfloat16_tensors(replace(spec, lora_rank=each), builtin_architecture(spec.model)))
        for each in (rank, 2 * rank)
    )
    assert small or not large
