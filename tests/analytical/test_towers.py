"""Vision towers in the closed form: bytes by hand, and what holds for every tower."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_models import FULL as TOY_FULL
from toy_models import GATED, GELU, TOY
from toy_models import LORA as TOY_LORA
from toy_models import QLORA as TOY_QLORA

from profiler.analytical import estimate, lora_parameter_count, parameter_count
from profiler.analytical.estimate import has_form, phase_instants, refuse_without_form
from profiler.analytical.formulas.models.tensor_groups import tower_tensors
from profiler.analytical.formulas.models.trained import trained_tensors
from profiler.analytical.formulas.models.weights import adapters, nf4_bytes, weights
from profiler.analytical.formulas.tower import (
    block_saved_bytes,
    tower_gradient_bytes,
    tower_kept_bytes,
)
from profiler.analytical.many import estimate_specs
from profiler.analytical.timeline.instants import InstantName
from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.architecture import IdleTensors
from profiler.domain.errors import UsageError
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


SIGLIP = {
    "hidden_size": 1152,
    "image_size": 896,
    "intermediate_size": 4304,
    "num_attention_heads": 16,
    "num_hidden_layers": 27,
    "patch_size": 14,
    "vision_use_head": False,
}
IDLE = (IdleTensors(shape=(8, 16), copies=2, layer="fc1"), IdleTensors(shape=(8,), copies=3))
PASSED = replace(TOY, idle=IDLE)


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ((2560, 10_240, 34, 8, 4, 256), 4_300_079_472),
        ((3840, 15_360, 48, 16, 8, 256), 12_187_325_040),
        ((5376, 21_504, 62, 32, 16, 128), 27_432_406_640),
    ],
)
def test_gemma_3_has_the_parameters_of_its_checkpoints(text, parameters):
    """The published models see images; their sizes are those of the published files of weights."""
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    inner = {"model_type": "gemma3_text", **dict(zip((*names, "head_dim"), text, strict=True))}
    config = {"model_type": "gemma3", "text_config": inner, "vision_config": SIGLIP}
    read = read_architecture(config, model="m")
    assert parameter_count(read) == parameters
    assert read.has_closed_form
    assert "rows are counted as text" in read.uncounted[0]


def test_a_tower_that_text_passes_by_is_loaded_and_not_trained():
    """By hand: two matrices of 8 x 16 and three vectors of 8, 280 values."""
    assert parameter_count(PASSED) - parameter_count(TOY) == 2 * 128 + 3 * 8
    assert weights(TOY_FULL, PASSED).size - weights(TOY_FULL, TOY).size == 2 * 280
    assert trained_tensors(TOY_FULL, PASSED) == trained_tensors(TOY_FULL, TOY)
    # Rank 2: A [2, 16] and B [8, 2], in float32, twice; over 4 bits in two bytes.
    assert adapters(TOY_LORA, PASSED).size - adapters(TOY_LORA, TOY).size == 2 * 48 * 4
    assert adapters(TOY_QLORA, PASSED).size - adapters(TOY_QLORA, TOY).size == 2 * 48 * 2
    assert trained_tensors(TOY_LORA, PASSED) == trained_tensors(TOY_LORA, TOY)
    named = replace(TOY_LORA, lora_target_modules=("q_proj",))
    assert adapters(named, PASSED).size == adapters(named, TOY).size
    packed = weights(TOY_QLORA, PASSED).size - weights(TOY_QLORA, TOY).size
    assert packed == 2 * nf4_bytes(128) + 2 * 3 * 8


@given(copies=st.integers(1, 40), rows=st.integers(1, 512), tuning=st.sampled_from(list(Tuning)))
def test_a_larger_tower_that_text_passes_by_never_needs_less(copies, rows, tuning):
    spec = {Tuning.FULL: TOY_FULL, Tuning.LORA: TOY_LORA, Tuning.QLORA: TOY_QLORA}[tuning]
    one = replace(TOY, idle=(IdleTensors(shape=(rows, 64), copies=copies, layer="fc1"),))
    peaks = [estimate(spec, architecture).peak_allocated_bytes for architecture in (TOY, one)]
    assert peaks[0] <= peaks[1]


def test_what_a_tower_that_text_passes_by_has_no_answer_for():
    """peft refuses a module of Gemma 4's tower that holds a linear layer, by the name of the module."""
    inner = {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "hidden_size": 64, "intermediate_size": 64}
    inner |= {"num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 96}
    config = {"model_type": "gemma4", "text_config": inner, "vision_config": {"num_hidden_layers": 1}}
    read = read_architecture(config, model="m")

    def faults(**values: object) -> str:
        point = {"backend": "simulated", "gpu": "h100-80gb", "model": "m", "tuning": "lora", **values}
        try:
            refuse_without_form(parse_point(point, architecture_of=lambda _: read), read)
        except UsageError as error:
            return error.faults[0].sentence()
        return ""

    assert faults() == ""
    assert faults(lora_target_modules=["q_proj"]).endswith("peft refuses the name. Use lora_target_modules=all-linear.")
    assert "counted for rows of text alone" in faults(images_per_prompt=1)
    for values in ({"num_processes": 2}, {"critic": True, "tuning": "full"}):
        assert "a vision tower that rows of text pass by" in faults(**values)
    for fields, said in (
        ({"audio_config": {"hidden_size": "x"}}, "hidden_size"),
        ({"model_type": "gemma3", "audio_config": {"hidden_size": 8}}, "audio_config"),
        ({"vision_config": {"hidden_size": "x"}}, "hidden_size"),
        ({"model_type": "gemma3", "vision_config": {"patch_size": 14}}, "vision_use_head"),
    ):
        with pytest.raises(UsageError, match=said):
            read_architecture({**config, **fields}, model="m")


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


def test_a_tower_for_sound_has_the_parameters_of_the_model():
    """By hand, one block of 8: see `_conformer_tower`."""
    sound = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "conv_kernel_size": 3}
    sound |= {"output_proj_dims": 6, "subsampling_conv_channels": [8, 4]}
    inner = {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "hidden_size": 10, "intermediate_size": 64}
    inner |= {"num_hidden_layers": 6, "num_attention_heads": 4, "vocab_size": 96}
    config = {"model_type": "gemma4", "text_config": inner, "vision_config": {"num_hidden_layers": 1}}
    silent, whole = (read_architecture({**config, **more}, model="m") for more in ({}, {"audio_config": sound}))
    assert parameter_count(whole) - parameter_count(silent) == 2186
