"""Requests of DeepSpeed's ZeRO, stages 1 and 2, by hand and against emulated trials."""

from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kept_sharded import has_the_bound, prepared, reserved_errors

from profiler.analytical.estimate import estimate_with_replay
from profiler.analytical.formulas.models.trained import trainable_parameter_count
from profiler.analytical.replayed.flat_tensors import Tensor, copied, flat_groups, part_values, placed
from profiler.analytical.replayed.requests import Requests
from profiler.analytical.replayed.trial import Program, replayed_counters
from profiler.analytical.timeline.sharding.zero_buckets import BUCKET, BUCKET_BYTES
from profiler.config.models.lookup import builtin_architecture
from profiler.domain.memory import MIB
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    Backend,
    DistributedType,
    Dtype,
    Logprobs,
    OffloadDevice,
    Optimizer,
    Rollout,
    TrialSpec,
    Tuning,
)

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
LORA = {"tuning": Tuning.LORA, "lora_rank": 8, "lora_alpha": 16, "lora_target_modules": ("all-linear",)}
OFFLOADED = {"offload_optimizer_device": OffloadDevice.CPU}
EMBEDDING = 151_936 * 896


def spec_of(**keys):
    defaults = {
        "backend": Backend.EMULATED, "gpu": "h100-80gb", "model": "qwen2.5-0.5b", "num_processes": 4,
        "distributed_type": DistributedType.DEEPSPEED, "zero_stage": 2, "rollout": Rollout.SYNTHETIC,
        "offload_optimizer_device": OffloadDevice.NONE, "offload_param_device": OffloadDevice.NONE,
        "gradient_checkpointing": True, "max_prompt_length": 64, "max_completion_length": 64,
        "gradient_accumulation_steps": 1, "steps_per_generation": 1,
    }  # fmt: skip
    return TrialSpec(**defaults | keys)


def noting(monkeypatch, *names):
    """Note each request of these groups, as (group, bytes)."""
    found = []

    def noted(self, group, wanted, setting=Requests.set):
        if group in names and wanted and wanted != self.sizes(group):
            found.append((group, sum(size * count for size, count in wanted.items())))
        setting(self, group, wanted)

    monkeypatch.setattr(Requests, "set", noted)
    return found


# ---- flat tensors ----------------------------------------------------------------------------------------------------


def test_flat_tensors_are_parted_by_hand():
    assert part_values(9, 2) == 6
    assert part_values(12, 2) == 6
    assert placed([5, 6], 2) == [
        Tensor(values=5, own_values=5, parts=((0, 5),)),
        Tensor(values=6, own_values=1, parts=((0, 1), (1, 5))),
    ]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.integers(1, 9))
def test_parts_are_whole_tensors_in_order(sizes, gpus):
    tensors, part = placed(sizes, gpus), part_values(sum(sizes), gpus)
    assert [sum(size for _, size in each.parts) for each in tensors] == sizes
    assert all(size > 0 for each in tensors for _, size in each.parts)
    owners = [gpu for each in tensors for gpu, _ in each.parts]
    assert owners == sorted(owners)
    assert max(owners) < gpus
    assert sum(each.own_values for each in tensors) == min(part, sum(sizes))


def test_a_reduction_copies_several_slices_by_hand():
    first, second = placed([5, 6], 2)
    assert copied([first, second]) == [11]
    assert copied([first]) == []
    assert copied([first, first]) == []
    # A tensor that is larger than a bucket is reduced in pieces of more than one.
    (table,) = placed([4 * BUCKET], 5)
    assert [size for _, size in table.parts] == [4 * BUCKET // 5] * 5
    assert copied([table]) == [8 * BUCKET // 5, 8 * BUCKET // 5]
    assert copied([]) == []


@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "llama-3.2-3b", "qwen2.5-7b", "qwen3-30b-a3b", "deepseek-v2-lite"])
@pytest.mark.parametrize("keys", [{}, LORA])
def test_flat_tensors_are_those_that_are_trained(model, keys):
    architecture, spec = builtin_architecture(model), spec_of(model=model, **keys)
    groups = flat_groups(spec, architecture, 4)
    every = [tensor for group in groups for tensor in group.tensors]
    assert sum(tensor.values for tensor in every) == trainable_parameter_count(spec, architecture)
    assert all(group.values == 4 * group.part_values for group in groups)
    assert len(groups) == (1 if keys else 2)


