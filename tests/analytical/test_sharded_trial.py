"""FSDP in the closed form: shards, gathered weights, whole gradients."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_strategies import architecture, assert_a_table_has_each_estimate, assert_each_number_has_a_short_form

from profiler.analytical.estimate import estimate, has_form, phase_instants
from profiler.analytical.formulas.layers.decoder_layer import attention_inputs_saved_bytes
from profiler.analytical.formulas.models.parameters import layer_parameter_count
from profiler.analytical.formulas.models.trained import element_bytes
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.analytical.timeline.sharding.fsdp import Fsdp, UnitGradients
from profiler.analytical.timeline.sharding.sharding import Units
from profiler.config.trials.specification import parse_point
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import DistributedType, TrialSpec, Tuning

MODEL = "qwen2.5-0.5b"
PARAMETERS = 494_032_768
ROOT = 151_936 * 896 + 896
REST = 180_224
"""Of the embedding's shard on 4 GPUs: 136,134,656 B in a segment of 65 x 2 MiB."""


def _spec(**keys: Any) -> TrialSpec:
    point = {"backend": "emulated", "gpu": "h100-80gb", "model": MODEL, **keys}
    return parse_point(point, architecture_of=architecture)


def _sharded(num_processes: int = 4, **keys: Any) -> TrialSpec:
    return _spec(num_processes=num_processes, distributed_type="fsdp", **keys)


def _instant(spec: TrialSpec, name: InstantName) -> dict[Category, int]:
    """The last one of the name: that of a forward right after a rollout comes before the others."""
    *_, found = (each for each in trial_instants(spec, architecture(spec.model)) if each.name is name and each.happens)
    return {category: int(size) for category, size in found.sizes.items()}


def _fsdp(num_processes: int = 4, **keys: Any) -> Fsdp:
    return Fsdp(_sharded(num_processes, **keys), architecture(MODEL))


def test_sizes_by_hand():
    found, layer = _fsdp(), (PARAMETERS - ROOT) // 24
    assert (found.units.root, found.units.layer) == (136_135_552, layer) == (ROOT, 14_912_384)
    assert found.weights.size == PARAMETERS + REST  # 4 B each on 4 GPUs
    assert found.whole_model_bytes == 4 * PARAMETERS
    assert found.whole_gradient_bytes == 2 * PARAMETERS
    assert found.gradient_shards.size == PARAMETERS  # every first dimension is a multiple of 4
    gathered = {stay: _sharded(fsdp_reshard_after_forward=not stay) for stay in (False, True)}
    for stay, layers in ((False, (2, 1, 2)), (True, (25, 24, 24))):
        names = (InstantName.FORWARD_LAYER, InstantName.BACKWARD_HEAD, InstantName.BACKWARD_LAYER)
        for name, number in zip(names, layers, strict=True):
            assert _instant(gathered[stay], name)[Category.COMMUNICATION] == 2 * (ROOT + number * layer)


def test_a_parameter_is_split_along_its_first_dimension():
    """On 3 GPUs the last one has fewer rows; Adafactor and the roots of AdamW need the shape of what is left."""
    embedding, *_, norm = _fsdp(num_processes=3).tensors
    assert embedding.shape == (50_646, 896)
    assert embedding.is_embedding
    assert norm.shape == (299,)


def test_only_adapters_are_trained_in_float32():
    found = _fsdp(tuning="lora")
    assert found.weights.size == 2 * PARAMETERS // 4
    assert found.adapters.size == 8_798_208
    assert found.whole_model_bytes == 2 * PARAMETERS + 4 * 8_798_208
    assert found.units.layer == 14_912_384 + 8_798_208 // 24


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_weights_are_gathered_in_bfloat16_whatever_their_type(dtype):
    """Trained weights have shards in float32; frozen ones keep the type that they were loaded in."""
    shape = architecture(MODEL)

    def peak(**keys: Any) -> int:
        return estimate(_sharded(**keys), shape).peak_allocated_bytes

    assert peak(dtype=dtype) == peak(dtype="bfloat16")
    wider = PARAMETERS // 2 + REST if dtype == "float32" else 0  # 2 B each on 4 GPUs
    assert peak(dtype=dtype, tuning="lora") == peak(dtype="bfloat16", tuning="lora") + wider


def test_layers_compute_with_adapters_in_bfloat16():
    shape = architecture(MODEL)
    alone, sharded = (_spec(tuning="lora"), _sharded(tuning="lora"))
    assert (element_bytes(alone).adapter, element_bytes(sharded).adapter) == (4, 2)
    # By hand, 10 tokens: q, k and v share one input of 896 values, and each has an output of A of rank 16.
    assert attention_inputs_saved_bytes(sharded, shape, 10) == 10 * (896 + 3 * 16) * 2
    assert attention_inputs_saved_bytes(alone, shape, 10) == 10 * 3 * (896 + 16) * 2


