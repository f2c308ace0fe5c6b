"""Which trials are bound to need at least as much memory as others."""

from dataclasses import replace
from functools import partial

import builders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.analytical import estimate
from profiler.config import demand
from profiler.config.model_lookup import builtin_architecture
from profiler.domain.optimizers import Optimizer
from profiler.domain.trial import Backend, Lengths, TrialSpec
from profiler.sweep.plan import order_for_pruning, plan_trials

needs_at_most = partial(demand.needs_at_most, architecture_of=builtin_architecture)

BASE = builders.spec(backend=Backend.CUDA, gpu=None, model="qwen2.5-1.5b", beta=0.0)


@st.composite
def specs(draw: st.DrawFn) -> TrialSpec:
    kind = draw(st.sampled_from([builders.spec, builders.lora]))
    return kind(
        backend=Backend.CUDA,
        gpu=draw(st.sampled_from([None, "h100-80gb", "rtx-4090-24gb", "t4-16gb"])),
        model=draw(st.sampled_from(builders.QWEN)),
        beta=draw(st.sampled_from([0.0, 0.04, 0.1])),
        num_generations=draw(st.sampled_from([4, 8])),
        max_completion_length=draw(st.sampled_from([256, 1024])),
        per_device_train_batch_size=draw(st.sampled_from([4, 8])),
        gradient_checkpointing=draw(st.booleans()),
        optim=draw(st.sampled_from([Optimizer.ADAMW_TORCH_FUSED, Optimizer.ADAMW_8BIT])),
    )


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        ({"max_completion_length": 256}, {"max_completion_length": 512}),
        ({"per_device_train_batch_size": 4}, {"per_device_train_batch_size": 8}),
        (
            {"per_device_train_batch_size": 4, "num_generations": 4},
            {"per_device_train_batch_size": 8, "num_generations": 8},
        ),
        ({"gradient_checkpointing": True}, {"gradient_checkpointing": False}),
        ({"beta": 0.0}, {"beta": 0.04}),
        ({"gpu": None}, {"gpu": "h100-80gb"}),
        ({"gpu": "a100-40gb"}, {"gpu": "rtx-4090-24gb"}),
        ({"steps": 3}, {"steps": 10}),
        ({"model": "qwen2.5-3b"}, {"model": "qwen2.5-7b"}),
        ({"model": "qwen2.5-0.5b", "max_completion_length": 256}, {"model": "qwen2.5-14b"}),
    ],
)
def test_memory_can_only_grow_this_way(smaller, larger):
    assert needs_at_most(replace(BASE, **smaller), replace(BASE, **larger))
    assert not needs_at_most(replace(BASE, **larger), replace(BASE, **smaller))


@pytest.mark.parametrize(
    "change",
    [
        {"optim": Optimizer.ADAMW_8BIT},
        {"lengths": Lengths.FORCED},
        {"seed": 1},
        {"model": "llama-3.1-8b"},
        {"max_completion_length": 2048, "per_device_train_batch_size": 2},
        {"max_completion_length": 2048, "gradient_checkpointing": True},
    ],
)
def test_what_may_go_either_way_says_nothing(change):
    base = replace(BASE, gradient_checkpointing=False)
    other = replace(base, **change)
    assert not needs_at_most(base, other)
    assert not needs_at_most(other, base)


def test_two_betas_above_zero_need_the_same():
    one, other = replace(BASE, beta=0.04), replace(BASE, beta=0.1)
    assert needs_at_most(one, other)
    assert needs_at_most(other, one)


@settings(deadline=None)
@given(specs())
def test_a_trial_needs_no_more_than_itself(spec):
    assert needs_at_most(spec, spec)


@settings(deadline=None)
@given(specs(), specs(), specs())
def test_what_follows_from_what_follows_follows(one, two, three):
    if needs_at_most(one, two) and needs_at_most(two, three):
        assert needs_at_most(one, three)


@settings(deadline=None)
@given(specs(), specs())
def test_the_closed_form_agrees(one, two):
    """Not proof, but an independent opinion: a larger trial is never estimated at less, on one and the same card."""
    if needs_at_most(one, two):
        alike = [replace(spec, gpu=None) for spec in (one, two)]
        peaks = [estimate(spec, builtin_architecture(spec.model)).peak_allocated_bytes for spec in alike]
        assert peaks[0] <= peaks[1]


@settings(deadline=None)
@given(st.lists(specs(), min_size=1, max_size=8, unique=True))
def test_no_trial_comes_before_one_that_would_imply_it(found):
    ordered = [trial.spec for trial in order_for_pruning(plan_trials("g", found, builders.VERSIONS), needs_at_most)]
    assert sorted(map(str, ordered)) == sorted(map(str, found))
    for place, later in enumerate(ordered):
        for earlier in ordered[:place]:
            # Earlier ones may imply later ones; the other way only where both imply each other.
            assert not needs_at_most(later, earlier) or needs_at_most(earlier, later)


def test_trials_that_are_not_measured_stay_where_they_are():
    simulated = [builders.spec(max_completion_length=length) for length in (512, 256)]
    measured = [replace(spec, backend=Backend.CUDA, gpu=None) for spec in simulated]
    plan = plan_trials("g", [simulated[0], measured[0], simulated[1], measured[1]], builders.VERSIONS)
    ordered = [trial.spec for trial in order_for_pruning(plan, needs_at_most)]
    assert ordered == [simulated[0], measured[1], simulated[1], measured[0]]
