"""Strategies of trials, for properties that hold for all of them."""

from functools import cache

from hypothesis import strategies as st

from profiler.analytical import estimate
from profiler.analytical.estimate import phase_instants
from profiler.analytical.explanation.explained import explain
from profiler.analytical.formulas.sizes.quantities import LONGEST
from profiler.analytical.many import estimate_table, table_of
from profiler.config.models.architecture import read_architecture
from profiler.domain.memory import TRIAL_PHASES
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import (
    ALL_LINEAR,
    Attention,
    Backend,
    Dtype,
    Lengths,
    Logprobs,
    Rollout,
    TrialSpec,
    Tuning,
)

COUNTED_OPTIMIZERS = [each for each in Optimizer if "rmsprop" not in each]
"""Those of any type of trained values; RMSprop of bitsandbytes has no kernel for bfloat16."""
ADAPTED = {"lora_rank": 16, "lora_alpha": 32, "lora_target_modules": (ALL_LINEAR,)}


@cache
def architecture(name):
    return read_architecture(BUILTIN_MODELS[name].config, model=name)


def assert_a_table_has_each_estimate(many, *, with_grpo):
    """Check that a table has the estimate of each trial, also next to a trial of another recipe."""
    trials = [*many, TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="tiny")] if with_grpo else many
    table = estimate_table(table_of(trials, {name: architecture(name) for name in BUILTIN_MODELS}))
    for row, spec in enumerate(trials):
        alone = estimate(spec, architecture(spec.model))
        assert table.peak_allocated_bytes[row] == alone.peak_allocated_bytes
        assert table.peak_reserved_bytes[row] == alone.peak_reserved_bytes
        by_phase = phase_instants(spec, architecture(spec.model))
        for phase in TRIAL_PHASES:
            assert table.phases[phase][row] == (by_phase[phase].total_bytes if phase in by_phase else 0)


def assert_each_number_has_a_short_form(spec):
    """Check that the words of every number of a trial fit into a line; return the phases, for further checks."""
    phases = explain(spec, architecture(spec.model)).phases
    for phase in phases:
        assert all(0 < len(share.short_form) <= LONGEST for share in phase.shares)
    return [phase.phase for phase in phases]


@st.composite
def specs(draw):
    tuning = draw(st.sampled_from(Tuning))
    return TrialSpec(
        backend=Backend.SIMULATED,
        gpu=draw(st.sampled_from(["h100-80gb", "t4-16gb", None])),
        model=draw(st.sampled_from(DENSE)),
        tuning=tuning,
        optim=draw(st.sampled_from(COUNTED_OPTIMIZERS)),
        max_prompt_length=draw(st.integers(1, 1024)),
        max_completion_length=draw(st.integers(8, 4096)),
        lengths=draw(st.sampled_from(Lengths)),
        per_device_train_batch_size=draw(st.sampled_from([1, 2, 4, 16])),
        gradient_accumulation_steps=draw(st.sampled_from([1, 2, 4])),
        steps_per_generation=draw(st.sampled_from([1, 2, 4])),
        gradient_checkpointing=draw(st.booleans()),
        beta=draw(st.sampled_from([0.0, 0.04])),
        attn_implementation=draw(st.sampled_from(Attention)),
        dtype=draw(st.sampled_from([each for each in Dtype if each.is_of_todays_trl])),
        bf16=draw(st.booleans()),
        logprobs=draw(st.sampled_from([each for each in Logprobs if each.is_of_completions])),
        steps=draw(st.sampled_from([1, 3])),
        rollout=draw(st.sampled_from(Rollout)),
        alloc_conf=draw(st.sampled_from(["", "", "roundup_power2_divisions:8"])),
        **({**ADAPTED, "lora_dropout": draw(st.sampled_from([0.0, 0.05]))} if tuning is not Tuning.FULL else {}),
    )


DENSE = sorted(
    name for name in BUILTIN_MODELS if architecture(name).num_experts == 1 and not architecture(name).layer_inputs
)
"""Built-in models of which every trial has a closed form; mixtures have one in bfloat16 only, and so have models with
embeddings for each layer (`test_second_inputs.py`)."""
