"""Several GPUs: numbers by hand, properties, and the rule of the public report."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from toy_models import JOB, SEVEN_BILLION

from profiler.analytical.baselines import (
    REPORT_ROWS,
    baseline_view,
    report_activation_bytes,
    report_models_bytes,
    report_sharded_gb,
)
from profiler.analytical.formulas.models.parameters import layer_parameter_count, parameter_count
from profiler.analytical.formulas.verl_pass import (
    pool_bytes,
)
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.recipes.verl import Component, Role, VerlPhase, shardings_of, verl_estimate
from profiler.analytical.timeline.sharding.verl import SHARDINGS, outside_parameters
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.domain.verl import EntropySettings, Strategy, TrainedModel

_CARD = KNOWN_GPUS["h100-80gb"]
_MEGATRON = replace(
    JOB, strategy=Strategy.MEGATRON, tensor_model_parallel_size=2, pipeline_model_parallel_size=2, fsdp_size=1
)
_BILLION = 10**9


def test_a_reference_computes_no_entropy():
    long = replace(JOB, entropy=EntropySettings(is_compiled=False), log_prob_max_tokens=10_000)  # the head decides
    phases = verl_estimate(long, SEVEN_BILLION, _CARD).phases
    more = phases[VerlPhase.LOG_PROB][Component.LOGITS] - phases[VerlPhase.REFERENCE][Component.LOGITS]
    assert more == 10_000 * SEVEN_BILLION.vocab_size * 12


@given(tokens=st.integers(1, 60_000), rank=st.sampled_from((0, 16)), strategy=st.sampled_from(Strategy))
def test_scores_are_of_a_layer_or_of_the_head(tokens, rank, strategy):
    """Logits and the tensors of an MLP are never there together, and a reference needs at most what the actor does."""
    found = verl_estimate(
        replace(JOB, strategy=strategy, lora_rank=rank, log_prob_max_tokens=tokens), SEVEN_BILLION, _CARD
    ).phases
    parts = found[VerlPhase.LOG_PROB]
    if Component.LOGITS in parts:
        norm = tokens * SEVEN_BILLION.hidden_size * 2
        assert parts[Component.ACTIVATIONS] in (norm, norm // JOB.tensor_model_parallel_size)
    else:
        assert parts[Component.ACTIVATIONS] > 0


def test_what_is_gathered_without_gradient_by_hand(half_billion):
    """Outside of layers, and the layer that computes; FSDP 2 has the buffer of its last gathering too."""
    layer, outside = 14_912_384 * 2, 136_135_552 * 2
    for strategy, layers in ((Strategy.FSDP, (0, 1)), (Strategy.FSDP2, (1, 2))):
        sharding = _sharding(replace(JOB, strategy=strategy), half_billion)
        names = (InstantName.SCORE_HEAD, InstantName.SCORE_LAYER)
        found = [sharding.gathered(Instant(phase=Phase.SCORE, name=name, terms={})).size for name in names]
        assert found == [outside + each * layer for each in layers]
    copies = replace(JOB, fsdp_size=2, workers=replace(JOB.workers, copied_reference_bytes=4))
    kind = SHARDINGS[Strategy.FSDP]
    reference = kind(job=copies, architecture=half_billion, model=TrainedModel(weight_bytes=2), values=1, trained=0)
    assert reference.copied_bytes(1_000) == 3_000
    assert _sharding(copies, half_billion).copied_bytes(1_000) == 0


def _sharding(job, model=SEVEN_BILLION, count=7 * _BILLION):
    kind = SHARDINGS[job.strategy]
    return kind(job=job, architecture=model, model=TrainedModel(weight_bytes=4), values=count, trained=count)


def test_shards_by_hand():
    found = _sharding(JOB)
    assert found.weights.size == found.gradients.size == 3_500_000_000
    assert found.states.size == 7_000_000_000
    assert found.states.words() == "7e9 x 8 B / 8 GPUs"
    # tensor 2 x pipeline 2: bfloat16 weights and float32 gradients over 4, masters and two states over all 8
    found = _sharding(_MEGATRON)
    assert found.weights.size == 3_500_000_000
    assert found.gradients.size == 7_000_000_000
    assert found.states.size == 10_500_000_000


def test_transient_memory_by_hand(half_billion):
    backward = Instant(phase=Phase.BACKWARD, name=InstantName.BACKWARD_HEAD, terms={})
    assert layer_parameter_count(half_billion) == 14_912_384
    assert outside_parameters(half_billion) == 136_135_552
    assert _sharding(JOB, half_billion).gathered(backward).size == 331_920_640
    assert _sharding(_MEGATRON, half_billion).gathered(backward).size == 0
    zero2 = replace(JOB, reshard_after_forward=False)
    assert _sharding(zero2, half_billion).gathered(backward).size == 2 * 494_032_768
    assert _sharding(JOB).unreduced_bytes(1_000, reducing=False) == 2_000
    assert _sharding(JOB).unreduced_bytes(1_000, reducing=True) == 6_000


@given(
    gpus=st.sampled_from([1, 2, 4, 8]),
    lora_rank=st.sampled_from([0, 16]),
    strategy=st.sampled_from([Strategy.FSDP, Strategy.FSDP2, Strategy.MEGATRON]),
    has_critic=st.booleans(),
    sleeps=st.booleans(),
)
def test_more_gpus_and_more_offloading_never_need_more(gpus, lora_rank, strategy, has_critic, sleeps):
    job = replace(
        JOB,
        n_gpus=gpus,
        fsdp_size=gpus,
        lora_rank=lora_rank,
        strategy=strategy,
        critic=TrainedModel() if has_critic else None,
        free_cache_engine=sleeps,
    )
    offloaded = TrainedModel(param_offload=True, optimizer_offload=True, max_tokens=1_000, activation_offload=True)
    found = verl_estimate(job, SEVEN_BILLION, _CARD)
    wider = verl_estimate(replace(job, n_gpus=2 * gpus, fsdp_size=2 * gpus), SEVEN_BILLION, _CARD)
    lighter = verl_estimate(replace(job, actor=offloaded), SEVEN_BILLION, _CARD)

    for phase in found.phases:
        assert sum(wider.phases[phase].values()) <= sum(found.phases[phase].values())
        assert sum(lighter.phases[phase].values()) <= sum(found.phases[phase].values())
    assert found.peak_bytes == max(sum(parts.values()) for parts in found.phases.values())
    assert (VerlPhase.UPDATE_CRITIC in found.phases) == has_critic


def test_offloading_saves_memory_outside_of_the_update():
    offloaded = replace(JOB, actor=replace(JOB.actor, param_offload=True, optimizer_offload=True))
    before, after = (verl_estimate(job, SEVEN_BILLION, _CARD).phases for job in (JOB, offloaded))

    assert after[VerlPhase.UPDATE_ACTOR] == before[VerlPhase.UPDATE_ACTOR]
    assert Component.ACTOR not in after[VerlPhase.ROLLOUT]
    assert Component.ACTOR_STATE not in after[VerlPhase.LOG_PROB]
    policy = replace(JOB, actor=replace(JOB.actor, offload_policy=True))
    assert Component.ACTOR not in verl_estimate(policy, SEVEN_BILLION, _CARD).phases[VerlPhase.UPDATE_ACTOR]


def test_an_engine_that_never_sleeps_always_keeps_its_pool():
    found = verl_estimate(replace(JOB, free_cache_engine=False), SEVEN_BILLION, _CARD)

    assert {parts[Component.POOL] for parts in found.phases.values()} == {pool_bytes(JOB, _CARD.memory_bytes)}


def test_the_reports_own_numbers():
    ppo = report_models_bytes(7 * _BILLION, has_reference=True, has_critic=True)
    grpo = report_models_bytes(7 * _BILLION, has_reference=True, has_critic=False)

    assert (ppo, grpo) == (126 * _BILLION, 70 * _BILLION)
    assert round(100 * (1 - grpo / ppo)) == 44
    assert [row.printed_total_gb for row in REPORT_ROWS] == [50.7, 109.0, 414.8]
    assert [row.printed_sharded_gb for row in REPORT_ROWS] == [24.2, 32.8, 71.2]
    assert [report_sharded_gb(row) for row in REPORT_ROWS] == pytest.approx([28.2, 47.75, 114.8])


def test_the_reports_activations_by_hand():
    shape = {"batch": 1, "tokens": 1_000}

    assert report_activation_bytes(SEVEN_BILLION, **shape, checkpointing=False, offloading=False) == 200_704_000
    assert report_activation_bytes(SEVEN_BILLION, **shape, checkpointing=True, offloading=False) == 50_176_000
    assert report_activation_bytes(SEVEN_BILLION, **shape, checkpointing=True, offloading=True) == 15_052_800


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        _MEGATRON,
        replace(JOB, critic=TrainedModel(optimizer_offload=True), free_cache_engine=False),
        replace(JOB, lora_rank=32, use_fused_kernels=True),
        replace(JOB, actor=replace(JOB.actor, offload_policy=True, activation_offload=True)),
    ],
)
def test_the_report_and_all_differences_sum_to_our_estimate(job):
    found = verl_estimate(job, SEVEN_BILLION, _CARD)
    view = baseline_view(found, SEVEN_BILLION)

    assert view.ours_bytes == sum(found.phases[VerlPhase.UPDATE_ACTOR].values())
    assert view.report_bytes + sum(each.size_bytes for each in view.differences) == view.ours_bytes


def test_a_step_has_the_denominators_of_all_shards():
    """By hand, 7,615,616,512 values over 8 GPUs: weights, gradients, two states, denominators, in float32."""
    found = verl_estimate(JOB, SEVEN_BILLION, _CARD).phases[VerlPhase.STEP_ACTOR]
    shard = -(-int(parameter_count(SEVEN_BILLION)) // JOB.fsdp_size) * 4
    own = {part: size for part, size in found.items() if part not in (Component.REFERENCE, Component.POOL)}
    assert own == {
        Component.ACTOR: shard,
        Component.ACTOR_GRADIENTS: shard,
        Component.ACTOR_STATE: 2 * shard,
        Component.CUBLAS: 67_108_864,
        Component.STEP: shard,
    }
    on_host = replace(JOB, actor=replace(JOB.actor, offload_policy=True))
    step = verl_estimate(on_host, SEVEN_BILLION, _CARD).phases[VerlPhase.STEP_ACTOR]
    assert not {Component.ACTOR_GRADIENTS, Component.STEP} & step.keys()
    whole = replace(JOB, strategy=Strategy.MEGATRON)
    assert Component.STEP not in verl_estimate(whole, SEVEN_BILLION, _CARD).phases[VerlPhase.STEP_ACTOR]


def test_a_shard_that_arrives_is_there_next_to_the_earlier_one():
    """At the end of a backward the gathered weights are gone; with earlier micro-batches a second shard is there."""
    one, more = (replace(JOB, actor=replace(JOB.actor, accumulates=earlier)) for earlier in (False, True))
    ends = [
        shardings_of(job, SEVEN_BILLION)[Role.ACTOR].shared(
            Instant(phase=Phase.BACKWARD, name=InstantName.BACKWARD_END, terms={})
        )
        for job in (one, more)
    ]
    outside = outside_parameters(SEVEN_BILLION)
    first, second = (int(each.terms[Category.GRADIENTS].size) for each in ends)
    assert second - first == -(-outside // JOB.fsdp_size) * 4
    assert not any(each.terms[Category.COMMUNICATION].size for each in ends)