def test_the_step_by_hand():
    found = _instant(_sharded(), InstantName.STEP)
    assert found[Category.WEIGHTS] - REST == found[Category.GRADIENTS] == PARAMETERS
    assert 2 * PARAMETERS < found[Category.OPTIMIZER_STATE] < 2 * PARAMETERS + 10_000  # step counters
    assert found[Category.COMMUNICATION] == 0


def test_a_single_micro_batch_reduces_gradients_as_they_are_made():
    keys = {"gradient_accumulation_steps": 1, "steps_per_generation": 1, "per_device_train_batch_size": 4}
    layer = (PARAMETERS - ROOT) // 24
    at_once = _instant(_sharded(**keys), InstantName.BACKWARD_END)[Category.GRADIENTS]
    # Shards of 24 layers in float32 on 4 GPUs; of the root gradient and input of the reduction; the last layer's input.
    assert at_once == 24 * layer + 2 * 2 * ROOT + 2 * layer
    assert at_once < _instant(_sharded(), InstantName.BACKWARD_END)[Category.GRADIENTS]
    # In the first layer, shards of the 23 others, the input of the second layer's reduction, a tied head's gradient.
    # At its end, its own gradient in place of activations.
    found = trial_instants(_sharded(**keys), architecture(MODEL))
    end, first = (each.sizes for each in found if each.name is InstantName.BACKWARD_FIRST_LAYER and each.happens)
    assert first[Category.GRADIENTS] == 23 * layer + 2 * layer + 2 * 151_936 * 896
    assert end[Category.GRADIENTS] == first[Category.GRADIENTS] + 2 * layer
    assert Category.ACTIVATIONS not in end


def test_a_model_is_sharded_unit_by_unit_from_the_host():
    load = phase_instants(_sharded(), architecture(MODEL))[Phase.LOAD]
    assert load.name is InstantName.SHARDING
    assert load.total_bytes == PARAMETERS + REST + 4 * ROOT
    # trl makes a reference one unit, which is moved before the model.
    loads = [each for each in trial_instants(_sharded(beta=0.04), architecture(MODEL)) if each.phase is Phase.LOAD]
    reference = 2 * PARAMETERS // 4
    assert [each.total_bytes for each in loads] == [
        reference + 2 * PARAMETERS,
        reference + PARAMETERS + REST + 4 * ROOT,
    ]
    # vLLM starts while both are on the host.
    names = {each.name: each for each in trial_instants(_sharded(use_vllm=True), architecture(MODEL))}
    assert set(names[InstantName.ENGINE_START].sizes) == {Category.ENGINE}


def test_a_model_that_is_handed_out_has_a_tied_head_twice():
    """Tensor by tensor, the LM head last: the shards of all, one more of the head, and the whole head."""
    load = phase_instants(_sharded(fsdp_cpu_ram_efficient_loading=True), architecture(MODEL))[Phase.LOAD]
    head = 151_936 * 896
    assert load.total_bytes == PARAMETERS + REST + head + 4 * head
    # An LM head of its own is in the shards of all, and so is the embedding, which comes first.
    found = Fsdp(_sharded(model="qwen2.5-7b", fsdp_cpu_ram_efficient_loading=True), architecture("qwen2.5-7b"))
    terms = found.at_load(_loaded())[1].terms
    assert terms[Category.WEIGHTS].size == found.weights.size
    assert terms[Category.COMMUNICATION].size == 4 * 152_064 * 3_584
    # A tensor of a layer that is larger is there before the head has a shard.
    wide = replace(architecture("qwen2.5-7b"), intermediate_size=400_000)
    found = Fsdp(_sharded(model="qwen2.5-7b", fsdp_cpu_ram_efficient_loading=True), wide)
    whole = found.at_load(_loaded())[1].terms[Category.COMMUNICATION].size
    assert whole == 4 * 400_000 * 3_584 - 152_064 * 3_584


def test_a_layer_larger_than_the_head_is_the_largest_unit():
    wide = replace(architecture("qwen2.5-7b"), intermediate_size=200_000)
    found = Fsdp(_sharded(model="qwen2.5-7b"), wide)
    layer = layer_parameter_count(wide)
    shards = (found.weights.size - found.units.root) + 4 * layer
    assert sum(term.size for term in found.at_load(_loaded())[1].terms.values()) == shards


def _loaded() -> Instant:
    return Instant(phase=Phase.LOAD, name=InstantName.LOADED, terms={})


