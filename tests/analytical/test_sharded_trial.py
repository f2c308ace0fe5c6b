"""FSDP in the closed form: shards, gathered weights, whole gradients."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analytical.estimate import estimate, has_form, phase_instants
from profiler.analytical.explanation.explained import explain
from profiler.analytical.formulas.layers.decoder_layer import attention_inputs_saved_bytes
from profiler.analytical.formulas.models.trained import element_bytes
from profiler.analytical.formulas.sizes.quantities import LONGEST
from profiler.analytical.many import estimate_specs
from profiler.analytical.timeline.instants import InstantName
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.analytical.timeline.sharding.fsdp import Fsdp
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import DistributedType, TrialSpec

MODEL = "qwen2.5-0.5b"
PARAMETERS = 494_032_768
ROOT = 151_936 * 896 + 896


def _architecture(model: str) -> Architecture:
    found = builtin_architecture(model)
    assert found is not None
    return found


def _spec(**keys: Any) -> TrialSpec:
    point = {"backend": "emulated", "gpu": "h100-80gb", "model": MODEL, **keys}
    return parse_point(point, architecture_of=_architecture)


def _sharded(num_processes: int = 4, **keys: Any) -> TrialSpec:
    return _spec(num_processes=num_processes, distributed_type="fsdp", **keys)


def _instant(spec: TrialSpec, name: InstantName) -> dict[Category, int]:
    found = next(each for each in trial_instants(spec, _architecture(spec.model)) if each.name is name)
    return {category: int(size) for category, size in found.sizes.items()}


def _fsdp(num_processes: int = 4, **keys: Any) -> Fsdp:
    return Fsdp(_sharded(num_processes, **keys), _architecture(MODEL))


def test_sizes_by_hand():
    found, layer = _fsdp(), (PARAMETERS - ROOT) // 24
    assert (found.units.root, found.units.layer) == (136_135_552, layer) == (ROOT, 14_912_384)
    assert found.weights.size == PARAMETERS  # 4 B each on 4 GPUs
    assert found.whole_model_bytes == 4 * PARAMETERS
    assert found.whole_gradient_bytes == 2 * PARAMETERS
    assert found.gradient_shards.size == PARAMETERS  # every first dimension is a multiple of 4
    assert found.gathered_bytes(layers_stay=False) == 2 * (ROOT + 2 * layer)
    assert found.gathered_bytes(layers_stay=True) == 2 * (ROOT + 25 * layer)


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


def test_layers_compute_with_adapters_in_bfloat16():
    shape = _architecture(MODEL)
    alone, sharded = (_spec(tuning="lora"), _sharded(tuning="lora"))
    assert (element_bytes(alone).adapter, element_bytes(sharded).adapter) == (4, 2)
    # By hand, 10 tokens: q, k and v share one input of 896 values, and each has an output of A of rank 16.
    assert attention_inputs_saved_bytes(sharded, shape, 10) == 10 * (896 + 3 * 16) * 2
    assert attention_inputs_saved_bytes(alone, shape, 10) == 10 * 3 * (896 + 16) * 2


def test_the_step_by_hand():
    found = _instant(_sharded(), InstantName.STEP)
    assert found[Category.WEIGHTS] == found[Category.GRADIENTS] == PARAMETERS
    assert 2 * PARAMETERS < found[Category.OPTIMIZER_STATE] < 2 * PARAMETERS + 10_000  # step counters
    assert found[Category.COMMUNICATION] == 0


def test_a_single_micro_batch_reduces_gradients_as_they_are_made():
    keys = {"gradient_accumulation_steps": 1, "steps_per_generation": 1, "per_device_train_batch_size": 4}
    layer = (PARAMETERS - ROOT) // 24
    at_once = _instant(_sharded(**keys), InstantName.BACKWARD_END)[Category.GRADIENTS]
    # Shards of 24 layers in float32 on 4 GPUs; of the root gradient and input of the reduction; the last layer's input.
    assert at_once == 24 * layer + 2 * 2 * ROOT + 2 * layer
    assert at_once < _instant(_sharded(), InstantName.BACKWARD_END)[Category.GRADIENTS]


def test_sharding_the_model_has_the_whole_model_and_its_shards():
    load = phase_instants(_sharded(), _architecture(MODEL))[Phase.LOAD]
    assert load.name is InstantName.SHARDING
    assert load.total_bytes == 5 * PARAMETERS


def test_checkpointing_by_fsdp_keeps_as_much_as_by_the_model():
    own = _sharded(gradient_checkpointing=False, fsdp_activation_checkpointing=True)
    assert estimate(own, _architecture(MODEL)) == estimate(_sharded(), _architecture(MODEL))


def test_a_reference_model_is_sharded_and_gathered_whole():
    spec, alone = _sharded(beta=0.04), _sharded()
    reward = _instant(spec, InstantName.REWARD)
    assert reward[Category.REFERENCE] == 2 * PARAMETERS // 4
    assert _instant(spec, InstantName.SCORE_HEAD)[Category.COMMUNICATION] == 2 * ROOT + 4 * PARAMETERS
    assert _instant(alone, InstantName.REWARD)[Category.REFERENCE] == 0
    # Emulated (torch 2.13, trl 1.16): 4,236,139,008 B while the reference scores, of 4,314,881,536 B in all.
    found = phase_instants(_sharded(beta=0.04, rollout="synthetic", steps=2), _architecture(MODEL))
    assert found[Phase.SCORE].total_bytes == pytest.approx(4_236_139_008, rel=0.01)
    assert found[Phase.BACKWARD].total_bytes == pytest.approx(4_314_881_536, rel=0.01)


# Compared with torch's counters on emulated cards (`+grid=fsdp`, qwen2.5-3b and 7b; torch 2.13, accelerate 1.15).
EMULATED = {
    ("qwen2.5-3b", 4, True): 17.84,
    ("qwen2.5-3b", 8, True): 13.51,
    ("qwen2.5-3b", 8, False): 18.54,
    ("qwen2.5-7b", 8, True): 32.01,
    ("qwen2.5-7b", 4, True): 41.27,
    ("qwen2.5-7b", 8, False): 43.37,
}


@pytest.mark.parametrize(("model", "gpus", "reshard"), EMULATED)
def test_the_estimate_is_near_the_emulation(model, gpus, reshard):
    spec = _sharded(gpus, model=model, rollout="synthetic", fsdp_reshard_after_forward=reshard)
    found = estimate(spec, _architecture(model)).peak_allocated_bytes / 2**30
    assert found == pytest.approx(EMULATED[model, gpus, reshard], rel=0.04)


@pytest.mark.parametrize(
    "keys",
    [
        {"fsdp_version": 1},
        {"fsdp_offload_params": True},
        {"optim": "adamw_8bit"},
        {"logprobs": "sliced"},
        {"dtype": "float32"},
    ],
)
def test_what_has_no_formula_is_refused_by_name(keys):
    spec, shape = _sharded(**keys), _architecture(MODEL)
    assert not has_form(spec, shape)
    (key,) = keys
    with pytest.raises(UsageError, match=f"{key}=.*has no closed-form estimate together with distributed_type=fsdp"):
        estimate(spec, shape)


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
    assert _spec(num_processes=2, fsdp_version=2).fsdp_version is None
    assert _sharded().fsdp_version == 2
    assert _sharded().fsdp_reshard_after_forward is True


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
    shape = _architecture(spec.model)
    keys = {key: getattr(spec, key) for key in ("model", "tuning", "optim", "max_completion_length")}

    def peak(gpus: int, *, reshard: bool) -> int:
        return estimate(_sharded(gpus, **keys, fsdp_reshard_after_forward=reshard), shape).peak_allocated_bytes

    assert peak(8, reshard=True) <= peak(2, reshard=True) <= peak(2, reshard=False)


@settings(max_examples=30)
@given(st.lists(_jobs(), min_size=1, max_size=4))
def test_arrays_agree_with_single_estimates(specs):
    architectures = {spec.model: _architecture(spec.model) for spec in specs}
    table = estimate_specs(specs, architectures)
    for row, spec in enumerate(specs):
        one = estimate(spec, architectures[spec.model])
        assert int(table.peak_allocated_bytes[row]) == one.peak_allocated_bytes
        assert int(table.peak_reserved_bytes[row]) == one.peak_reserved_bytes


@settings(max_examples=20)
@given(_jobs())
def test_every_number_has_a_short_form(spec):
    explained = explain(spec, _architecture(spec.model))
    for phase in explained.phases:
        for share in phase.shares:
            assert share.short_form
            assert len(share.short_form) <= LONGEST
