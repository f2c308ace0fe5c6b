from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from trial_strategies import ADAPTED, architecture, specs

from profiler.analytical import estimate, rule_of_thumb
from profiler.analytical.estimate import phase_instants
from profiler.analytical.timeline.instants import InstantName
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.domain.errors import UsageError
from profiler.domain.memory import TRIAL_PHASES, Category, Phase
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Attention, Backend, Dtype, Lengths, Logprobs, TrialSpec, Tuning

_BASE = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="qwen2.5-0.5b")


def _peak(spec):
    return estimate(spec, architecture(spec.model)).peak_allocated_bytes


def _backward(spec):
    return phase_instants(spec, architecture(spec.model))[Phase.BACKWARD].total_bytes


@given(specs())
def test_the_breakdown_sums_to_the_largest_instant(spec):
    result = estimate(spec, architecture(spec.model))
    found = trial_instants(spec, architecture(spec.model))

    assert sum(share.size_bytes for share in result.breakdown) == result.peak_allocated_bytes
    assert result.peak_allocated_bytes == max(instant.total_bytes for instant in found)
    assert result.peak_phase in {instant.phase for instant in found}
    assert all(size >= 0 for instant in found for size in instant.sizes.values())
    assert Category.OTHER not in {share.category for share in result.breakdown}


@given(
    specs(),
    st.sampled_from(["max_prompt_length", "max_completion_length", "per_device_train_batch_size", "steps"]),
)
def test_more_work_never_needs_less_memory(spec, key):
    assert _peak(replace(spec, **{key: 2 * getattr(spec, key)})) >= _peak(spec)


@given(specs())
def test_settings_that_save_memory_never_need_more(spec):
    assert _peak(replace(spec, beta=0.0)) <= _peak(spec)
    assert _peak(replace(spec, optim=Optimizer.SGD)) <= _peak(spec)
    assert _peak(replace(spec, optim=Optimizer.PAGED_ADAMW_8BIT)) <= _peak(replace(spec, optim=Optimizer.ADAMW_8BIT))
    # In backward: sliced scores row by row, and forward of all rows comes before any gradient.
    assert _backward(replace(spec, logprobs=Logprobs.MINIBATCH)) <= _backward(replace(spec, logprobs=Logprobs.SLICED))


@pytest.mark.parametrize("tuning", Tuning)
def test_checkpointing_saves_in_long_training(tuning):
    spec = replace(_BASE, tuning=tuning, **(ADAPTED if tuning is not Tuning.FULL else {}))

    assert _peak(spec) < _peak(replace(spec, gradient_checkpointing=False)) / 2


def test_a_longer_rollout_can_be_the_peak_of_a_small_adapter():
    spec = replace(
        _BASE,
        tuning=Tuning.LORA,
        max_completion_length=4096,
        steps_per_generation=64,
        gradient_accumulation_steps=64,
        per_device_train_batch_size=1,
        **ADAPTED,
    )

    assert estimate(spec, architecture(spec.model)).peak_phase is Phase.ROLLOUT


def test_the_rule_by_hand(half_billion):
    assert rule_of_thumb(_BASE, half_billion) == 494_032_768 * 12
    assert rule_of_thumb(replace(_BASE, beta=0.04), half_billion) == 494_032_768 * 14
    assert rule_of_thumb(replace(_BASE, optim=Optimizer.ADAMW_8BIT), half_billion) == 494_032_768 * 8
    lora = replace(_BASE, tuning=Tuning.LORA, beta=0.04, **ADAPTED)
    assert rule_of_thumb(lora, half_billion) == 494_032_768 * 2 + 8_798_208 * 10


def test_a_mixture_of_experts_is_refused():
    mixture = replace(architecture("qwen2.5-0.5b"), num_experts=8)
    with pytest.raises(UsageError, match="a mixture of 8 experts has no closed-form estimate"):
        estimate(_BASE, mixture)


def test_a_tied_gradient_exists_twice_at_the_end_of_backward(half_billion):
    last = [instant for instant in trial_instants(_BASE, half_billion) if instant.name is InstantName.BACKWARD_END][-1]
    embedding = 151_936 * 896 * 2

    assert last.sizes[Category.GRADIENTS] == 988_065_536 + 2 * embedding


def test_full_log_probabilities_add_a_third_tied_gradient(half_billion):
    full = replace(_BASE, logprobs=Logprobs.FULL)
    embedding = 151_936 * 896

    def gradients(spec: TrialSpec) -> object:
        return [each for each in trial_instants(spec, half_billion) if each.name is InstantName.BACKWARD_END][-1].sizes[
            Category.GRADIENTS
        ]

    assert gradients(full) == 988_065_536 + 3 * embedding * 2
    # there is a cast between the product and the sum
    assert gradients(replace(full, dtype=Dtype.FLOAT32, bf16=True)) == 2 * 988_065_536 + 2 * embedding * 4