def test_an_embedding_of_its_own_is_a_unit():
    spec, shape = _sharded(model="qwen2.5-7b"), architecture("qwen2.5-7b")
    table, layer = 152_064 * 3_584, layer_parameter_count(shape)
    sizes = {each.name: each.sizes.get(Category.COMMUNICATION) for each in trial_instants(spec, shape)}
    tail = table + 3_584
    assert sizes[InstantName.FORWARD_LAYER] == 2 * 2 * layer  # the LM head is gathered after them
    assert sizes[InstantName.BACKWARD_HEAD] == 2 * (tail + layer)
    assert sizes[InstantName.BACKWARD_LAYER] == 2 * 2 * layer
    assert sizes[InstantName.BACKWARD_FIRST_LAYER] == 2 * (table + layer)
    assert sizes[InstantName.BACKWARD_END] == 2 * table
    assert sizes[InstantName.DECODING] == 2 * (tail + 2 * layer)
    # It is copied out next to its buffer, before each token too. So is the LM head, next to the last layer's.
    assert max(_copied_out(spec, Phase.ROLLOUT)) == 2 * (tail + 2 * table)
    assert 2 * (2 * tail + layer) in _copied_out(spec, Phase.FORWARD)
    # The backward of a frozen one ends when it has been copied out; without checkpointing there is its buffer alone.
    for checkpointing, copies in ((True, 2), (False, 1)):
        frozen = _sharded(model="qwen2.5-7b", recipe="sft", tuning="lora", gradient_checkpointing=checkpointing)
        assert _instant(frozen, InstantName.BACKWARD_END)[Category.COMMUNICATION] == 2 * copies * table


def _copied_out(spec: TrialSpec, phase: Phase) -> list[int]:
    """What is gathered while a unit is copied out, where it happens."""
    found = [each for each in trial_instants(spec, architecture(spec.model)) if each.name is InstantName.GATHERING]
    return [int(each.sizes[Category.COMMUNICATION]) for each in found if each.phase is phase and each.happens]


def test_a_tied_head_is_gathered_before_the_layers():
    spec, layer = _sharded(tuning="lora"), 14_912_384 + 8_798_208 // 24
    # With the buffers of the head and of the first layer, or with two of layers.
    for phase in (Phase.ROLLOUT, Phase.FORWARD):
        assert {2 * (2 * ROOT + 2 * layer), 2 * (ROOT + 3 * layer)} <= set(_copied_out(spec, phase))
    assert _instant(spec, InstantName.DECODING)[Category.COMMUNICATION] == 2 * (ROOT + 2 * layer)
    # What generates has gathered it, and no backward is between.
    assert set(_copied_out(_sharded(**_ONE_BACKWARD), Phase.FORWARD)) == {2 * (ROOT + 3 * 14_912_384)}


def test_layers_that_stay_have_a_buffer_where_gathered_anew():
    layers, layer = PARAMETERS - ROOT, 14_912_384
    spec = _sharded(fsdp_reshard_after_forward=False, **_ONE_BACKWARD)
    # A prefill gathers them, and the forward after it finds them.
    assert max(_copied_out(spec, Phase.ROLLOUT)) == 2 * (ROOT + layers + 2 * layer)
    assert _instant(spec, InstantName.PREFILL)[Category.COMMUNICATION] == 2 * (ROOT + layers + layer)
    assert _instant(spec, InstantName.FORWARD_LAYER)[Category.COMMUNICATION] == 2 * (ROOT + layers)
    anew = _sharded(fsdp_reshard_after_forward=False, recipe="sft")
    assert _instant(anew, InstantName.FORWARD_LAYER)[Category.COMMUNICATION] == 2 * (ROOT + layers + layer)


def test_a_reference_stays_gathered_to_the_end():
    """It has no backward, which alone would free it."""
    whole = 2 * PARAMETERS
    for stay, more in ((True, whole), (False, 0)):
        with_it, without = (
            _instant(_sharded(beta=beta, fsdp_reshard_after_forward=not stay), InstantName.STEP) for beta in (0.04, 0.0)
        )
        assert with_it[Category.COMMUNICATION] - without[Category.COMMUNICATION] == more


def test_logits_are_scored_after_the_forward_of_a_reference():
    spec, shape = _sharded(beta=0.04, logprobs="full"), architecture(MODEL)
    during, after = (
        each for each in trial_instants(spec, shape) if each.name is InstantName.SCORE_HEAD and each.happens
    )
    assert during.sizes[Category.COMMUNICATION] == 2 * (ROOT + 2 * PARAMETERS)
    assert after.sizes[Category.COMMUNICATION] == 2 * ROOT
    assert during.sizes[Category.LOGITS] < after.sizes[Category.LOGITS]


