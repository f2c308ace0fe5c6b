"""Reserved memory, the verdicts for cards, and the short forms."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trial_strategies import ADAPTED, architecture, specs

from profiler.analytical import estimate
from profiler.analytical.estimate import estimate_with_replay
from profiler.analytical.explanation.explained import Fit, all_cards, card_verdict, explain, needed_of
from profiler.analytical.formulas.head import all_logits_classes_bytes
from profiler.analytical.formulas.sizes.quantities import LONGEST, NOTHING, Term
from profiler.analytical.formulas.sizes.rounding import Needed, unreleasable_bytes
from profiler.analytical.formulas.sizes.trial_keys import Batch
from profiler.analytical.timeline.cached import peak_reserved_bytes
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.recipes.registry import trial_instants
from profiler.domain.cards.capabilities import CAPABILITIES
from profiler.domain.cards.card import cuda_context_bytes, nccl_bytes, outside_torch_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import GIB, MIB, TRIAL_PHASES, Category, Phase
from profiler.domain.trials.trial import Attention, Backend, Lengths, Logprobs, Rollout, TrialSpec, Tuning, VllmMode

_SPEC = TrialSpec(backend=Backend.SIMULATED, gpu="h100-80gb", model="qwen2.5-0.5b")


def _instant(phase, weights, activations, logits):
    sizes = {Category.WEIGHTS: weights, Category.ACTIVATIONS: activations, Category.LOGITS: logits}
    terms = {category: Term(size) for category, size in sizes.items()}
    return Instant(phase=phase, name=InstantName.STEP, terms={Category.OPTIMIZER_STATE: NOTHING, **terms})


def test_reserved_by_hand(toy):
    instants = [_instant(Phase.FORWARD, 4, 3, 0), _instant(Phase.BACKWARD, 4, 1, 2)]
    expandable = replace(_SPEC, alloc_conf="expandable_segments:True")

    assert peak_reserved_bytes(_SPEC, toy, instants) == 9
    assert peak_reserved_bytes(expandable, toy, instants) == 7
    # memory of the load phase is freed before training
    assert peak_reserved_bytes(_SPEC, toy, [*instants, _instant(Phase.LOAD, 0, 8, 0)]) == 9


def test_all_logits_by_size_by_hand(toy):
    batch = Batch(rows=2, prompt_tokens=4, completion_tokens=10, scored_tokens=20, has_mask=False)

    def classes(logprobs):
        return all_logits_classes_bytes(replace(_SPEC, logprobs=logprobs), toy, batch)

    assert classes(Logprobs.FULL) == 30_000
    assert classes(Logprobs.SELECTIVE) == classes(Logprobs.SELECTIVE_KEPT) == 30_000 + 8_000
    assert classes(Logprobs.SELECTIVE_IN_PLACE) == 30_000 + 2 * 8_000


@given(specs())
def test_reserved_is_at_least_what_is_allocated(spec):
    spec = replace(spec, alloc_conf="")
    found = estimate(spec, architecture(spec.model))
    expanding = estimate(replace(spec, alloc_conf="expandable_segments:True"), architecture(spec.model))

    assert found.peak_allocated_bytes <= found.peak_reserved_bytes
    assert expanding.peak_reserved_bytes == expanding.peak_allocated_bytes == found.peak_allocated_bytes


def test_training_cannot_use_the_segments_of_a_long_rollout():
    """LoRA on 7B, 8 completions of 4,096 tokens: 33.9 GiB of tensors simulated, 45.4 reserved."""
    spec = replace(
        _SPEC,
        model="qwen2.5-7b",
        num_generations=8,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        max_completion_length=4096,
        gradient_checkpointing=True,
        lengths=Lengths.FORCED,
        tuning=Tuning.LORA,
        lora_rank=16,
        lora_alpha=32,
        lora_target_modules=("all-linear",),
    )
    shape = architecture("qwen2.5-7b")
    found, short = estimate(spec, shape), estimate(replace(spec, max_completion_length=256), shape)

    assert 33 * GIB < found.peak_allocated_bytes < 34 * GIB
    assert 42 * GIB < found.peak_reserved_bytes < 48 * GIB
    # 8 rows of 512 tokens stay below 10 MiB a tensor, which have no segments of their own
    assert short.peak_reserved_bytes < short.peak_allocated_bytes + 2 * GIB


def test_a_long_rollout_reserves_far_more_than_it_allocates():
    """Qwen3-0.6B, 16 rows from 1,024 to 3,071 tokens: 5.2 GiB of cache, and the simulation reserves 57 GiB."""
    spec = replace(
        _SPEC,
        model="qwen3-0.6b",
        max_prompt_length=1024,
        max_completion_length=2048,
        gradient_checkpointing=True,
        tuning=Tuning.LORA,
        lora_rank=4,
        lora_alpha=8,
        lora_target_modules=("gate_proj", "up_proj", "down_proj"),
    )
    found = estimate(spec, architecture("qwen3-0.6b"))

    assert found.peak_allocated_bytes < 7 * GIB
    assert 45 * GIB < found.peak_reserved_bytes < 60 * GIB
    # larger blocks are freed between two tokens, and the cache fits into them
    eager = estimate(replace(spec, attn_implementation=Attention.EAGER), architecture("qwen3-0.6b"))
    assert eager.peak_reserved_bytes < 2 * eager.peak_allocated_bytes


def test_what_a_full_card_cannot_return_decides():
    assert unreleasable_bytes(100, 130) == 116
    assert unreleasable_bytes(100, 105) == 105


def test_needed_by_hand():
    bounds = Needed.within_bounds(100, 130)
    assert (bounds.least_bytes, bounds.likely_bytes, bounds.most_bytes) == (100, 100, 116)
    plain = Needed.by_replay(1_000, 1_100, alloc_conf="max_split_size_mb:256", gpus=1)
    assert (plain.least_bytes, plain.likely_bytes, plain.most_bytes) == (1_067, 1_100, 1_144)
    again = Needed.by_replay(1_000, 1_100, alloc_conf="", gpus=1, recomputed_bytes=550)
    assert (again.least_bytes, again.most_bytes, again.more_percent) == (1_012, 1_199, 9)
    shared = Needed.by_replay(1_000, 1_100, alloc_conf="", gpus=2, recomputed_bytes=550)
    assert (shared.least_bytes, shared.likely_bytes, shared.most_bytes) == (1_012, 1_100, 1_188)
    expandable = Needed.by_replay(1_000, 1_000, alloc_conf="expandable_segments: True", gpus=1)
    assert (expandable.least_bytes, expandable.likely_bytes, expandable.most_bytes) == (1_000, 1_000, 1_010)


def test_margins_of_rows_that_are_computed_again():
    """Checkpointing computes layers again in gaps: of long rows more is uncertain than of weights."""
    shape = architecture("qwen2.5-0.5b")
    spec = replace(_SPEC, gradient_checkpointing=True, per_device_train_batch_size=16)
    found = estimate_with_replay(spec, shape)
    of_rows = {Category.ACTIVATIONS, Category.LOGITS, Category.INPUTS, Category.WORKSPACE, Category.KV_CACHE}
    rows = sum(share.size_bytes for share in found.breakdown if share.category in of_rows)
    assert found.peak_of_rows_bytes == rows > 0.3 * found.peak_allocated_bytes
    # Where the replay has each operation of the layers, it has them again as well.
    assert found.replays_operations
    assert needed_of(spec, found).more_percent == 4
    found = replace(found, replays_operations=False)
    again, kept = (needed_of(replace(spec, gradient_checkpointing=each), found) for each in (True, False))
    assert again.more_percent > kept.more_percent == 4
    assert again.least_bytes <= kept.least_bytes < kept.most_bytes < again.most_bytes


@given(
    st.integers(0, 2**40),
    st.integers(0, 2**40),
    st.floats(0, 1),
    st.sampled_from(("", "expandable_segments:True")),
    st.integers(1, 8),
)
def test_what_is_needed_is_in_order(allocated, unreleasable, part, alloc_conf, gpus):
    """Whatever a replay says, less than the tensors is never enough."""
    rows = int(part * allocated)
    found = Needed.by_replay(allocated, unreleasable, alloc_conf=alloc_conf, gpus=gpus, recomputed_bytes=rows)
    assert allocated <= found.least_bytes <= found.likely_bytes <= found.most_bytes


def test_fragments_of_a_replay_count_where_they_decide():
    spec = replace(_SPEC, model="qwen2.5-7b", gpu="rtx-4090-24gb", tuning=Tuning.LORA, **ADAPTED)
    shape = architecture(spec.model)
    replayed = estimate_with_replay(spec, shape)
    fragments = replayed.peak_unreleasable_bytes - replayed.peak_allocated_bytes
    assert fragments > 0
    own = next(card for card in all_cards(spec, shape) if card.gpu.name == "rtx-4090-24gb")
    assert own.needed.likely_bytes == own.peak_allocated_bytes + fragments


@pytest.mark.parametrize("gradient_checkpointing", [True, False])
def test_a_trial_fits_with_fragments_or_perhaps_or_not_at_all(half_billion, gradient_checkpointing):
    small = KNOWN_GPUS["rtx-4080-16gb"]
    spec = replace(_SPEC, gradient_checkpointing=gradient_checkpointing, max_completion_length=1024)
    found = card_verdict(spec, half_billion, small)
    context = cuda_context_bytes(small.compute_capability)
    most = unreleasable_bytes(found.peak_allocated_bytes, found.peak_reserved_bytes)
    barely = replace(small, memory_bytes=most + context)
    tight = replace(small, memory_bytes=most + context - 1)
    none = replace(small, memory_bytes=found.peak_allocated_bytes + context - 1)

    assert [card_verdict(spec, half_billion, card).fit for card in (barely, tight, none)] == [
        Fit.FITS,
        Fit.TIGHT,
        Fit.TOO_LARGE,
    ]
    assert card_verdict(spec, half_billion, barely).left_bytes == 0


@pytest.mark.parametrize(
    ("capability", "gpus", "size"),
    [
        ((8, 0), 1, 0),
        ((8, 0), 2, 544 * MIB),
        ((8, 0), 16, 688 * MIB),
        ((10, 3), 8, 688 * MIB),
        # 4 MiB, and 120 x 640 x 8 values of 8 B, and 8 x 512 x 8 lines of 16 B: a connection of each of two channels.
        ((8, 9), 2, 2 * 9_633_792),
        ((12, 0), 4, 4 * 9_633_792),
    ],
)
def test_what_nccl_takes_by_hand(capability, gpus, size):
    assert nccl_bytes(capability, gpus) == size
    assert outside_torch_bytes(capability, gpus) == cuda_context_bytes(capability) + size
    assert all(row.nccl.source for row in CAPABILITIES if row.nccl is not None)


def test_several_gpus_need_what_nccl_takes(half_billion):
    card = KNOWN_GPUS["a100-40gb"]
    alone, two = (card_verdict(replace(_SPEC, num_processes=gpus), half_billion, card) for gpus in (1, 2))
    assert (alone.nccl_bytes, two.nccl_bytes) == (0, 544 * MIB)
    assert two.least_bytes == two.peak_allocated_bytes + two.context_bytes + two.nccl_bytes
    barely = replace(card, memory_bytes=two.needed_bytes)
    spec = replace(_SPEC, num_processes=2)
    assert card_verdict(spec, half_billion, barely).fit is Fit.FITS
    assert card_verdict(spec, half_billion, replace(barely, memory_bytes=two.needed_bytes - 1)).fit is not Fit.FITS


@given(specs())
def test_a_larger_card_of_the_same_kind_never_fits_less(spec):
    verdicts = {found.gpu.name: found for found in all_cards(spec, architecture(spec.model))}
    order = [Fit.FITS, Fit.TIGHT, Fit.TOO_LARGE, Fit.NO_KERNEL]

    assert order.index(verdicts["h200-141gb"].fit) <= order.index(verdicts["h100-80gb"].fit)
    assert order.index(verdicts["a100-80gb"].fit) <= order.index(verdicts["a100-40gb"].fit)


def _each_has_its_own_verdict(spec, shape):
    found = all_cards(spec, shape)
    assert found == tuple(card_verdict(spec, shape, each.gpu, replays=True) for each in found)
    assert [each.gpu.memory_bytes for each in found] == sorted(gpu.memory_bytes for gpu in KNOWN_GPUS.values())
    return found


@settings(max_examples=20)
@given(specs())
def test_each_card_has_the_verdict_that_it_has_alone(spec):
    """Cards of one compute capability share an estimate."""
    _each_has_its_own_verdict(spec, architecture(spec.model))


def test_each_card_has_its_own_part_for_vllm(half_billion):
    engine = {"vllm_mode": VllmMode.COLOCATE, "vllm_gpu_memory_utilization": 0.3, "vllm_enable_sleep_mode": False}
    found = _each_has_its_own_verdict(replace(_SPEC, use_vllm=True, **engine), half_billion)
    assert len({each.peak_allocated_bytes for each in found}) > 20


@given(specs())
def test_every_number_has_a_short_form_that_fits_its_column(spec):
    shape = architecture(spec.model)
    for instant in trial_instants(spec, shape):
        forms = instant.words()

        assert set(forms) == {category for category, size in instant.sizes.items() if size}
        assert all(0 < len(form) <= LONGEST for form in forms.values()), forms


@pytest.mark.parametrize("phase", TRIAL_PHASES)
def test_the_phases_of_an_explained_estimate_sum_up(phase, half_billion):
    found = {each.phase: each for each in explain(replace(_SPEC, beta=0.04), half_billion).phases}[phase]

    assert sum(share.size_bytes for share in found.shares) == found.peak_allocated_bytes


@given(specs())
def test_a_cache_filled_at_once_leaves_no_segments_behind(spec):
    generated, filled = (
        estimate(replace(spec, rollout=rollout), architecture(spec.model))
        for rollout in (Rollout.GENERATE, Rollout.SYNTHETIC)
    )

    assert filled.peak_allocated_bytes == generated.peak_allocated_bytes
    assert filled.peak_reserved_bytes <= generated.peak_reserved_bytes