def test_autocast_copies_a_reference_but_no_frozen_base(half_billion):
    wide = replace(_BASE, dtype=Dtype.FLOAT32, bf16=True, beta=0.04)
    lora = replace(wide, tuning=Tuning.LORA, lora_rank=16, lora_alpha=32, lora_target_modules=("q_proj",))

    def held(spec: TrialSpec) -> object:
        at_the_head = [each for each in trial_instants(spec, half_billion) if each.name is InstantName.SCORE_HEAD]
        return at_the_head[0].sizes[Category.ACTIVATIONS]

    narrow = replace(wide, dtype=Dtype.BFLOAT16)
    linear = 24 * (2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4_864)
    # the copies, and hidden states of twice the width
    assert held(wide) == 2 * held(narrow) + linear * 2
    assert held(lora) == 2 * held(replace(lora, dtype=Dtype.BFLOAT16))


def test_adapters_over_four_bit_weights_are_created_in_float32(half_billion):
    qlora = replace(
        _BASE,
        tuning=Tuning.QLORA,
        lora_rank=1024,
        lora_alpha=32,
        lora_target_modules=("gate_proj",),
        model="qwen2.5-0.5b",
    )
    loaded, rolled_out = (
        next(each for each in trial_instants(qlora, half_billion) if each.name is name).sizes
        for name in (InstantName.LOADED, InstantName.SAMPLING)
    )
    adapters = 24 * 1024 * (896 + 4_864) * 2

    assert rolled_out[Category.ADAPTERS] == loaded[Category.ADAPTERS] == adapters
    assert loaded[Category.WORKSPACE] == max(adapters, 272_269_312 - adapters)


def test_a_longest_row_makes_scores_and_a_padded_one_none(half_billion):
    # Float32 with shared keys has a kernel only with a mask.
    wide = replace(_BASE, dtype=Dtype.FLOAT32, bf16=False, gradient_checkpointing=False)
    scores = 24 * 14 * 1_042 * 1_042 * 4

    def forward(logprobs: Logprobs, lengths: Lengths, rows: int = 4) -> int:
        spec = replace(wide, logprobs=logprobs, lengths=lengths, per_device_train_batch_size=rows)
        return int(phase_instants(spec, half_billion)[Phase.FORWARD].total_bytes)

    # `minibatch` processes a longest row at some time; one of the four rows of `sliced` is longest; so is a single row
    one = forward(Logprobs.MINIBATCH, Lengths.FORCED)
    assert forward(Logprobs.MINIBATCH, Lengths.RAGGED) == one > scores
    assert scores < forward(Logprobs.SLICED, Lengths.RAGGED) < forward(Logprobs.SLICED, Lengths.FORCED) - 2 * scores
    assert scores < forward(Logprobs.FUSED, Lengths.RAGGED, rows=1)
    assert forward(Logprobs.FUSED, Lengths.RAGGED, rows=1) <= forward(Logprobs.FUSED, Lengths.FORCED, rows=1)


def test_sliced_rows_have_no_gradients_in_forward(half_billion):
    spec = replace(_BASE, logprobs=Logprobs.SLICED, gradient_accumulation_steps=1, steps_per_generation=1)
    forward = [instant for instant in trial_instants(spec, half_billion) if instant.phase is Phase.FORWARD]

    assert all(instant.sizes.get(Category.GRADIENTS, 0) == 0 for instant in forward)


def test_a_later_row_adds_to_the_gradient_of_a_tied_head(half_billion):
    """All weights in float32, one micro-batch: gradients of 494,032,768 weights, and the embedding's new one."""
    keys = {"dtype": Dtype.FLOAT32, "gradient_accumulation_steps": 1, "steps_per_generation": 1}
    spec = replace(_BASE, logprobs=Logprobs.SLICED, max_completion_length=64, **keys)
    ends = [each for each in trial_instants(spec, half_billion) if each.name is InstantName.BACKWARD_END]

    # The first row has the tied head's in the place of an earlier row's.
    assert {each.sizes[Category.GRADIENTS] for each in ends if each.happens} == {4 * (494_032_768 + 151_936 * 896)}


@given(specs())
def test_every_phase_has_its_largest_instant(spec):
    found = phase_instants(spec, architecture(spec.model))
    without_score = [phase for phase in TRIAL_PHASES if phase is not Phase.SCORE]

    assert [phase for phase in found if phase is not Phase.SCORE] == without_score
    assert max(instant.total_bytes for instant in found.values()) == _peak(spec)
    assert (Phase.SCORE in found) == (
        spec.beta != 0.0 or spec.gradient_accumulation_steps % spec.steps_per_generation != 0
    )


_EXCHANGED = {Dtype.FLOAT16: Dtype.BFLOAT16, Dtype.BFLOAT16: Dtype.FLOAT16}


@given(specs())
def test_autocast_to_the_other_type_of_16_bits_needs_as_much(spec):
    """With the weights exchanged as well: on an H100 only the softmax of eager attention depends on which it is."""
    assume(spec.tuning is not Tuning.QLORA and spec.attn_implementation is not Attention.EAGER)
    autocast = replace(spec, bf16=True, gpu="h100-80gb")
    scaled = replace(autocast, bf16=False, fp16=True, dtype=_EXCHANGED.get(spec.dtype, spec.dtype))
    assert estimate(scaled, architecture(spec.model)) == estimate(autocast, architecture(spec.model))