def test_the_last_layer_is_gathered_after_all_logits_gradients():
    """The unit of the LM head begins its backward with what it has made: log-probabilities, or logits."""
    layer = 14_912_384
    for logprobs, layers in (("fused", 1), ("full", 0)):
        found = _instant(_sharded(logprobs=logprobs), InstantName.BACKWARD_HEAD)
        assert found[Category.COMMUNICATION] == 2 * (ROOT + layers * layer)


@pytest.mark.parametrize(("mib", "rest"), [(25, 1), (24.5, 0), (9.5, 0), (25.5, 0.5)])
def test_a_small_rest_of_a_segment_is_allocated_too(mib, rest):
    found = _fsdp()._unsplit(int(mib * 2**20))
    assert found == rest * 2**20
    assert _fsdp(alloc_conf="expandable_segments:True")._unsplit(int(mib * 2**20)) == 0


def test_the_end_of_a_single_backward_by_hand():
    units = Units(embedding=0, tail=100, layer=10, layers=20)
    keys = {"units": units, "layers": 2, "largest_layer": 10, "has_kinds": False, "head": 90, "trains_everything": True}
    found = UnitGradients(**keys, whole_bytes=240, num_processes=2).at_once(InstantName.BACKWARD_END, 0, summed=0)
    # Shards of layers, the gradient and the input of its reduction, and 300 B of a shard in two types, less the head.
    assert found == 2 * 20 + 2 * 200 + 300 - 200
    many = UnitGradients(**keys, whole_bytes=240, num_processes=8).at_once(InstantName.BACKWARD_END, 0, summed=200)
    assert many == 10 + 2 * 200 + 200 + 20  # the sum of both gradients, and the input of the last layer's reduction


_ONE_BACKWARD = {"gradient_accumulation_steps": 1, "steps_per_generation": 1}
_SFT = {"recipe": "sft", "max_length": 1024}
EMULATED_PHASES = [
    ({"model": MODEL, "num_processes": 4}, (991.3, 2065.6, 1740.9, 3113.2, 3901.1, 1952.1)),
    ({"model": "qwen2.5-7b"}, (7792.5, 14997.0, 12007.3, 28875.3, 31277.8, 14623.2)),
    ({"model": "qwen2.5-7b", "tuning": "lora"}, (3916.1, 7009.5, 2979.8, 5335.3, 5903.8, 1958.3)),
    (
        {"model": "qwen2.5-7b", "fsdp_reshard_after_forward": False},
        (7792.5, 27266.6, 25500.9, 42360.3, 44314.6, 14620.8),
    ),
    ({"model": "llama-3.1-8b", **_SFT}, (7837.1, 30349.0, 32728.6, 15382.7)),
    ({"model": "llama-3.1-8b", "tuning": "lora", **_SFT}, (3940.3, 4899.6, 5019.5, 2060.9)),
]
"""Peaks of one of 8 GPUs in MiB from torch's counters on emulated cards, of every phase in order: load, rollout, ..."""


@pytest.mark.parametrize(("keys", "peaks"), EMULATED_PHASES)
def test_each_phase_is_near_the_emulation(keys, peaks):
    spec = _sharded(**{"num_processes": 8, **({} if "recipe" in keys else {"rollout": "synthetic"}), **keys})
    found = phase_instants(spec, architecture(spec.model))
    assert len(found) == len(peaks)
    for (phase, instant), mib in zip(found.items(), peaks, strict=True):
        # The loss of SFT with adapters gathers the head by a call of its own, a part at a time.
        of_loss = phase is Phase.FORWARD and "recipe" in keys and spec.tuning is Tuning.LORA
        bound = 0.09 if of_loss else 0.003 if phase is Phase.LOAD else 0.022
        assert instant.total_bytes / 2**20 == pytest.approx(mib, rel=bound), phase


