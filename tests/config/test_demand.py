"""The order of trials by memory, and that the closed form agrees with it for every key."""

from collections import Counter
from dataclasses import replace
from functools import cache, partial

import builders
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix import with_further
from pairs import ORDERED_KEYS, rising_pairs, trials
from small_models import small_config

from profiler.analytical import estimate
from profiler.analytical.estimate import phase_instants
from profiler.config.models.architecture import read_architecture
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials import demand
from profiler.config.trials.demand import comparable_group
from profiler.domain.architectures.architecture import IdleTensors
from profiler.domain.memory import GIB, Phase
from profiler.domain.runs.outcome import Outcome, Status, Verdict
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    ALL_LINEAR,
    Attention,
    Backend,
    DistributedType,
    Dtype,
    Lengths,
    TrialSpec,
    VllmMode,
)
from profiler.execution.trials import Pruning
from profiler.sweep.prepared.plan import order_for_pruning, plan_trials

architecture_of = cache(builtin_architecture)
needs_at_most = partial(demand.needs_at_most, architecture_of=architecture_of)
memory_rank = partial(demand.memory_rank, architecture_of=architecture_of)

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
        steps_per_generation=draw(st.sampled_from([1, 2, 3, 4])),
        gradient_checkpointing=draw(st.booleans()),
        optim=draw(st.sampled_from([Optimizer.ADAMW_TORCH_FUSED, Optimizer.ADAMW_8BIT])),
    )


def test_a_longer_prompt_of_a_row_of_pairs_is_not_compared():
    """It leaves fewer tokens to score in a row of `max_length`."""
    pairs = replace(BASE, recipe=Recipe.DPO, beta=0.1, max_length=1024, lengths=Lengths.FORCED)
    longer = replace(pairs, max_prompt_length=2 * pairs.max_prompt_length)
    assert not needs_at_most(pairs, longer)
    assert not needs_at_most(longer, pairs)
    assert needs_at_most(pairs, replace(pairs, max_length=2048))
    assert estimate(longer, architecture_of(longer.model)) != estimate(pairs, architecture_of(pairs.model))
    generated = replace(BASE, lengths=Lengths.FORCED)
    assert needs_at_most(generated, replace(generated, max_prompt_length=2 * generated.max_prompt_length))


def test_other_idle_towers_are_not_compared():
    """A decoder that is a little smaller may have a tower that is much larger."""
    smaller, larger = (builders.lora(model=f"qwen2.5-{size}", optim=Optimizer.SGD) for size in ("1.5b", "3b"))
    with_tower = replace(architecture_of("qwen2.5-1.5b"), idle=(IdleTensors(shape=(2048, 2048), copies=999),))
    towers = {smaller.model: with_tower, larger.model: architecture_of("qwen2.5-3b")}
    assert needs_at_most(smaller, larger)
    assert not demand.needs_at_most(smaller, larger, architecture_of=towers.__getitem__)


def test_paged_float32_states_are_compared_within_a_model():
    """The states of a tensor of 100,000 values leave the card: ten bytes of each of fewer values become two."""
    adapted = replace(builders.lora(model="qwen2.5-1.5b", optim=Optimizer.PAGED_ADAMW_32BIT), lora_rank=8)
    assert not needs_at_most(adapted, replace(adapted, model="qwen2.5-3b"))
    assert not needs_at_most(adapted, replace(adapted, lora_rank=32))
    assert needs_at_most(adapted, replace(adapted, lora_rank=40))
    one_state = replace(adapted, optim=Optimizer.PAGED_LION_32BIT)
    assert needs_at_most(one_state, replace(one_state, lora_rank=24))
    other = replace(adapted, optim=Optimizer.ADAMW_8BIT)
    assert needs_at_most(other, replace(other, model="qwen2.5-3b", lora_rank=32))


REAL_CARDS = ("h100-80gb", "a100-40gb", "t4-16gb")
"""Cards of three kinds of kernels and workspaces."""


def peaks(spec: TrialSpec, card: str | None) -> dict[Phase, int]:
    """The peak of each phase by the closed form, on `card`."""
    instants = phase_instants(replace(spec, gpu=card), architecture_of(spec.model))
    return {phase: int(instant.total_bytes) for phase, instant in instants.items()}


def assert_no_larger_peak(smaller: TrialSpec, larger: TrialSpec) -> None:
    """A real card is the same for both trials; `gpu` only says what it is capped to."""
    cards = REAL_CARDS if smaller.backend is Backend.CUDA else (smaller.gpu,)
    for card in cards:
        at_most = peaks(larger, card)
        for phase, peak in peaks(smaller, card).items():
            assert peak <= at_most.get(phase, 0), (card, phase)


KINDS = ("model", "gpu", "lora_rank", "num_generations", "max_completion_length", "gradient_checkpointing")
"""Keys of a model, a card, a method, rows, lengths and activations; a pair of any keys is compared below."""
KEPT = [key for key in ORDERED_KEYS if key.name in KINDS]