# ---- taking the model over -------------------------------------------------------------------------------------------


def test_flat_weights_and_their_part_by_hand():
    """Qwen2.5-0.5b: 493,961,216 values in matrices, 71,552 in vectors; a quarter of each in float32."""
    _, requests = prepared(spec_of())
    assert requests.sizes(("flat", 0)) == {493_961_216 * 2: 1}
    assert requests.sizes(("flat", 1)) == {71_552 * 2: 1}
    assert requests.sizes(("master", 0)) == {493_961_216: 1}
    assert requests.sizes(("master", 1)) == {71_552: 1}
    assert not requests.has(("policy", "embedding"))
    assert not requests.has(("policy", 0))
    assert not requests.has("offloaded gradient")


def test_the_host_has_the_part_and_the_card_one_gradient():
    _, requests = prepared(spec_of(**OFFLOADED))
    assert not requests.has(("master", 0))
    assert requests.sizes("offloaded gradient") == {EMBEDDING * 2: 1}


def test_frozen_weights_stay_as_they_are():
    _, requests = prepared(spec_of(**LORA))
    assert requests.has(("policy", 0))
    assert not requests.has("adapters")
    assert requests.sizes(("flat", 0)) == {4_399_104 * 2: 1}
    assert not requests.has(("flat", 1))


# ---- a backward ------------------------------------------------------------------------------------------------------