_RUN = {"rollout": "synthetic", "gpu": "l40s-48gb"}
_FULL_LOGITS = {**_RUN, "model": MODEL, "max_prompt_length": 32, "max_completion_length": 200, "lengths": "forced"}
EMULATED_CLOSELY = [
    (
        {
            **_RUN,
            "model": "granite-3.3-8b",
            "tuning": "lora",
            "lora_rank": 8,
            "optim": "sgd",
            "beta": 0.04,
            "max_prompt_length": 64,
            "max_completion_length": 200,
            "per_device_train_batch_size": 2,
            "steps": 2,
            "gradient_accumulation_steps": 1,
            "steps_per_generation": 1,
        },
        (4424.0, 5677.8, 5593.4, 4440.3, 5754.3, 5497.4, 4080.0),
    ),
    (
        {
            "recipe": "sft",
            "model": "llama-3.1-8b",
            "tuning": "lora",
            "lora_rank": 64,
            "max_length": 512,
            "lora_target_modules": ["q_proj", "v_proj"],
            "lengths": "forced",
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "steps": 2,
        },
        (5859.4, 5979.2, 6010.9, 3997.3),
    ),
    (
        {
            "recipe": "sft",
            "model": "smollm3-3b",
            "tuning": "lora",
            "lora_rank": 4,
            "gpu": "rtx-4090-24gb",
            "lora_target_modules": ["q_proj", "v_proj"],
            "optim": "adamw_torch",
            "max_length": 128,
            "steps": 1,
            "lengths": "forced",
            "per_device_train_batch_size": 1,
            "gradient_accumulation_steps": 2,
            "gradient_checkpointing": False,
            "attn_implementation": "eager",
            "alloc_conf": "expandable_segments:True",
        },
        (1968.2, 2907.9, 2779.9, 1487.2),
    ),
    (
        {**_FULL_LOGITS, "beta": 0.04, "logprobs": "full", "gradient_accumulation_steps": 2, "steps_per_generation": 2},
        (1227.3, 2243.8, 4055.0, 1926.5, 3751.2, 3634.1, 2138.4),
    ),
    (
        {
            **_FULL_LOGITS,
            "beta": 0.04,
            "logprobs": "full",
            "fsdp_reshard_after_forward": False,
            "gradient_accumulation_steps": 1,
            "steps_per_generation": 2,
        },
        (1227.3, 3624.9, 4029.1, 3564.3, 4421.8, 4304.7, 3086.6),
    ),
    (
        {
            "num_processes": 2,
            "recipe": "sft",
            "model": "llama-3.2-3b",
            "optim": "sgd",
            "max_length": 256,
            "gradient_accumulation_steps": 1,
            "gradient_checkpointing": False,
            "steps": 2,
            "per_device_train_batch_size": 8,
            "fsdp_activation_checkpointing": True,
        },
        (7632.3, 8093.1, 14200.2, 12323.7),
    ),
]
"""As above, of the first of 4 GPUs, or of 2."""


@pytest.mark.parametrize(("keys", "peaks"), EMULATED_CLOSELY)
def test_each_phase_is_as_the_emulation(keys, peaks):
    spec = _sharded(**keys)
    found = phase_instants(spec, architecture(spec.model))
    assert len(found) == len(peaks)
    for (phase, instant), mib in zip(found.items(), peaks, strict=True):
        assert instant.total_bytes / 2**20 == pytest.approx(mib, rel=0.007), phase


SPLIT = [
    ({"model": "llama-3.1-8b", "tuning": "lora", "cp_size": 4, "max_length": 16_384}, 6_844.8, 6_908.7),
    (
        {"model": "qwen2.5-1.5b", "cp_size": 4, "max_length": 32_768, "gradient_accumulation_steps": 2},
        9_262.2,
        10_464.7,
    ),
    ({"model": "qwen2.5-1.5b", "cp_size": 2, "max_length": 4_096}, 5_654.5, 7_258.1),
]
"""MiB in forward and backward of the first of 4 emulated GPUs whose rows ring attention splits, by torch's counters."""


@pytest.mark.parametrize(("keys", "forward", "backward"), SPLIT)
def test_rows_that_are_split_are_near_the_emulation(keys, forward, backward):
    fixed = {"recipe": "sft", "lengths": "forced", "per_device_train_batch_size": 1, "gradient_accumulation_steps": 1}
    spec = _sharded(**{**fixed, **keys})
    found = phase_instants(spec, architecture(spec.model))
    # Counting whole rows would be up to 86 % too high. The forward lacks what the loss gathers of the head.
    assert found[Phase.BACKWARD].total_bytes / 2**20 == pytest.approx(backward, rel=0.011)
    assert found[Phase.FORWARD].total_bytes / 2**20 == pytest.approx(forward, rel=0.065)
    assert found[Phase.FORWARD].total_bytes <= found[Phase.BACKWARD].total_bytes


WIDE = [
    ({"recipe": "sft", "lengths": "forced"}, 4_166_195_712),
    ({"recipe": "sft", "lengths": "forced", "tuning": "lora"}, 1_424_471_552),
    ({"recipe": "sft", "lengths": "forced", "tuning": "lora", "dtype": "float16"}, 1_177_502_720),
    ({"recipe": "dpo", "lengths": "forced"}, 6_003_830_784),
    ({"recipe": "dpo", "lengths": "forced", "dtype": "float16"}, 5_754_109_440),
    ({"recipe": "grpo", "lengths": "forced", "rollout": "synthetic", "tuning": "lora"}, 1_433_424_384),
]
"""Bytes of rank 0 of 4, by torch's counters on an emulated card: keys, in float32 unless stated, and the peak."""


