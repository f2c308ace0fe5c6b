from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analytical import estimate, rule_of_thumb
from profiler.analytical.estimate import instants
from profiler.config.architecture import read_architecture
from profiler.domain.builtin_models import BUILTIN_MODELS
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.optimizers import Optimizer
from profiler.domain.trial import ALL_LINEAR, Attention, Backend, Dtype, Lengths, Logprobs, TrialSpec, Tuning

_BASE = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="qwen2.5-0.5b")
_ADAPTED = {"lora_rank": 16, "lora_alpha": 32, "lora_target_modules": (ALL_LINEAR,)}


def _architecture(name):
    return read_architecture(BUILTIN_MODELS[name].config, model=name)


@st.composite
def specs(draw):
    tuning = draw(st.sampled_from(Tuning))
    return TrialSpec(
        backend=Backend.SIMULATED,
        gpu=draw(st.sampled_from(["h100-80gb", "t4-16gb", None])),
        model=draw(st.sampled_from(sorted(BUILTIN_MODELS))),
        tuning=tuning,
        optim=draw(st.sampled_from(Optimizer)),
        max_prompt_length=draw(st.integers(1, 1024)),
        max_completion_length=draw(st.integers(8, 4096)),
        lengths=draw(st.sampled_from(Lengths)),
        per_device_train_batch_size=draw(st.sampled_from([1, 2, 4, 16])),
        gradient_accumulation_steps=draw(st.sampled_from([1, 2, 4])),
        steps_per_generation=draw(st.sampled_from([1, 2, 4])),
        gradient_checkpointing=draw(st.booleans()),
        beta=draw(st.sampled_from([0.0, 0.04])),
        attn_implementation=draw(st.sampled_from(Attention)),
        dtype=draw(st.sampled_from(Dtype)),
        bf16=draw(st.booleans()),
        logprobs=draw(st.sampled_from(Logprobs)),
        steps=draw(st.sampled_from([1, 3])),
        **(_ADAPTED if tuning is not Tuning.FULL else {}),
    )


def _peak(spec):
    return estimate(spec, _architecture(spec.model)).peak_allocated_bytes


@settings(max_examples=200, deadline=None)
@given(specs())
def test_the_breakdown_sums_to_the_peak_which_is_the_largest_instant(spec):
    result = estimate(spec, _architecture(spec.model))
    moments = instants(spec, _architecture(spec.model))

    assert sum(share.size_bytes for share in result.breakdown) == result.peak_allocated_bytes
    assert result.peak_allocated_bytes == max(moment.total_bytes for moment in moments)
    assert result.peak_phase in {moment.phase for moment in moments}
    assert all(size >= 0 for moment in moments for size in moment.sizes.values())
    assert Category.OTHER not in {share.category for share in result.breakdown}


@settings(max_examples=100, deadline=None)
@given(
    specs(),
    st.sampled_from(["max_prompt_length", "max_completion_length", "per_device_train_batch_size", "steps"]),
)
def test_more_work_never_takes_less(spec, key):
    assert _peak(replace(spec, **{key: 2 * getattr(spec, key)})) >= _peak(spec)


@settings(max_examples=100, deadline=None)
@given(specs())
def test_what_saves_memory_never_costs_any(spec):
    assert _peak(replace(spec, beta=0.0)) <= _peak(spec)
    assert _peak(replace(spec, optim=Optimizer.SGD)) <= _peak(spec)
    assert _peak(replace(spec, optim=Optimizer.PAGED_ADAMW_8BIT)) <= _peak(replace(spec, optim=Optimizer.ADAMW_8BIT))
    # Sliced also scores row by row, so only where nothing is scored before training.
    unscored = replace(spec, beta=0.0, steps_per_generation=1)
    assert _peak(replace(unscored, logprobs=Logprobs.MINIBATCH)) <= _peak(replace(unscored, logprobs=Logprobs.SLICED))


@pytest.mark.parametrize("tuning", Tuning)
def test_checkpointing_saves_in_long_training(tuning):
    spec = replace(_BASE, tuning=tuning, **(_ADAPTED if tuning is not Tuning.FULL else {}))

    assert _peak(spec) < _peak(replace(spec, gradient_checkpointing=False)) / 2


def test_a_longer_rollout_can_be_the_peak_of_a_small_adapter():
    spec = replace(
        _BASE,
        tuning=Tuning.LORA,
        max_completion_length=4096,
        steps_per_generation=64,
        gradient_accumulation_steps=64,
        per_device_train_batch_size=1,
        **_ADAPTED,
    )

    assert estimate(spec, _architecture(spec.model)).peak_phase is Phase.ROLLOUT


def test_the_rule_by_hand(half_billion):
    assert rule_of_thumb(_BASE, half_billion) == 494_032_768 * 12
    assert rule_of_thumb(replace(_BASE, beta=0.04), half_billion) == 494_032_768 * 14
    assert rule_of_thumb(replace(_BASE, optim=Optimizer.ADAMW_8BIT), half_billion) == 494_032_768 * 8
    lora = replace(_BASE, tuning=Tuning.LORA, beta=0.04, **_ADAPTED)
    assert rule_of_thumb(lora, half_billion) == 494_032_768 * 2 + 8_798_208 * 10


def test_a_mixture_of_experts_is_not_estimated():
    mixture = replace(_architecture("qwen2.5-0.5b"), num_experts=8)
    with pytest.raises(UsageError, match="a mixture of 8 experts has no closed-form estimate"):
        estimate(_BASE, mixture)
