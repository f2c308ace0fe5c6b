"""Liger's layer kernels: the closed form and a replay, compared with trials that were emulated with liger-kernel 0.8.5.

The peaks are those of torch's counters in torch's CUDA build (torch 2.13.0+cu130, trl 1.16.0, transformers 5.23.0) on
an emulated H100, for prompts of 256 and completions of up to 1,024 tokens, 4 rows, 1 micro-batch, 2 steps.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analytical.estimate import estimate
from profiler.analytical.formulas.sizes.trial_keys import Batch, TrialKeys, itemised_keys
from profiler.analytical.replayed.layers import backward_stages, forward_stages, saved_blocks
from profiler.analytical.replayed.trial import has_replay, replayed_counters
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.config.trl.config import read_trl_config
from profiler.constraints.table import faults_in_a_sweep
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.memory import MIB
from profiler.domain.trials.trial import TrialSpec

EMULATED = (
    ({}, False, 11_968_444_416),
    ({}, True, 9_856_153_600),
    ({"gradient_checkpointing": True}, False, 4_499_204_096),
    ({"gradient_checkpointing": True}, True, 4_369_951_744),
    ({"tuning": "lora"}, False, 9_705_374_720),
    ({"tuning": "lora"}, True, 8_055_964_672),
    ({"tuning": "qlora"}, True, 6_562_445_312),
    ({"dtype": "float32"}, True, 14_538_906_112),
    ({"model": "qwen3-0.6b"}, True, 12_277_669_888),
)


RECOMPUTED = (
    (["q_proj", "v_proj"], 2_080_129_536),
    (["gate_proj", "up_proj"], 2_183_938_560),
    (["all-linear"], 2_258_207_232),
)
"""SFT of llama-3.2-1b over 4-bit weights with checkpointing: 8 rows of 768 tokens, 2 micro-batches."""


def _spec(**keys: object) -> TrialSpec:
    own = {
        "backend": "emulated",
        "model": "qwen2.5-0.5b",
        "gradient_checkpointing": False,
        "max_completion_length": 1024,
        "gradient_accumulation_steps": 1,
        "steps": 2,
        "rollout": "synthetic",
    }
    return parse_point({**own, **keys}, architecture_of=builtin_architecture)


def _estimated(spec: TrialSpec) -> int:
    architecture = builtin_architecture(spec.model)
    assert architecture is not None
    return estimate(spec, architecture).peak_allocated_bytes


@pytest.mark.parametrize(("keys", "liger", "emulated"), EMULATED)
def test_the_closed_form_is_within_one_and_a_half_percent(keys, liger, emulated):
    assert _estimated(_spec(**keys, use_liger_kernel=liger)) == pytest.approx(emulated, rel=0.015)


@pytest.mark.parametrize(("targets", "emulated"), RECOMPUTED)
def test_the_product_is_there_when_a_layer_is_recomputed(targets, emulated):
    keys = {"model": "llama-3.2-1b", "tuning": "qlora", "gradient_checkpointing": True, "use_liger_kernel": True}
    rows = {"recipe": "sft", "max_length": 768, "lengths": "forced", "per_device_train_batch_size": 8}
    own = {"backend": "emulated", "gradient_accumulation_steps": 2, "steps": 2, "lora_target_modules": targets}
    spec = parse_point({**own, **keys, **rows}, architecture_of=builtin_architecture)
    assert _estimated(spec) == pytest.approx(emulated, rel=0.002)


@pytest.mark.parametrize(("one", "other"), [(EMULATED[0], EMULATED[1]), (EMULATED[4], EMULATED[5])])
def test_what_liger_saves_is_within_five_percent(one, other):
    saved = one[2] - other[2]
    keys = one[0]
    estimated = _estimated(_spec(**keys)) - _estimated(_spec(**keys, use_liger_kernel=True))
    assert estimated == pytest.approx(saved, rel=0.05)


def test_a_recipe_with_liger_is_estimated_with_it():
    reading = read_trl_config({"model_name_or_path": "Qwen/Qwen2.5-0.5B", "use_liger_kernel": True})
    assert reading.point["use_liger_kernel"] is True
    assert not any("liger" in note.text for note in reading.notes)


def test_a_simulation_does_not_run_it():
    (fault,) = faults_in_a_sweep([_spec(use_liger_kernel=True, backend="simulated")], builtin_architecture)
    assert fault.key == "use_liger_kernel"
    assert faults_in_a_sweep([_spec(use_liger_kernel=True)], builtin_architecture) == []


# ---- a replay of requests --------------------------------------------------------------------------------------------

_TOKENS = Batch(rows=4, prompt_tokens=0, completion_tokens=512, scored_tokens=2044, loss_tensors=0, has_mask=False)
"""2,048 tokens of 896 values in bfloat16: 3,670,016 B; of 4,864 values: 19,922,944 B; two of 128 values: 1 MiB."""
_HIDDEN, _INNER, _KEYS = 3_670_016, 19_922_944, MIB


def _on_rows(**keys: object) -> TrialSpec:
    own = {"backend": "emulated", "recipe": "sft", "model": "qwen2.5-0.5b", "gradient_checkpointing": False, "steps": 2}
    return parse_point({**own, **keys}, architecture_of=builtin_architecture)


def _itemised(**keys: object) -> tuple[TrialKeys, Architecture]:
    spec = _on_rows(max_length=512, per_device_train_batch_size=4, tuning="full", **keys)
    architecture = builtin_architecture(spec.model)
    assert architecture is not None
    return itemised_keys(spec), architecture


def test_requests_of_a_layer_by_hand():
    """With each there are the embeddings and the input of the layer."""
    spec, architecture = _itemised(use_liger_kernel=True)
    forward = forward_stages(spec, architecture, _TOKENS, adapted=False, autocast=True)

    # The result of the norm; with queries; with keys; with values, over which the rotary embedding writes.
    assert [stage.get(_HIDDEN, 0) for stage in forward.before] == [3, 4, 4, 4]
    assert [stage.get(_KEYS, stage.get(_KEYS // 2, 0) / 2) for stage in forward.before] == [0, 0, 0.5, 1]
    # Queries and output; the result of o; the sum that is normed; gate, up and product.
    assert [stage.get(_HIDDEN, 0) for stage in forward.after] == [5, 6, 4, 4]
    assert [stage.get(_INNER, 0) for stage in forward.after] == [0, 0, 0, 3]


def test_the_input_of_a_layer_is_there_once():
    """A norm of Liger's saves what checkpointing keeps, and what the model holds."""
    spec, architecture = _itemised(use_liger_kernel=True, gradient_checkpointing=True)
    saved, backward = saved_blocks(spec, architecture, _TOKENS), backward_stages(spec, architecture, _TOKENS)

    # The input, the result of the norm, queries and output; recomputed, the gradient in place of the input.
    assert saved.until_attention[_HIDDEN] == 4
    assert saved.inputs == {_HIDDEN: 2}
    assert backward.recomputed is not None
    assert backward.recomputed.after[0][_HIDDEN] == 4
    plain, _ = _itemised(gradient_checkpointing=True)
    assert saved_blocks(plain, architecture, _TOKENS).inputs == {}


