"""Second inputs of layers, and layers that share keys: numbers worked out by hand, and what holds for all sizes.

The toy has 2 layers of H = 8; its second inputs have 4 values per layer and 50 tokens. T is 10.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import OF_EXPERTS, TOY, TWO_STEPS

from profiler.analytical.estimate import phase_instants, refuse_without_form
from profiler.analytical.formulas.layers.experts import (
    after_mlp_bytes,
    layer_inputs_saved_bytes,
    trains_layer_inputs,
    until_mlp_bytes,
)
from profiler.analytical.formulas.models.parameters import cached_widths, parameter_count
from profiler.analytical.formulas.models.tensor_groups import outer_tensors
from profiler.analytical.formulas.rollout import growth_copy, kv_cache
from profiler.analytical.formulas.sizes.trial_keys import Batch, layer_kinds
from profiler.analytical.timeline.instants import Gradients, InstantName
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.analytical.timeline.tower_instants import (
    embedded_inputs,
    inputs_backward,
    inputs_gradient,
    inputs_held,
    inputs_kept,
    inputs_without_gradient,
    of_prefill,
)
from profiler.config.models.architecture import read_architecture
from profiler.domain.architectures.architecture import IdleTensors, LayerInputs
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Dtype, Logprobs

SECOND = replace(
    TOY,
    model_type="gemma4_text",
    qkv_bias=False,
    norms_per_layer=5,
    layer_inputs=LayerInputs(width=4, vocab_size=50, layers=2),
)
SHARING = replace(TOY, model_type="gemma4_text", shares_keys=True, first_layers=(replace(TOY, num_hidden_layers=1),))
BATCH = Batch(rows=1, prompt_tokens=10, completion_tokens=0, scored_tokens=0, has_mask=False)
FULL, LORA = replace(TWO_STEPS, gradient_checkpointing=True), replace(OF_EXPERTS, gradient_checkpointing=False)
E4B = read_architecture(BUILTIN_MODELS["gemma-4-e4b"].config, model="gemma-4-e4b")


def activations(terms) -> int:
    return int(terms[Category.ACTIVATIONS].size)


def test_what_a_layer_saves_for_its_second_input():
    assert layer_inputs_saved_bytes(FULL, SECOND, 10) == 2 * 80 + 160 + 80
    assert layer_inputs_saved_bytes(LORA, SECOND, 10) == 80
    adapted = replace(LORA, lora_rank=2, lora_target_modules=("per_layer_input_gate", "per_layer_projection"))
    # Inputs of both in bfloat16, and what A returns.
    assert layer_inputs_saved_bytes(adapted, SECOND, 10) == 80 + 160 + 80 + 2 * 40
    assert layer_inputs_saved_bytes(FULL, TOY, 10) == 0


def test_what_backward_has_freed_at_the_mlp():
    assert after_mlp_bytes(FULL, SECOND, 10) == 400 + 680
    assert until_mlp_bytes(FULL, SECOND, 10) == 400 + 2 * 680
    assert (after_mlp_bytes(FULL, TOY, 10), until_mlp_bytes(FULL, TOY, 10)) == (0, 0)


def test_second_inputs_get_a_gradient_if_something_needs_it():
    assert trains_layer_inputs(FULL, SECOND)
    assert not trains_layer_inputs(LORA, SECOND)
    assert trains_layer_inputs(replace(LORA, gradient_checkpointing=True), SECOND)
    assert trains_layer_inputs(replace(LORA, lora_target_modules=("per_layer_model_projection",)), SECOND)


def test_what_all_layers_keep_and_hold():
    assert activations(inputs_kept(FULL, SECOND, BATCH)) == 160 + 320 + 320 + 80
    assert activations(inputs_kept(LORA, SECOND, BATCH)) == 160
    assert activations(inputs_held(FULL, SECOND, BATCH, autocast=True)) == 160
    towers = replace(SECOND, idle=(IdleTensors(shape=(2, 2), copies=1),))
    assert activations(embedded_inputs(FULL, towers, BATCH)) == 2 * 160
    assert activations(inputs_held(FULL, towers, BATCH, autocast=True)) == 3 * 160
    # Keys and values of one key head of 4, which a cache has too.
    assert activations(inputs_held(FULL, SHARING, BATCH, autocast=True)) == 2 * 80
    assert inputs_held(FULL, SHARING, BATCH, autocast=True, has_cache=True) == {}
    assert (inputs_held(FULL, TOY, BATCH, autocast=True), inputs_kept(FULL, TOY, BATCH)) == ({}, {})


def test_how_second_inputs_are_made_and_undone():
    name = InstantName.SCORE_INPUTS
    made = inputs_without_gradient(FULL, SECOND, BATCH, name, adapted=False, autocast=True)
    assert activations(made[name]) == 10 * (8 * 2 + 8 * (2 + 2 + 8))
    assert inputs_gradient(FULL, SECOND, BATCH) == 160
    at_norm, at_embedding = inputs_backward(FULL, SECOND, BATCH, Gradients.of(FULL, SECOND))
    # What the norm saved, the gradients of both inputs, and five float32, less one that is freed.
    assert activations(at_norm) == (320 + 320 + 80) + 160 + 160 + 5 * 320 - 320
    assert activations(at_embedding) == 160 + 160 + 160
    assert inputs_backward(LORA, SECOND, BATCH, Gradients.of(LORA, SECOND)) == ()


def test_layers_that_share_keys_cache_none_and_prefill_a_token():
    assert cached_widths(SHARING) == (0, 0)
    one_layer = 2 * 3 * 4 * 10 * 2
    assert kv_cache(SHARING, sequences=3, tokens=10, element=2).size == one_layer
    assert growth_copy(SHARING, sequences=3, tokens=10, element=2).size == one_layer // 2
    assert of_prefill(SHARING, BATCH).width == 1
    assert of_prefill(TOY, BATCH).width == 10


def test_parameters_outside_of_layers():
    assert [group.total for group in outer_tensors(E4B)] == [2_818_572_288, 10_752 * 2560, 256]
    assert outer_tensors(TOY) == ()
    kinds = [(kind.num_hidden_layers, kind.head_dim, kind.shares_keys) for kind in layer_kinds(E4B)]
    assert kinds == [(20, 256, False), (4, 512, False), (15, 256, True), (3, 512, True)]
    small = read_architecture(BUILTIN_MODELS["gemma-4-e2b"].config, model="gemma-4-e2b")
    assert [kind.intermediate_size for kind in layer_kinds(small)] == [6144, 6144, 12_288, 12_288]


def test_keys_that_nobody_makes_are_refused():
    config = dict(BUILTIN_MODELS["gemma-4-e2b"].config)
    text = dict(config["text_config"])  # type: ignore[call-overload]
    for shared in (34, 35, 99):
        with pytest.raises(UsageError, match="must leave a layer of each kind that makes the keys"):
            read_architecture({**config, "text_config": {**text, "num_kv_shared_layers": shared}}, model="m")


@pytest.mark.parametrize(
    "keys",
    [
        {"dtype": Dtype.FLOAT32},
        {"logprobs": Logprobs.SLICED, "max_completion_length": 64},
        {"critic": True},
        {"num_processes": 2},
        {"use_liger_kernel": True},
    ],
)
def test_what_second_inputs_have_no_form_for_is_refused(keys):
    refuse_without_form(TWO_STEPS, E4B)
    with pytest.raises(UsageError):
        refuse_without_form(replace(TWO_STEPS, **keys), E4B)


def test_a_new_gradient_is_next_to_the_earlier_one():
    def of_inputs(spec):
        found = [one for one in trial_instants(spec, E4B) if one.name is InstantName.BACKWARD_INPUTS]
        return [int(one.sizes[Category.GRADIENTS]) for one in found]

    again, once = of_inputs(TWO_STEPS), of_inputs(replace(TWO_STEPS, gradient_accumulation_steps=1))
    assert again[1] - once[1] == 2 * 2_818_572_288 + 2 * 262_144 * 2560


@settings(max_examples=20)
@given(
    widths=st.lists(st.integers(1, 64), min_size=2, max_size=2),
    spec=st.sampled_from([FULL, LORA, replace(LORA, gradient_checkpointing=True), replace(FULL, beta=0.1)]),
)
def test_wider_second_inputs_need_no_less_in_any_phase(widths, spec):
    thin, wide = (
        replace(E4B, idle=(), layer_inputs=LayerInputs(width=width, vocab_size=100, layers=42))
        for width in sorted(widths)
    )
    assert parameter_count(thin) <= parameter_count(wide)
    few, many = phase_instants(spec, thin), phase_instants(spec, wide)
    assert all(few[phase].total_bytes <= many[phase].total_bytes for phase in few)
    assert Phase.BACKWARD in few
