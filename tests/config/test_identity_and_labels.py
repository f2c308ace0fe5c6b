"""Properties of specifications: JSON and back, trial ids, labels, expansion of grids."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.config.trials.grid import Grid, expand
from profiler.config.trials.identity import labels, spec_from_mapping, spec_to_mapping, trial_id
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.labels import key_words
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    SPEC_KEYS,
    Attention,
    Backend,
    DistributedType,
    Dtype,
    Lengths,
    Logprobs,
    Rollout,
    TrialSpec,
    Tuning,
    Weights,
)

VERSIONS = Versions(torch="2.13.0", trl="1.16.0", transformers="5.23.0", peft=None, bitsandbytes=None, profiler="0.1")

counts = st.integers(1, 3)
texts = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Z")), min_size=1).filter(
    lambda text: text == text.strip() and text
)


@st.composite
def specs(draw):
    tuning = draw(st.sampled_from(Tuning))
    adapter = tuning is not Tuning.FULL
    return TrialSpec(
        backend=draw(st.sampled_from(Backend)),
        recipe=draw(st.sampled_from(Recipe)),
        gpu=draw(st.sampled_from([None, "t4-16gb", "h100-80gb"])),
        model=draw(st.sampled_from(["tiny", "qwen2.5-0.5b"])),
        weights=draw(st.sampled_from(Weights)),
        dataset=draw(st.none() | texts),
        tuning=tuning,
        lora_rank=draw(counts) if adapter else None,
        lora_alpha=draw(counts) if adapter else None,
        lora_target_modules=tuple(draw(st.lists(texts, min_size=1, max_size=3))) if adapter else None,
        optim=draw(st.sampled_from(Optimizer)),
        num_generations=draw(counts),
        max_prompt_length=draw(counts),
        max_completion_length=draw(counts),
        lengths=draw(st.sampled_from(Lengths)),
        per_device_train_batch_size=draw(counts),
        gradient_accumulation_steps=draw(counts),
        steps_per_generation=draw(counts),
        gradient_checkpointing=draw(st.booleans()),
        beta=draw(st.floats(0, 1)),
        attn_implementation=draw(st.sampled_from(Attention)),
        dtype=draw(st.sampled_from(Dtype)),
        bf16=draw(st.booleans()),
        logprobs=draw(st.sampled_from([each for each in Logprobs if each.is_of_completions])),
        rollout=draw(st.sampled_from(Rollout)),
        steps=draw(counts),
        alloc_conf=draw(st.sampled_from(["", "a:b,c:d", "a:b"])),
        seed=draw(counts),
    )


SPEC = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="tiny")
LORA = replace(SPEC, tuning=Tuning.LORA, lora_rank=16, lora_alpha=32, lora_target_modules=("all-linear",))


@given(specs())
def test_a_spec_survives_json(spec):
    assert spec_from_mapping(json.loads(json.dumps(spec_to_mapping(spec)))) == spec


@given(specs(), specs())
def test_equal_ids_mean_equal_specs(one, other):
    assert (trial_id(one, VERSIONS) == trial_id(other, VERSIONS)) == (one == other)


def test_an_id_depends_on_content_and_versions():
    # Stored results are found by their ids, so a changed id loses them.
    assert trial_id(SPEC, VERSIONS) == trial_id(replace(SPEC), VERSIONS)
    assert len(trial_id(SPEC, VERSIONS)) == 16
    assert trial_id(SPEC, VERSIONS) != trial_id(SPEC, replace(VERSIONS, torch="2.12.0"))


def test_trials_by_fsdp_run_again_if_made_otherwise(monkeypatch):
    alone, sharded = (
        replace(SPEC, num_processes=2),
        replace(SPEC, num_processes=2, distributed_type=DistributedType.FSDP),
    )
    before = [trial_id(spec, VERSIONS) for spec in (alone, sharded)]
    monkeypatch.setattr("profiler.config.trials.identity._MODEL_OF_FSDP", "made on the card")
    after = [trial_id(spec, VERSIONS) for spec in (alone, sharded)]
    assert (before[0] == after[0], before[1] == after[1]) == (True, False)


def test_only_the_id_of_an_emulated_trial_depends_on_cuda_and_the_emulation():
    emulated = replace(SPEC, backend=Backend.EMULATED)
    of_a_build = replace(VERSIONS, cuda="13.0", emulation="1")
    others = (replace(of_a_build, cuda="12.8"), replace(of_a_build, emulation="2"), VERSIONS)
    assert len({trial_id(emulated, versions) for versions in (of_a_build, *others)}) == 4
    assert len({trial_id(SPEC, versions) for versions in (of_a_build, *others)}) == 1
    assert trial_id(emulated, of_a_build) != trial_id(replace(emulated, gpu="t4-16gb"), of_a_build)
    assert trial_id(emulated, VERSIONS) != trial_id(SPEC, VERSIONS)


@pytest.mark.parametrize("change", [{"seed": "x"}, {"optim": "x"}, {"lora_target_modules": "q_proj"}])
def test_a_specification_with_wrong_values_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        spec_from_mapping({**spec_to_mapping(SPEC), **change})


def test_a_number_is_no_flag_also_after_a_flag_was_read():
    """Values that were read before are kept, and `True` equals 1."""
    values = spec_to_mapping(SPEC)
    assert values["bf16"] is True
    spec_from_mapping(values)
    with pytest.raises(ValueError, match="bf16"):
        spec_from_mapping({**values, "bf16": 1})


def test_missing_and_unknown_keys_are_refused():
    values = spec_to_mapping(SPEC)
    with pytest.raises(ValueError, match="steps"):
        spec_from_mapping({key: value for key, value in values.items() if key != "steps"})
    with pytest.raises(ValueError, match="stepz"):
        spec_from_mapping({**values, "stepz": 1})


@given(st.lists(specs(), max_size=8))
def test_labels_are_equal_exactly_if_specs_are_apart_from_the_model(sampled):
    pairs = [(label, replace(spec, model="any")) for label, spec in zip(labels(sampled), sampled, strict=True)]
    assert len(set(pairs)) == len({label for label, _ in pairs}) == len({spec for _, spec in pairs})


def test_methods():
    full = replace(SPEC, gradient_checkpointing=False)
    plan = [
        full,
        replace(full, optim=Optimizer.ADAMW_8BIT),
        replace(SPEC, optim=Optimizer.ADAMW_8BIT),
        replace(LORA, gradient_checkpointing=False),
        LORA,
        replace(LORA, tuning=Tuning.QLORA),
    ]
    written = ["full", "full + 8-bit", "full + 8-bit + checkpointing", "LoRA", "LoRA + checkpointing"]
    assert labels(plan) == [*written, "QLoRA + checkpointing"]


def test_a_label_states_one_of_two_keys_that_vary_together():
    groups = [
        replace(SPEC, num_generations=count, per_device_train_batch_size=count, model=model)
        for model in ("tiny", "qwen2.5-0.5b")
        for count in (4, 8)
    ]
    assert labels(groups) == ["full + checkpointing, num_generations=4", "full + checkpointing, num_generations=8"] * 2


def test_a_label_states_an_optimizer_that_the_method_does_not_name():
    plan = [replace(SPEC, optim=optim) for optim in (Optimizer.SGD, Optimizer.ADAMW_8BIT, Optimizer.ADAFACTOR)]
    assert labels(plan) == [f"full + checkpointing, optim={name}" for name in ("sgd", "adamw_8bit", "adafactor")]


def test_the_label_of_full_fine_tuning_states_no_key_of_adapters():
    plan = [SPEC, LORA, replace(LORA, lora_rank=8, lora_alpha=16)]
    with_rank = ["LoRA + checkpointing, lora_rank=16", "LoRA + checkpointing, lora_rank=8"]
    assert labels(plan) == ["full + checkpointing", *with_rank]


keys = st.sampled_from(["model", "seed", "steps", "beta", "optim"])
values = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


@given(st.dictionaries(keys, values), st.dictionaries(keys, values))
def test_an_override_replaces_its_key_at_every_point_and_nothing_else(axes, overrides):
    grid = Grid(name="g", question="", base={"model": 9, "seed": 9, "lengths": "x"}, axes=axes, cases=({},))
    points = expand(grid, overrides)
    plain = expand(grid, {})
    for key in SPEC_KEYS:
        found = {point.get(key) for point in points}
        assert found == set(overrides.get(key, [point.get(key) for point in plain]))
    assert len({repr(sorted(point.items())) for point in points}) == len(points)


@given(st.dictionaries(keys, values))
def test_a_grid_without_repeated_values_is_the_whole_product(axes):
    unique = {key: tuple(dict.fromkeys(found)) for key, found in axes.items()}
    size = 1
    for found in unique.values():
        size *= len(found)
    grid = Grid(name="g", question="", base={}, axes=unique, cases=({"lengths": "a"}, {"lengths": "b"}))
    assert len(expand(grid, {})) == 2 * size


def _on(gpus, kind, stage=None):
    return replace(SEVERAL, num_processes=gpus, distributed_type=kind, zero_stage=stage)


SEVERAL = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="tiny")
ZERO, FSDP, DDP, ONE = DistributedType.DEEPSPEED, DistributedType.FSDP, DistributedType.MULTI_GPU, DistributedType.NO


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        (
            [_on(1, ONE), _on(2, DDP), _on(8, FSDP), _on(8, ZERO, 2), _on(8, ZERO, 3)],
            ["1 GPU", "2 GPUs, DDP", "8 GPUs, FSDP", "8 GPUs, ZeRO-2", "8 GPUs, ZeRO-3"],
        ),
        ([_on(4, FSDP), _on(4, ZERO, 3)], ["FSDP", "ZeRO-3"]),
        ([_on(4, ZERO, 1), _on(4, ZERO, 3)], ["ZeRO-1", "ZeRO-3"]),
        ([_on(4, ZERO, 3), _on(8, ZERO, 3)], ["4 GPUs", "8 GPUs"]),
    ],
)
def test_a_label_states_how_gpus_train_together_in_words(specs, said):
    assert labels(specs) == [f"full + checkpointing, {words}" for words in said]


def test_words_of_keys_leave_out_what_others_name():
    trial = vars(_on(4, ZERO, 3))
    keys = ("num_processes", "distributed_type", "zero_stage", "seed")
    assert key_words(trial, keys) == ["4 GPUs", "ZeRO-3", "seed=0"]
    assert key_words(trial, keys, without=("zero_stage",)) == ["4 GPUs", "ZeRO", "seed=0"]
    assert key_words(trial, keys, without=("distributed_type", "seed")) == ["4 GPUs", "ZeRO-3"]
    assert key_words(vars(_on(1, ONE)), keys, without=("num_processes", "seed", "zero_stage")) == ["1 GPU"]