@settings(max_examples=10)
@given(
    st.sampled_from(["qwen2.5-0.5b", "qwen3-0.6b", "smollm2-360m", "gemma-3-1b"]),
    st.sampled_from(["full", "lora", "qlora"]),
    st.booleans(),
    st.integers(64, 512),
)
def test_liger_requests_no_more_at_once(model, tuning, checkpoints, tokens):
    keys = {"model": model, "tuning": tuning, "gradient_checkpointing": checkpoints}
    rows = {"max_length": tokens, "per_device_train_batch_size": 2}
    plain, liger = (_on_rows(**keys, **rows, use_liger_kernel=uses) for uses in (False, True))
    architecture = builtin_architecture(model)
    assert architecture is not None
    assert has_replay(liger)
    found = replayed_counters(liger, architecture)

    assert found.peak_allocated_bytes <= replayed_counters(plain, architecture).peak_allocated_bytes
    assert found.peak_allocated_bytes == pytest.approx(_estimated(liger), rel=0.03)
    assert found.peak_reserved_bytes >= found.peak_allocated_bytes


def _sampled() -> Iterator[tuple[TrialSpec, int]]:
    """Return trials that seed 2671 drew, written down with their estimates before any ran, and what each reserved."""
    for line in Path(__file__).with_name("liger_sampled.jsonl").read_text().splitlines():
        keys = json.loads(line)
        reserved = keys.pop("reserved")
        del keys["allocated"]
        keys |= {"backend": "emulated", "use_liger_kernel": True}
        yield parse_point(keys, architecture_of=builtin_architecture), reserved


def test_reserved_memory_is_near_emulated_trials():
    errors, bounds = [], []
    for spec, reserved in _sampled():
        architecture = builtin_architecture(spec.model)
        assert architecture is not None
        errors.append(replayed_counters(spec, architecture).peak_reserved_bytes / reserved - 1)
        bounds.append(estimate(spec, architecture).peak_reserved_bytes / reserved - 1)
    assert len(errors) == 22
    assert median(map(abs, errors)) < 0.01 < 0.02 < median(map(abs, bounds))
    assert sum(abs(error) <= 0.025 for error in errors) == 21
    assert min(errors) > -0.09
