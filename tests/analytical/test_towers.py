"""Vision towers in the closed form: bytes by hand, and what holds for every tower."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import GATED, GELU

from profiler.analytical import estimate, lora_parameter_count, parameter_count
from profiler.analytical.estimate import has_form, phase_instants
from profiler.analytical.formulas.models.tensor_groups import tower_tensors
from profiler.analytical.formulas.tower import (
    block_saved_bytes,
    tower_gradient_bytes,
    tower_kept_bytes,
)
from profiler.analytical.many import estimate_specs
from profiler.analytical.timeline.instants import InstantName
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import VISION_MODELS
from profiler.domain.trials.trial import TrialSpec, Tuning


def _spec(**values: object) -> TrialSpec:
    point = {"backend": "simulated", "model": "qwen2.5-vl-3b", "max_pixels": 401_408, **values}
    return parse_point(point, architecture_of=_architecture)


def _architecture(name):
    found = builtin_architecture(name)
    assert found is not None
    return found


FULL, LORA = _spec(), _spec(tuning="lora")


@pytest.mark.parametrize("model", VISION_MODELS.values(), ids=lambda model: model.name)
def test_a_built_in_model_has_the_parameters_of_its_checkpoint(model):
    assert parameter_count(_architecture(model.name)) == model.parameters


def test_parameters_by_hand():
    """Patches, one block of joint projection, output, MLP and norms, and the merger with its norm."""
    block = 8 * 24 + 24 + 64 + 8 + 2 * (128 + 16) + 128 + 8 + 2 * 8
    merger = 8 + 32 * 32 + 32 + 32 * 10 + 10
    assert sum(group.total for group in tower_tensors(GATED)) == 96 + block + merger == 2_218
    # Layer norms have a bias each, and there is no gate.
    assert sum(group.total for group in tower_tensors(GELU)) == 2_218 + 3 * 8 - (128 + 16)


def test_all_linear_adapts_the_tower_and_other_names_do_not():
    """By hand, the 414 linear layers of Qwen2.5-VL-3B have inputs and outputs of 2,585,216 values together."""
    architecture = _architecture("qwen2.5-vl-3b")
    assert lora_parameter_count(architecture, 1, ("all-linear",)) == 2_585_216
    text = replace(architecture, vision=None)
    for targets in (("q_proj", "v_proj"), ("embed_tokens",)):
        assert lora_parameter_count(architecture, 4, targets) == lora_parameter_count(text, 4, targets)
    # The MLP of this tower has the names of the language model's.
    assert lora_parameter_count(architecture, 1, ("gate_proj",)) == 36 * (2048 + 11_008) + 32 * (1280 + 3420)


def test_a_tower_without_checkpointing_keeps_its_blocks():
    spec = replace(FULL, max_pixels=32)
    saved = replace(spec, gradient_checkpointing=False)
    assert tower_kept_bytes(saved, GATED, 1) == 1_376 - 128 + block_saved_bytes(spec, GATED, 8)


def test_adapters_outside_save_the_tower_under_checkpointing():
    """`enable_input_require_grads` of transformers reaches the first layer of the tower too."""
    targets = ("q_proj", "v_proj")
    tower = _architecture("qwen2.5-vl-3b").vision
    checkpointed = replace(LORA, lora_target_modules=targets)
    assert tower_kept_bytes(checkpointed, tower, 1) > 0
    assert tower_kept_bytes(replace(checkpointed, gradient_checkpointing=False), tower, 1) == 0
    assert tower_gradient_bytes(checkpointed, tower) == 0


def test_pixels_are_kept_twice_when_the_next_are_made():
    """By hand, 16 rows of 2,048 patches: 154,140,672 B; and an int64 per token of 768 + 786."""
    one = 16 * 2_048 * 1_176 * 4 + 16 * (768 + 786) * 8
    text = _spec(max_pixels=784)
    without = 16 * 4 * 1_176 * 4 + 16 * (257 + 786) * 8
    instants = {name: phase_instants(spec, _architecture("qwen2.5-vl-3b")) for name, spec in (("a", FULL), ("b", text))}
    inputs = {name: found[Phase.OPTIMIZER].sizes[Category.INPUTS] for name, found in instants.items()}
    ids = 4 * 16 * (768 - 257) * 8
    assert inputs["a"] - inputs["b"] == one - without + ids
    rewarded = {name: found[Phase.REWARD].sizes[Category.INPUTS] for name, found in instants.items()}
    assert rewarded["a"] - rewarded["b"] == 3 * (one - without) + ids


def test_a_large_image_peaks_in_the_tower():
    found = phase_instants(_spec(max_pixels=12_845_056, tuning="lora"), _architecture("qwen2.5-vl-3b"))
    assert found[Phase.ROLLOUT].name is InstantName.PREFILL_TOWER


def test_what_has_no_formula_is_not_answered():
    architecture = _architecture("qwen2.5-vl-3b")
    assert has_form(FULL, architecture)
    assert not has_form(replace(FULL, tuning=Tuning.QLORA), architecture)


@settings(max_examples=25)
@given(
    model=st.sampled_from(sorted(VISION_MODELS)),
    tuning=st.sampled_from(["full", "lora"]),
    checkpointing=st.booleans(),
    tokens=st.integers(1, 4_096),
    images=st.integers(1, 3),
    rows=st.sampled_from([4, 8]),
    beta=st.sampled_from([0.0, 0.04]),
    steps_per_generation=st.sampled_from([1, 2]),
)
def test_more_pixels_never_need_less_and_a_table_agrees(
    model, tuning, checkpointing, tokens, images, rows, beta, steps_per_generation
):
    tower = _architecture(model).vision
    specs = [
        parse_point(
            {
                "backend": "simulated",
                "model": model,
                "tuning": tuning,
                "gradient_checkpointing": checkpointing,
                "images_per_prompt": images,
                "max_pixels": each * tower.pixels_per_token,
                "per_device_train_batch_size": rows,
                "gradient_accumulation_steps": 2,
                "steps_per_generation": steps_per_generation,
                "beta": beta,
            },
            architecture_of=_architecture,
        )
        for each in (tokens, tokens + 64)
    ]
    alone = [estimate(spec, _architecture(model)) for spec in specs]
    assert alone[0].peak_allocated_bytes <= alone[1].peak_allocated_bytes
    table = estimate_specs(specs, {model: _architecture(model)})
    assert list(table.peak_allocated_bytes) == [found.peak_allocated_bytes for found in alone]
    assert list(table.peak_reserved_bytes) == [found.peak_reserved_bytes for found in alone]
    text = replace(_architecture(model), vision=None)
    assert all(
        estimate(spec, text).peak_allocated_bytes < found.peak_allocated_bytes
        for spec, found in zip(specs, alone, strict=True)
    )