@pytest.mark.parametrize(("keys", "peak"), WIDE)
def test_weights_of_other_types_are_near_the_emulation(keys, peak):
    spec = _sharded(**{"dtype": "float32", **keys})
    assert estimate(spec, architecture(MODEL)).peak_allocated_bytes == pytest.approx(peak, rel=0.005)


@pytest.mark.parametrize(("logprobs", "peak"), [("chunked_nll", 5_956_437_504), ("chunked_nll_cast", 5_331_059_200)])
def test_a_loss_in_chunks_is_near_the_emulation_of_trl(logprobs, peak):
    """Without autocast around the model, a widened head and its product stay in float32: trl 1.7.1 and 1.14.2."""
    keys = {"recipe": "sft", "lengths": "forced", "max_length": 513, "gradient_accumulation_steps": 2}
    spec = _sharded(2, **keys, logprobs=logprobs)
    assert estimate(spec, architecture(MODEL)).peak_allocated_bytes == pytest.approx(peak, rel=0.003)


# Compared with torch's counters on emulated cards (`+grid=fsdp`, qwen2.5-3b and 7b; torch 2.13, accelerate 1.15).
EMULATED = {
    ("qwen2.5-3b", 4, True): 17.84,
    ("qwen2.5-3b", 8, True): 13.51,
    ("qwen2.5-3b", 8, False): 18.54,
    ("qwen2.5-7b", 8, True): 30.54,
    ("qwen2.5-7b", 4, True): 41.27,
    ("qwen2.5-7b", 8, False): 43.37,
}


@pytest.mark.parametrize(("model", "gpus", "reshard"), EMULATED)
def test_the_estimate_is_near_the_emulation(model, gpus, reshard):
    spec = _sharded(gpus, model=model, rollout="synthetic", fsdp_reshard_after_forward=reshard)
    found = estimate(spec, architecture(model)).peak_allocated_bytes / 2**30
    assert found == pytest.approx(EMULATED[model, gpus, reshard], rel=0.015)


@pytest.mark.parametrize(
    "keys",
    [
        {"fsdp_version": 1},
        {"fsdp_offload_params": True},
        {"logprobs": "sliced"},
    ],
)
def test_what_has_no_formula_is_refused_by_name(keys):
    spec, shape = _sharded(**keys), architecture(MODEL)
    assert not has_form(spec, shape)
    (key,) = keys
    with pytest.raises(UsageError, match=f"{key}=.*has no closed-form estimate together with distributed_type=fsdp"):
        estimate(spec, shape)


@pytest.mark.parametrize("optim", ["adafactor", "adamw_8bit", "paged_adamw_32bit", "lion_32bit"])
def test_an_optimizer_without_shards_fails_under_fsdp(optim):
    """FSDP 1 keeps plain tensors, and DeepSpeed too."""
    shape = architecture(MODEL)
    with pytest.raises(UsageError, match=f"optim={optim}: takes no DTensor in torch 2.13"):
        estimate(_sharded(optim=optim), shape)
    with pytest.raises(UsageError, match="fsdp_version=1: has no closed-form"):
        estimate(_sharded(optim=optim, fsdp_version=1), shape)
    for kept in ("adamw_torch", "adamw_torch_fused", "sgd"):
        assert has_form(_sharded(optim=kept), shape)


SFT_OF_4 = {"distributed_type": "fsdp", "num_processes": 4, "recipe": "sft"}


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"distributed_type": "fsdp"}, "distributed_type=fsdp: needs several GPUs, and num_processes is 1"),
        ({"distributed_type": "no", "num_processes": 2}, "distributed_type=no: does not train on num_processes=2"),
        ({"distributed_type": "fsdp", "num_processes": 2, "fsdp_version": 3}, "fsdp_version=3: must be 1 or 2"),
        (
            {"distributed_type": "fsdp", "num_processes": 2, "fsdp_activation_checkpointing": True},
            "fsdp_activation_checkpointing=true: cannot be combined with gradient_checkpointing=true",
        ),
        *(
            (
                {**SFT_OF_4, "cp_size": 4, **keys},
                "cp_size=4: splits each row over GPUs, which trl's GRPO and RLOO refuse",
            )
            for keys in (
                {"recipe": "grpo"},
                {"fsdp_version": 1},
                {"attn_implementation": "eager"},
                {"num_processes": 6},
                {"max_length": 1_020},
            )
        ),
        ({"distributed_type": "tpu"}, "distributed_type=tpu: must be one of no, multi_gpu, fsdp, deepspeed"),
    ],
)
def test_a_combination_that_does_not_exist_is_refused(keys, problem):
    with pytest.raises(UsageError) as caught:
        _spec(**keys)
    assert problem in caught.value.faults[0].sentence()


