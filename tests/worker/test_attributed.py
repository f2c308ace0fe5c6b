"""The tracing mode on real tensors: a tiny trial on the CPU, against bytes calculated by hand."""

from dataclasses import replace

import builders
import pytest
import torch

from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.readings import CategoryShare
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import ALL_LINEAR, Backend, TrialSpec, Tuning
from profiler.worker.cuda.attributed import attribute, breakdown_of, with_attribution

SPEC = TrialSpec(
    backend=Backend.CPU,
    gpu=None,
    model="tiny",
    optim=Optimizer.ADAMW_TORCH,
    max_prompt_length=6,
    max_completion_length=8,
    steps=2,
)
PARAMETERS = 119_360
PARAMETER_TENSORS = 1 + 2 * 12 + 1
CONFIG = BUILTIN_MODELS["tiny"].config


def run(**keys):
    return attribute(replace(SPEC, **keys), CONFIG, torch.device("cpu"))


@pytest.fixture(scope="module")
def full():
    return run(beta=0.04)


def at_end(found):
    alive = {}
    for event in found.trace.events:
        if event > 0:
            alive[event - 1] = found.trace.sizes_bytes[event - 1]
        else:
            del alive[-event - 1]
    by_category = {}
    for block, size in alive.items():
        category = found.trace.categories[block]
        by_category[category] = by_category.get(category, 0) + size
    return by_category


def test_the_breakdown_sums_to_the_peak_of_the_trace(full):
    assert sum(full.breakdown.values()) == full.peak_allocated_bytes
    assert full.peak_phase is Phase.BACKWARD
    assert full.largest[0].size_bytes <= full.peak_allocated_bytes


def test_weights_reference_and_states_are_the_bytes_by_hand(full):
    # In bfloat16; the rotary embedding keeps its frequencies twice, 8 float32 values each.
    weights = PARAMETERS * 2 + 2 * 8 * 4
    left = at_end(full)
    assert left[Category.WEIGHTS] == left[Category.REFERENCE] == weights
    # Two states as wide as the weights, and a float32 step count for each parameter, on the CPU.
    assert left[Category.OPTIMIZER_STATE] == 2 * PARAMETERS * 2 + PARAMETER_TENSORS * 4
    assert Category.GRADIENTS not in left
    assert Category.KV_CACHE not in left


def test_every_parameter_has_a_gradient_with_its_name(full):
    blocks = [block for block, name in full.trace.names.items() if name.startswith("gradient of ")]
    by_name = {full.trace.names[block]: full.trace.sizes_bytes[block] for block in blocks}
    assert len(by_name) == PARAMETER_TENSORS
    assert sum(by_name.values()) == PARAMETERS * 2
    assert {full.trace.categories[block] for block in blocks} == {Category.GRADIENTS}


def test_gradients_of_the_shared_embedding_are_summed_in_place_as_without_a_mode(full):
    made = {site.operation for site in full.trace.sites if site.shape == (512, 64)}
    assert "aten.embedding_dense_backward" in made
    assert "aten.add.Tensor" not in made


def test_the_rollout_has_a_kv_cache(full):
    assert Category.KV_CACHE in full.trace.categories


def test_adapters_are_separate_from_the_weights():
    found = run(tuning=Tuning.LORA, lora_rank=8, lora_alpha=16, lora_target_modules=(ALL_LINEAR,))
    # A is [8, in] and B [out, 8], in float32, for q, k, v, o, gate, up and down of two layers.
    adapters = 2 * 4 * 8 * ((64 + 64) + 2 * (64 + 32) + (64 + 64) + 3 * (64 + 160))
    left = at_end(found)
    assert left[Category.ADAPTERS] == adapters
    assert left[Category.OPTIMIZER_STATE] == 2 * adapters + 2 * 7 * 2 * 4
    assert left[Category.WEIGHTS] == PARAMETERS * 2 + 2 * 8 * 4


# ---- together with a measured outcome --------------------------------------------------------------------------------


def measured(full, *, more_bytes, phase=Phase.BACKWARD):
    peak = full.peak_allocated_bytes + more_bytes
    return builders.outcome_of(peak_allocated_bytes=peak, peak_phase=phase, not_measured="power: absent")


def test_bytes_that_are_not_in_the_trace_are_other_and_nothing_is_scaled(full):
    outcome = with_attribution(measured(full, more_bytes=700), full)
    assert sum(share.size_bytes for share in outcome.breakdown.shares) == outcome.peaks.allocated_bytes
    assert CategoryShare(category=Category.OTHER, size_bytes=700) in outcome.breakdown.shares
    rest = {
        share.category: share.size_bytes for share in outcome.breakdown.shares if share.category is not Category.OTHER
    }
    assert rest == full.breakdown
    assert outcome.breakdown.largest == full.largest
    assert outcome.verdict.unavailable == "power: absent"


def test_a_trace_with_the_measured_peak_needs_no_other(full):
    outcome = with_attribution(measured(full, more_bytes=0), full)
    assert {share.category: share.size_bytes for share in outcome.breakdown.shares} == full.breakdown


@pytest.mark.parametrize(
    ("more_bytes", "phase"), [(-512, Phase.BACKWARD), (512, Phase.ROLLOUT)], ids=["larger peak", "another phase"]
)
def test_the_trace_of_another_peak_is_no_breakdown_and_the_row_gives_the_reason(full, more_bytes, phase):
    outcome = with_attribution(measured(full, more_bytes=more_bytes, phase=phase), full)
    assert (outcome.breakdown.shares, outcome.breakdown.largest) == ((), ())
    assert outcome.breakdown.problem.startswith("the trace has its peak of ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_failure_of_the_second_run_keeps_what_was_measured(full):
    before = measured(full, more_bytes=0)
    outcome = breakdown_of(before, SPEC, CONFIG, beat=lambda: None)
    assert outcome.breakdown.problem.startswith("the second run ended with ")
    assert replace(outcome, breakdown=before.breakdown) == before