def test_requests_of_a_backward_by_hand(monkeypatch):
    """As a recorded history has them: 988,065,536 B are reduced, and 272,306,432 B of it kept.

    The part of the first GPU has a part of the embedding, which is kept whole, and of the vectors those of six layers
    of 2,944 values and the first of the seventh, of 896.
    """
    found = noting(monkeypatch, "bucket", "copy", "new kept gradients", "gradient of a part")
    program = Program(Requests(), spec_of(), builtin_architecture("qwen2.5-0.5b"))
    sharing = program.sharing
    sharing.share()
    found.clear()
    for weights in ("head", *reversed(range(24)), "embedding"):
        sharing.reduce(weights)
    kept = 2 * (EMBEDDING + 6 * 2_944 + 896)
    assert found == [("bucket", BUCKET_BYTES), ("copy", 494_032_768 * 2), ("new kept gradients", kept)]
    assert kept == 272_306_432
    assert program.requests.sizes("kept gradients") == {kept: 1}
    assert not program.requests.has("bucket")
    found.clear()
    sharing.update()
    assert found[0] == ("copy", 493_961_216 // 4 * 8)
    assert ("gradient of a part", 493_961_216) in found
    # The only tensor of the first group is flat already.
    assert ("copy", 493_961_216 // 4 * 2) not in found
    assert ("copy", 71_552 // 4 * 2) in found
    assert not program.requests.has("kept gradients")


def test_a_full_bucket_is_reduced_before_the_next_gradient(monkeypatch):
    """By hand, qwen2.5-7b: the head of 544,997,376 values is reduced alone, and the layers by 500 million values."""
    found = noting(monkeypatch, "copy", "gradient")
    program = Program(Requests(), spec_of(model="qwen2.5-7b"), builtin_architecture("qwen2.5-7b"))
    program.sharing.share()
    found.clear()
    program.sharing.reduce("head")
    assert found == [("gradient", 544_997_376 * 2)]
    assert program.requests.has("too large")
    program.sharing.reduce(27)
    assert not program.requests.has("too large")
    for number in reversed(range(27)):
        program.sharing.reduce(number)
    copies = [size // 2 for group, size in found if group == "copy"]
    assert all(size <= BUCKET for size in copies)
    assert all(size > BUCKET - 18_944 * 3_584 for size in copies)


def test_gradients_stay_until_the_end_of_a_step_in_stage_1():
    program = Program(Requests(), spec_of(zero_stage=1), builtin_architecture("qwen2.5-0.5b"))
    sharing, requests = program.sharing, program.requests
    sharing.share()
    for reduces in (False, True):
        sharing.begin_pass(reduces=reduces)
        requests.set(("gradients", "embedding"), {EMBEDDING * 2: 1})
        sharing.reduce("embedding")
        assert requests.has(("gradients", "embedding")) is not reduces
        assert requests.has("bucket") is not reduces
        assert requests.has("kept gradients") is reduces


def test_a_tied_head_by_a_module_is_added_in_a_third_tensor(monkeypatch):
    for logprobs, sums in ((Logprobs.FUSED, 0), (Logprobs.FULL, 1)):
        with monkeypatch.context() as patched:
            found = noting(patched, "sum")
            program = Program(Requests(), spec_of(logprobs=logprobs), builtin_architecture("qwen2.5-0.5b"))
            program.sharing.share()
            program.requests.set("gradient of a tied head", {EMBEDDING * 2: 1})
            program.sharing.reduce("embedding")
            assert found == [("sum", EMBEDDING * 2)] * sums
            assert not program.requests.has("gradient of a tied head")


def test_the_gradient_of_a_tied_head_is_made_once_and_stays(monkeypatch):
    """Its product follows the first one of backward, whose workspace is there before it."""
    order = noting(monkeypatch, "workspace of backward", "gradient of a tied head", "bucket")
    program = Program(Requests(), spec_of(beta=0.0), builtin_architecture("qwen2.5-0.5b"))
    program.run()
    assert [group for group, _ in order] == ["workspace of backward", "bucket", "bucket"]
    piece = program.requests.piece()
    tables = [number for number, size in enumerate(piece.sizes_bytes, 1) if size == EMBEDDING * 2]
    # The embedding and a head that is tied, and in each of two steps the gradients of both.
    assert len(tables) == 2 + 2 * 2
    _, workspace = (number for number, size in enumerate(piece.sizes_bytes, 1) if size == 32 * MIB)
    assert workspace < tables[2]


def test_the_first_step_has_several_micro_batches(monkeypatch):
    """Two steps of two: stage 2 has a bucket in each backward, stage 1 in each step."""
    for stage, buckets in ((1, 2), (2, 4)):
        with monkeypatch.context() as patched:
            found = noting(patched, "bucket")
            spec = spec_of(zero_stage=stage, gradient_accumulation_steps=2, steps_per_generation=2, steps=2)
            program = Program(Requests(), spec, builtin_architecture(spec.model))
            program.run()
            assert len(found) == buckets


# ---- a trial ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        LORA,
        OFFLOADED,
        {"beta": 0.04, "gradient_accumulation_steps": 2, "steps_per_generation": 2},
        {"logprobs": Logprobs.FULL},
        {"optim": Optimizer.SGD, "gradient_checkpointing": False},
        {"recipe": Recipe.SFT, "max_length": 256},
    ],
    ids=["full", "LoRA", "offloaded", "reference", "all logits", "SGD", "rows"],
)
def test_tensors_of_zero_are_those_of_the_closed_form(stage, gpus, keys):
    spec = spec_of(zero_stage=stage, num_processes=gpus, **keys)
    shape = builtin_architecture(spec.model)
    found, replayed = estimate_with_replay(spec, shape), replayed_counters(spec, shape)
    assert replayed.peak_allocated_bytes == pytest.approx(found.peak_allocated_bytes, rel=0.05)
    assert found.peak_allocated_bytes <= found.peak_unreleasable_bytes <= found.peak_reserved_bytes


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "llama-3.2-3b"])
def test_more_gpus_need_less_of_each(stage, model):
    shape = builtin_architecture(model)
    specs = [spec_of(model=model, zero_stage=stage, num_processes=gpus) for gpus in (2, 4, 8, 16)]
    peaks = [replayed_counters(spec, shape).peak_allocated_bytes for spec in specs]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)


@pytest.mark.parametrize(
    "keys",
    [
        {"zero_stage": 0},
        {"zero_stage": 3, "use_liger_kernel": True},
        {"use_liger_kernel": True},
        {"dtype": Dtype.FLOAT32},
    ],
)
def test_other_trials_of_deepspeed_have_the_bound(keys):
    assert has_the_bound(spec_of(**keys))


def test_reserved_memory_of_zero_is_near_the_emulation():
    errors, bounds = reserved_errors({DistributedType.DEEPSPEED}, stages={1, 2})
    assert len(errors) == 9
    assert median(map(abs, errors)) < 0.01 < 0.02 < median(map(abs, bounds))
    assert max(map(abs, errors)) < 0.03


def test_reserved_memory_of_stage_3_is_near_the_emulation():
    """Weights that the host has are freed at other times in each run, by up to 4 %."""
    errors, bounds = reserved_errors({DistributedType.DEEPSPEED}, stages={3})
    assert len(errors) == 7
    assert median(map(abs, errors)) < 0.01 < 0.1 < median(map(abs, bounds))
    assert max(map(abs, errors)) < 0.1