def test_several_gpus_train_by_ddp_by_default():
    assert _spec().distributed_type is DistributedType.NO
    assert _spec(distributed_type=False).distributed_type is DistributedType.NO
    assert _spec(num_processes=2).distributed_type is DistributedType.MULTI_GPU
    assert _spec(num_processes=2, distributed_type="ddp").distributed_type is DistributedType.MULTI_GPU
    assert _spec(num_processes=2, fsdp_version=2).distributed_type is DistributedType.FSDP
    assert _spec(num_processes=2, fsdp_version=2, distributed_type="ddp").fsdp_version is None
    assert _sharded().fsdp_version == 2
    assert _sharded().fsdp_reshard_after_forward is True


@pytest.mark.parametrize(
    ("model", "mib"),
    # What DDP has while loading, from torch's counters on emulated cards (`+grid=fsdp`).
    [(MODEL, 1_892), ("qwen2.5-1.5b", 5_890), ("qwen2.5-3b", 11_880), ("qwen2.5-7b", 29_095)],
)
def test_ddp_makes_its_buckets_before_training(model, mib):
    found = phase_instants(_spec(num_processes=2, model=model), architecture(model))[Phase.LOAD]
    assert found.name is InstantName.REPLICATED
    assert found.total_bytes / 2**20 == pytest.approx(mib, rel=0.01)


def test_ddp_sends_the_model_in_parts_by_hand():
    # In float32 two full tensors are on their way; in bfloat16 adapters come between the first one and the last two.
    two, first = 2 * 250 * 2**20, 250 * 2**20
    spec = _spec(num_processes=2, tuning="lora", dtype="float32")
    assert phase_instants(spec, architecture(MODEL))[Phase.LOAD].sizes[Category.COMMUNICATION] == two
    found = phase_instants(_spec(num_processes=2, tuning="lora"), architecture(MODEL))[Phase.LOAD].sizes
    assert found[Category.COMMUNICATION] == found[Category.WEIGHTS] - 272_269_312 - first < two
    # A reward model has no LM head. torch's counters on emulated cards: 2,427.5 and 1,410.0 MiB.
    for dtype, mib in (("float32", 2_427.5), ("bfloat16", 1_410.0)):
        scores = _spec(num_processes=2, tuning="lora", dtype=dtype, recipe="reward")
        assert phase_instants(scores, architecture(MODEL))[Phase.LOAD].total_bytes / 2**20 == pytest.approx(
            mib, rel=0.005
        )
    # The LM head of qwen2.5-7b is its own. torch's counters on emulated cards (SFT, KTO): 16,043.9 and 1,410.4 MiB.
    seven, half = architecture("qwen2.5-7b"), architecture(MODEL)
    found = phase_instants(_spec(num_processes=2, tuning="lora", model="qwen2.5-7b"), seven)[Phase.LOAD]
    assert found.sizes[Category.COMMUNICATION] == 250 * 2**20 + 2 * 152_064 * 3_584
    assert found.total_bytes / 2**20 == pytest.approx(16_043.9, rel=0.006)
    found = phase_instants(_spec(num_processes=2, tuning="lora"), half)[Phase.LOAD]
    assert found.total_bytes / 2**20 == pytest.approx(1_410.4, rel=0.005)
    alone = phase_instants(_spec(tuning="lora"), architecture(MODEL))[Phase.LOAD].sizes
    assert Category.COMMUNICATION not in alone
    # In 4 bits all of it is less than 2 x 250 MiB, and the embedding of 151,936 x 896 x 2 B is sent as it is.
    found = trial_instants(_spec(num_processes=2, tuning="qlora"), half)
    (packed,) = (each.sizes for each in found if each.name is InstantName.REPLICATED)
    copied = 457_187_808 - 272_269_312 + packed[Category.ADAPTERS]
    assert packed[Category.COMMUNICATION] == copied < 2 * 250 * 2**20
    tiny = architecture("tiny")
    sizes = phase_instants(_spec(num_processes=2, model="tiny"), tiny)[Phase.LOAD].sizes
    # A small model is sent at once, in which its buckets are as large.
    assert sizes[Category.COMMUNICATION] == sizes[Category.WEIGHTS]