@pytest.mark.parametrize("key", with_further(ORDERED_KEYS, KEPT), ids=lambda key: key.name)
def test_no_phase_of_a_larger_trial_needs_less_along_any_key(key):
    compared = Counter()

    # Caps of a card are compared only on a real card and without vLLM: one pair in thirty.
    examples = 400 if key.name == "gpu" else 160

    @settings(max_examples=examples)
    @given(rising_pairs([key], most=1))
    def check(pair):
        if pair[0] != pair[1] and needs_at_most(*pair):
            compared[key.name] += 1
            assert_no_larger_peak(*pair)

    check()
    assert compared[key.name] >= 4, "too few pairs can be compared"


def test_no_phase_of_a_larger_trial_needs_less_along_several_keys():
    compared = Counter()

    @settings(max_examples=200)
    @given(rising_pairs())
    def check(pair):
        if pair[0] != pair[1] and needs_at_most(*pair):
            compared.update(
                key.name for key in ORDERED_KEYS if getattr(pair[0], key.name) != getattr(pair[1], key.name)
            )
            assert_no_larger_peak(*pair)

    check()
    assert len(compared) > len(ORDERED_KEYS) / 2
    assert compared.total() >= 50


@settings(max_examples=50)
@given(trials())
def test_a_trial_needs_at_most_what_it_needs(spec):
    assert needs_at_most(spec, spec)


def test_more_micro_batches_per_generation_can_need_less():
    """With 12, trl scores the old policy and generates between two micro-batches of one optimizer step."""
    spec = replace(
        BASE,
        model="llama-2-7b",
        optim=Optimizer.ADAMW_8BIT,
        per_device_train_batch_size=1,
        max_prompt_length=256,
        max_completion_length=2048 - 256,
        gradient_accumulation_steps=16,
    )
    unaligned, aligned = (replace(spec, steps_per_generation=count) for count in (12, 16))
    sizes = [estimate(each, architecture_of(each.model)).peak_allocated_bytes for each in (unaligned, aligned)]
    assert sizes[0] > sizes[1] + 7 * GIB
    assert not needs_at_most(unaligned, aligned)


@pytest.mark.parametrize(
    ("accumulation", "generation"), [((4, 8), (4, 4)), ((4, 4), (1, 2)), ((4, 8), (4, 8)), ((6, 12), (4, 4))]
)
def test_aligned_micro_batches_can_be_compared(accumulation, generation):
    smaller, larger = (
        replace(BASE, gradient_accumulation_steps=one, steps_per_generation=other)
        for one, other in zip(accumulation, generation, strict=True)
    )
    assert needs_at_most(smaller, larger) == (accumulation != (6, 12))


@pytest.mark.parametrize(
    ("base", "smaller", "larger"),
    [
        # Three ragged rows have a larger part of long rows than four.
        (
            {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "steps": 10},
            {"steps_per_generation": 3},
            {"steps_per_generation": 4},
        ),
        # One row alone has no mask, and in float32 SDPA has no kernel without a mask for shared keys.
        (
            {"dtype": Dtype.FLOAT32, "bf16": False},
            {"per_device_train_batch_size": 1},
            {"per_device_train_batch_size": 2},
        ),
        # bitsandbytes keeps the states of small tensors in 32 bits.
        (
            {"lora_target_modules": (ALL_LINEAR,), "lora_alpha": 1, "tuning": "lora", "optim": Optimizer.ADAMW_8BIT},
            {"lora_rank": 2},
            {"lora_rank": 4},
        ),
        # One layer is computed again while the inputs of both are kept.
        ({"model": "tiny"}, {"gradient_checkpointing": True}, {"gradient_checkpointing": False}),
        # The smaller model has more heads, and eager attention holds the scores of all of them.
        ({"attn_implementation": Attention.EAGER}, {"model": "qwen2.5-0.5b"}, {"model": "qwen2.5-1.5b"}),
    ],
)
def test_exceptions_to_the_order_of_a_key(base, smaller, larger):
    one, other = (replace(BASE, **{**base, **change}) for change in (smaller, larger))
    assert not needs_at_most(one, other)
    assert not needs_at_most(other, one)
    if base.get("tuning") is None and "model" not in base and "model" not in smaller:
        assert needs_at_most(replace(one, lengths=Lengths.FORCED), replace(other, lengths=Lengths.FORCED))


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
def test_trials_that_can_be_compared(smaller, larger):
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
def test_trials_that_cannot_be_compared(change):
    base = replace(BASE, gradient_checkpointing=False)
    other = replace(base, **change)
    assert not needs_at_most(base, other)
    assert not needs_at_most(other, base)


