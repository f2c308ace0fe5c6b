"""Bounds of jobs with Unsloth's kernels, worked out by hand, and between which verdicts lie."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_strategies import ADAPTED

from profiler.analytical.estimate import phase_instants
from profiler.analytical.explanation.bounds import added_bytes, added_in_phase, explain_bounds, head_bytes, least_bytes
from profiler.analytical.explanation.explained import Fit
from profiler.domain.errors import UsageError
from profiler.domain.memory import Phase
from profiler.domain.trials.kernels import OtherKernels
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Backend, TrialSpec, Tuning, VllmMode

READ = (Recipe.GRPO, Recipe.SFT)
KERNELS = OtherKernels(program="Unsloth", first_trl="0.18", last_trl="1.15", recipes=READ)


def _spec(**changes):
    keys = {"per_device_train_batch_size": 2, "max_length": 2048, "recipe": Recipe.SFT, "tuning": Tuning.QLORA}
    keys |= {**ADAPTED, "optim": Optimizer.ADAMW_8BIT, "gradient_checkpointing": True, "lora_dropout": 0.0}
    return TrialSpec(model="qwen2.5-0.5b", backend=Backend.SIMULATED, **{"gpu": "t4-16gb", **keys, **changes})


GRPO = {"recipe": Recipe.GRPO, "max_length": None, "per_device_train_batch_size": 8, "max_completion_length": 200}


def test_the_lower_bound_by_hand(half_billion):
    """All linear layers in nf4 with double quantisation, the rest in 2 B, adapters and gradients in 4 B, 8-bit states.

    357,826,560 values in nf4: half a byte, a byte per 64, 4 B per 64 x 256, and two tables in each of 168 matrices.
    Of 8,798,208 values of adapters, those of 48 matrices of 128 x 16 have states in float32.
    """
    packed = 178_913_280 + 5_591_040 + 87_360 + 168 * (16 + 256 + 1) * 4
    rest = (494_032_768 - 357_826_560) * 2 + 256
    small = 48 * 128 * 16
    states = small * 8 + (8_798_208 - small) * 2 + (8_798_208 - small) // 256 * 8
    expected = packed + rest + 8_798_208 * 8 + states
    assert least_bytes(_spec(), half_billion) == expected == 546_031_584


def test_an_embedding_without_a_tied_head_may_be_on_the_host(half_billion):
    untied = replace(half_billion, tie_word_embeddings=False)
    assert least_bytes(_spec(), untied) == least_bytes(_spec(), half_billion)


def test_what_unsloth_adds_by_hand(half_billion):
    """The widest matrix is 896 x 4,864; there are 4,096 tokens in rows of 2,048, and 14 heads of 64."""
    found = added_bytes(_spec(), half_billion, KERNELS)
    assert found == {
        "rotary tables": 4 * 32_768 * 64 * 4,
        "checkpoint buffers": 2 * 4096 * 896 * 2,
        "attention masks": 2 * 4096 * 2048,
        "attention heads": 3 * 2 * 4096 * 896,
        "dequantised weight": 4_358_144 * 2 + 4 * 68_096,
        "float32 adapters": 8_798_208 * 6,
        "inputs of adapters": 0,
    }


def test_mixed_weights_are_in_16_bits_at_most(half_billion):
    """In nf4 without double quantisation a value has 0.5625 B, and each of 168 matrices 64 B more."""
    mixed = added_bytes(_spec(bnb_4bit_use_double_quant=False), half_billion, replace(KERNELS, has_mixed_weights=True))
    assert mixed["layers in 16 bits"] == 357_826_560 * 2 - 357_826_560 * 9 // 16 - 168 * 64


def test_with_dropout_peft_copies_the_inputs_of_adapters(half_billion):
    """Seven layers with 6 x 896 + 4,864 inputs, in a copy of 4 B, the same after dropout, and a mask of 1 B."""
    found = added_bytes(_spec(lora_dropout=0.1), half_billion, KERNELS)
    assert found["inputs of adapters"] == 4096 * (6 * 896 + 4864) * 9


@pytest.mark.parametrize(
    ("changes", "rows", "expected"),
    [
        ({}, 2, 4 * 2**30 + 4096 * 896 * 8),
        ({"max_length": 128}, 2, 256 * 151_936 * 16 + 256 * 896 * 8),
        (GRPO, 8, 512 * 151_936 * 16 + 1600 * 896 * 8),
        ({**GRPO, "max_completion_length": 40}, 8, 320 * 151_936 * 16 + 320 * 896 * 8),
    ],
)
def test_the_head_by_hand(half_billion, changes, rows, expected):
    assert head_bytes(_spec(**changes), half_billion, rows) == expected


@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 4),
    length=st.sampled_from([64, 700, 3000]),
    rank=st.sampled_from([1, 16, 64]),
    tuning=st.sampled_from([Tuning.LORA, Tuning.QLORA]),
    is_online=st.booleans(),
    use_vllm=st.booleans(),
    optim=st.sampled_from([Optimizer.ADAMW_8BIT, Optimizer.PAGED_ADAMW_8BIT, Optimizer.ADAMW_TORCH]),
)
def test_the_upper_bound_is_what_trl_needs_and_what_is_added(
    half_billion, rows, length, rank, tuning, is_online, use_vllm, optim
):
    keys = {"per_device_train_batch_size": rows, "lora_rank": rank, "tuning": tuning, "optim": optim}
    lengths = (
        {**GRPO, "max_completion_length": length, "num_generations": rows} if is_online else {"max_length": length}
    )
    engine = {"use_vllm": True, "vllm_mode": VllmMode.COLOCATE, "vllm_gpu_memory_utilization": 0.3}
    engine["vllm_enable_sleep_mode"] = False
    spec = _spec(**{**lengths, **keys, **(engine if is_online and use_vllm else {}), "gpu": "a100-80gb"})
    explained = explain_bounds(spec, half_billion, KERNELS)
    always = sum(added_bytes(spec, half_billion, KERNELS).values())
    of_trl = phase_instants(spec, half_billion)
    for phase in explained.phases:
        more = always + added_in_phase(spec, half_billion, phase.phase)
        assert phase.peak_allocated_bytes == int(of_trl[phase.phase].total_bytes) + more
        assert sum(share.size_bytes for share in phase.shares) == phase.peak_allocated_bytes
        assert phase.phase is Phase.LOAD or explained.bounds.least_bytes <= phase.peak_allocated_bytes
    assert explained.bounds.most_bytes == max(phase.peak_allocated_bytes for phase in explained.phases)
    for card in explained.cards:
        assert card.least_bytes <= card.needed_bytes
        needs = {Fit.FITS: card.left_bytes >= 0, Fit.TOO_LARGE: card.least_bytes > card.gpu.memory_bytes}
        assert needs.get(card.fit, card.fit is Fit.UNDECIDED and card.left_bytes < 0)


def test_what_is_not_counted_lets_nothing_fit(half_billion):
    verdicts = {
        counts: {
            card.fit for card in explain_bounds(_spec(), half_billion, replace(KERNELS, counts_everything=counts)).cards
        }
        for counts in (True, False)
    }
    assert Fit.FITS in verdicts[True] and verdicts[False] == {Fit.UNDECIDED}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"recipe": Recipe.DPO, "max_prompt_length": 256}, "recipe"),
        ({"tuning": Tuning.FULL, "lora_rank": None, "lora_target_modules": None}, "tuning"),
        ({"num_processes": 2, "distributed_type": "multi_gpu"}, "num_processes"),
    ],
)
def test_other_jobs_have_no_bounds(half_billion, changes, key):
    with pytest.raises(UsageError) as refused:
        explain_bounds(_spec(**changes), half_billion, KERNELS)
    assert key in {fault.key for fault in refused.value.faults}


def test_other_models_have_no_bounds(half_billion):
    with pytest.raises(UsageError, match="model=gemma2: is loaded by other code of Unsloth"):
        explain_bounds(_spec(), replace(half_billion, model_type="gemma2"), KERNELS)