@st.composite
def _jobs(draw: st.DrawFn) -> TrialSpec:
    batch = draw(st.sampled_from([1, 4, 8]))
    checkpointing = draw(st.sampled_from(["model", "fsdp", "none"]))
    return _sharded(
        draw(st.sampled_from([2, 4, 8])),
        model=draw(st.sampled_from([MODEL, "qwen2.5-7b", "llama-3.2-1b"])),
        tuning=draw(st.sampled_from(["full", "lora"])),
        optim=draw(st.sampled_from(["adamw_torch_fused", "adamw_torch", "sgd"])),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=draw(st.sampled_from([4, 8])),
        gradient_checkpointing=checkpointing == "model",
        fsdp_activation_checkpointing=checkpointing == "fsdp",
        fsdp_reshard_after_forward=draw(st.booleans()),
        beta=draw(st.sampled_from([0.0, 0.04])),
        max_completion_length=draw(st.sampled_from([64, 786])),
        num_generations=4,
    )


@given(_jobs())
def test_more_gpus_and_resharding_never_need_more(spec):
    shape = architecture(spec.model)
    keys = {key: getattr(spec, key) for key in ("model", "tuning", "optim", "max_completion_length")}

    def peak(gpus: int, *, reshard: bool) -> int:
        return estimate(_sharded(gpus, **keys, fsdp_reshard_after_forward=reshard), shape).peak_allocated_bytes

    assert peak(8, reshard=True) <= peak(2, reshard=True) <= peak(2, reshard=False)


@settings(max_examples=30)
@given(st.lists(_jobs(), min_size=1, max_size=4))
def test_arrays_agree_with_single_estimates(specs):
    assert_a_table_has_each_estimate(specs, with_grpo=False)


@settings(max_examples=20)
@given(_jobs())
def test_every_number_has_a_short_form(spec):
    assert_each_number_has_a_short_form(spec)


@pytest.mark.parametrize("logprobs", ["selective", "selective_kept"])
def test_log_probabilities_have_the_type_of_the_outputs(logprobs):
    """trl makes them outside of autocast, and FSDP returns bfloat16."""
    keys = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 16, "lengths": "forced"}
    found = _instant(_sharded(logprobs=logprobs, **keys), InstantName.BACKWARD_HEAD)
    kept, gradients = 2 * 16 * 151_936 * 2, 2 * 16 * 151_936 * 2
    assert found[Category.LOGITS] == kept + gradients + 12 * 2 * 16 * 4


def test_the_kernel_of_logits_with_fsdp_by_hand():
    keys = {"num_generations": 2, "per_device_train_batch_size": 2, "max_completion_length": 16, "lengths": "forced"}
    spec = _sharded(logprobs="selective_kernel", **keys)
    whole, scored, loss = 2 * 17 * 151_936 * 2, 2 * 16 * 151_936 * 2, 12 * 2 * 16 * 4
    assert _instant(spec, InstantName.FORWARD_HEAD)[Category.LOGITS] == whole + loss
    assert _instant(spec, InstantName.BACKWARD_HEAD)[Category.LOGITS] == whole + scored + loss


_COPIED = {"tuning": "lora", "lora_rank": 16, "beta": 0.1, "recipe": "grpo"}
_ADAPTERS = 8_798_208


def _more_of_copy(name: InstantName, **keys: Any) -> dict[Category, int]:
    sizes = [_instant(_spec(num_processes=4, **_COPIED, **keys, ref_adapter=copied), name) for copied in (True, False)]
    found = {category: sizes[0].get(category, 0) - sizes[1].get(category, 0) for category in Category}
    return {category: size for category, size in found.items() if size}


def test_a_copy_of_adapters_by_hand():
    layer = _ADAPTERS // 24
    fsdp: dict[str, Any] = {"distributed_type": "fsdp"}
    # A shard in float32, and two layers' parts of it gathered in bfloat16.
    assert _more_of_copy(InstantName.BACKWARD_LAYER, **fsdp) == {
        Category.REFERENCE: _ADAPTERS,
        Category.COMMUNICATION: 2 * 2 * layer,
    }
    assert _more_of_copy(InstantName.STEP, **fsdp) == {Category.REFERENCE: _ADAPTERS}
    zero: dict[str, Any] = {"distributed_type": "deepspeed"}
    for stage in (0, 1, 2):
        assert _more_of_copy(InstantName.STEP, **zero, zero_stage=stage) == {Category.REFERENCE: 2 * _ADAPTERS}

    # Stage 3 leaves adapters of a model that the trainer gets in float32.
    with pytest.raises(UsageError, match="ref_adapter="):
        estimate(_spec(num_processes=4, **_COPIED, **zero, zero_stage=3, ref_adapter=True), architecture(MODEL))