@pytest.mark.parametrize(("tokens", "is_compared"), [(1, False), (60, False), (64, True)])
def test_few_tokens_need_less_than_what_fsdp_gathers(tokens, is_compared):
    """DeepSeek LLM 7B, four rows' worth of tokens: with 252 the layers outweigh the embedding that FSDP gathers."""
    rows = {"max_prompt_length": tokens, "max_completion_length": tokens, "per_device_train_batch_size": 2}
    spec = replace(builders.lora(model="deepseek-llm-7b"), lora_rank=1, num_generations=2, **rows)
    spec = replace(spec, lora_target_modules=("all-linear",), num_processes=2, distributed_type=DistributedType.FSDP)
    spec = replace(spec, fsdp_version=1, fsdp_reshard_after_forward=True, gradient_accumulation_steps=1)
    spec = replace(spec, steps_per_generation=1, gradient_checkpointing=False)
    smaller = replace(spec, gradient_checkpointing=True)
    assert needs_at_most(smaller, spec) is is_compared
    if is_compared:
        assert_no_larger_peak(smaller, spec)
    if tokens == 1:
        with pytest.raises(AssertionError):
            assert_no_larger_peak(smaller, spec)


def test_engines_of_vllm_are_compared_only_if_they_are_the_same():
    """More sequences at once need more activations, so that less is left for what stays while the model trains."""
    few = replace(BASE, use_vllm=True, vllm_mode=VllmMode.COLOCATE, vllm_gpu_memory_utilization=0.3)
    few = replace(few, vllm_enable_sleep_mode=False)
    many = replace(few, per_device_train_batch_size=2 * few.per_device_train_batch_size)
    assert not needs_at_most(few, many)
    assert needs_at_most(few, replace(few, max_completion_length=2 * few.max_completion_length))


def test_two_betas_above_zero_need_the_same():
    one, other = replace(BASE, beta=0.04), replace(BASE, beta=0.1)
    assert needs_at_most(one, other)
    assert needs_at_most(other, one)


@given(specs(), specs(), specs())
def test_the_order_is_transitive(one, two, three):
    if needs_at_most(one, two) and needs_at_most(two, three):
        assert needs_at_most(one, three)


@given(st.lists(specs(), min_size=1, max_size=8, unique=True))
def test_a_trial_runs_after_those_that_can_imply_its_result(found):
    ordered = [trial.spec for trial in order_for_pruning(plan_trials("g", found, builders.VERSIONS), memory_rank)]
    assert sorted(map(str, ordered)) == sorted(map(str, found))
    for place, later in enumerate(ordered):
        for earlier in ordered[:place]:
            # A later trial can imply an earlier one only where both imply each other.
            assert not needs_at_most(later, earlier) or needs_at_most(earlier, later)


@given(specs(), specs())
def test_the_rank_follows_the_order(one, two):
    if needs_at_most(one, two):
        assert memory_rank(one) <= memory_rank(two)
        assert memory_rank(one) < memory_rank(two) or needs_at_most(two, one)
        assert comparable_group(one) == comparable_group(two)


def test_ordering_and_pruning_many_trials_compare_few_pairs():
    def work(count):
        ranked, compared = [], []
        found = [
            replace(BASE, backend=Backend.CUDA, gpu=None, max_completion_length=64 * (1 + n % 40), seed=n // 40)
            for n in range(count)
        ]
        plan = plan_trials("g", found, builders.VERSIONS)
        ordered = order_for_pruning(plan, lambda spec: ranked.append(spec) or memory_rank(spec))
        pruning = Pruning(needs_at_most=lambda *pair: compared.append(pair) or False, group_of=comparable_group)
        out = Outcome(verdict=Verdict(status=Status.OOM))
        pruning.learn([builders.record(trial.spec, outcome=out) for trial in ordered])
        assert [pruning.implied(trial) for trial in ordered] == [None] * count
        return len(ranked), len(compared)

    (small_ranks, small_pairs), (ranks, pairs) = work(200), work(800)
    assert (small_ranks, ranks) == (200, 800)
    assert pairs <= 4 * small_pairs


def test_only_measured_trials_are_reordered():
    simulated = [builders.spec(max_completion_length=length) for length in (512, 256)]
    measured = [replace(spec, backend=Backend.CUDA, gpu=None) for spec in simulated]
    plan = plan_trials("g", [simulated[0], measured[0], simulated[1], measured[1]], builders.VERSIONS)
    ordered = [trial.spec for trial in order_for_pruning(plan, memory_rank)]
    assert ordered == [simulated[0], measured[1], simulated[1], measured[0]]


def test_a_model_with_wider_linear_attention_is_the_larger_one():
    """A model is no larger than another of which each width is at least as large, whatever its other layers."""
    shapes = {
        str(dim): read_architecture(small_config("qwen3_5_text", linear_value_head_dim=dim), model="m")
        for dim in (8, 16)
    }
    shapes["irregular"] = read_architecture(small_config("qwen3_5_text", layer_types=["full_attention"] * 2), model="m")
    narrow, wide, other = (replace(BASE, model=model) for model in ("8", "16", "irregular"))
    at_most = partial(demand.needs_at_most, architecture_of=shapes.__getitem__)
    assert at_most(narrow, wide)
    assert not at_most(wide, narrow)
    assert not at_most(wide, other)
