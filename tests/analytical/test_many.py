"""Estimates of a table of trials equal those of single trials."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_strategies import architecture, specs

from maintenance.benchmarks.many_trials import hundred_thousand_trials
from profiler.analytical import estimate
from profiler.analytical.estimate import MOST_REPLAYED, phase_instants
from profiler.analytical.many import estimate_specs, estimate_table, estimates_of, product_table, table_of
from profiler.domain.errors import UsageError
from profiler.domain.memory import TRIAL_PHASES
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import ALL_LINEAR, Backend, Dtype, Lengths, Logprobs, TrialSpec, Tuning

_ARCHITECTURES = {name: architecture(name) for name in BUILTIN_MODELS}
_BASE = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="qwen2.5-0.5b")


def _assert_as_alone(table, many):
    found = estimate_table(table)
    for row, spec in enumerate(many):
        alone = estimate(spec, architecture(spec.model))
        assert found.peak_allocated_bytes[row] == alone.peak_allocated_bytes, spec
        assert found.peak_reserved_bytes[row] == alone.peak_reserved_bytes, spec
        assert found.peak_rule_bytes[row] == alone.peak_rule_bytes, spec
        assert found.phases[found.peak_phase(row)][row] == alone.peak_allocated_bytes, spec
        by_phase = phase_instants(spec, architecture(spec.model))
        for phase in TRIAL_PHASES:
            expected = by_phase[phase].total_bytes if phase in by_phase else 0
            assert found.phases[phase][row] == expected, (phase, spec)


LONG = replace(_BASE, tuning=Tuning.LORA, lora_rank=16, lora_alpha=32, lora_target_modules=(ALL_LINEAR,))
LONG = replace(LONG, dtype=Dtype.FLOAT32, max_completion_length=2_048, steps_per_generation=8)


@pytest.mark.parametrize(("number", "gib"), [(2, 37), (MOST_REPLAYED + 1, 5)])
def test_few_trials_have_the_reserved_memory_of_an_answer(number, gib):
    """Longer caches and repeated keys find no segment of an earlier token: 34.0 GiB in the simulation."""
    models = [f"m{each}" for each in range(number)]
    found = estimates_of(
        [replace(LONG, model=each) for each in models], dict.fromkeys(models, architecture(LONG.model))
    )
    assert [each.peak_reserved_bytes // 2**30 for each in found if each] == [gib] * number


@given(st.lists(specs(), min_size=1, max_size=12))
def test_a_table_equals_the_estimates_of_its_trials(many):
    _assert_as_alone(table_of(many, _ARCHITECTURES), many)


@settings(max_examples=25)
@given(specs())
def test_trials_of_one_group_are_independent(spec):
    """The same formulas with arrays that differ in every number."""
    many = [
        replace(
            spec,
            model=model,
            max_completion_length=length,
            per_device_train_batch_size=rows,
            optim=optim,
            beta=beta,
            lengths=lengths,
            alloc_conf=settings_text,
        )
        for model, length, rows, optim, beta, lengths, settings_text in zip(
            ("qwen2.5-0.5b", "llama-3.1-8b", "qwen3-8b", "tiny", "qwen2.5-7b"),
            (7, 786, 4096, 64, 300),
            (1, 16, 2, 4, 1),
            (Optimizer.SGD, Optimizer.ADAFACTOR, Optimizer.ADAMW_8BIT, Optimizer.ADAMW_TORCH, spec.optim),
            (0.0, 0.04, 0.0, 0.1, spec.beta),
            (Lengths.RAGGED, Lengths.FORCED, Lengths.RAGGED, Lengths.FORCED, spec.lengths),
            ("", "expandable_segments:True", "", "roundup_power2_divisions:8", "roundup_power2_divisions:[4:2,>:16]"),
            strict=True,
        )
    ]
    _assert_as_alone(table_of(many, _ARCHITECTURES), many)


def test_a_product_varies_its_first_axis_slowest():
    axes = {
        "tuning": (Tuning.FULL, Tuning.LORA),
        "max_completion_length": (100, 1000),
        "logprobs": (Logprobs.FUSED, Logprobs.FULL),
    }
    base = replace(_BASE, lora_rank=16, lora_alpha=32, lora_target_modules=(ALL_LINEAR,))
    many = [
        replace(base, tuning=tuning, max_completion_length=length, logprobs=logprobs)
        for tuning in axes["tuning"]
        for length in axes["max_completion_length"]
        for logprobs in axes["logprobs"]
    ]

    _assert_as_alone(product_table(base, axes, _ARCHITECTURES), many)


def test_the_benchmark_has_a_hundred_thousand_trials():
    models = ("qwen2.5-0.5b", "qwen2.5-7b", "llama-3.1-8b", "qwen3-8b", "llama-3.2-1b")
    table = hundred_thousand_trials({name: _ARCHITECTURES[name] for name in models})

    assert table.rows == 100_000
    assert estimate_table(table).peak_allocated_bytes.min() > 0


def test_a_table_with_a_mixture_of_experts_is_refused():
    mixture = replace(architecture("qwen2.5-0.5b"), num_experts=8)

    with pytest.raises(UsageError):
        estimate_table(table_of([_BASE], {"qwen2.5-0.5b": mixture}))


def test_specifications_are_estimated_in_order():
    many = [replace(_BASE, max_completion_length=length) for length in (786, 64, 1024)]
    found = estimate_specs(many, _ARCHITECTURES)

    assert found.peak_allocated_bytes.tolist() == [
        estimate(spec, architecture(spec.model)).peak_allocated_bytes for spec in many
    ]
