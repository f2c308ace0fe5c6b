"""Several GPUs: numbers by hand, properties, and the rule of the public report."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trial_strategies import architecture

from profiler.analytical.baselines.verl_baseline import baseline_view
from profiler.analytical.baselines.verl_report import (
    REPORT_ROWS,
    report_activation_bytes,
    report_models_bytes,
    report_sharded_gb,
)
from profiler.analytical.formulas.models.parameters import layer_parameter_count, parameter_count
from profiler.analytical.formulas.models.value_models import critic_count
from profiler.analytical.formulas.verl_pass import (
    entropy_log_prob_bytes,
    entropy_update_bytes,
    kv_demand_bytes,
    logits_bytes,
    pool_bytes,
    stack_bytes,
)
from profiler.analytical.timeline.instants import Instant, InstantName
from profiler.analytical.timeline.recipes.verl import Component, VerlPhase, verl_estimate
from profiler.analytical.timeline.sharding.verl import SHARDINGS, outside_parameters
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import ALL_LINEAR
from profiler.domain.verl import EntropySettings, Strategy, TrainedModel, VerlJob

_CARD = KNOWN_GPUS["h100-80gb"]
_7B = architecture("qwen2.5-7b")
_JOB = VerlJob(
    model="qwen2.5-7b",
    n_gpus=8,
    strategy=Strategy.FSDP,
    actor=TrainedModel(max_tokens=1_000),
    critic=None,
    has_reference=True,
    ref_param_offload=False,
    log_prob_max_tokens=1_000,
    fsdp_size=8,
    reshard_after_forward=True,
    tensor_model_parallel_size=1,
    pipeline_model_parallel_size=1,
    use_fused_kernels=False,
    lora_rank=0,
    lora_target_modules=(ALL_LINEAR,),
    max_prompt_length=512,
    max_response_length=1_024,
    train_batch_size=1_024,
    rollout_n=8,
    rollout_tensor_parallel_size=2,
    gpu_memory_utilization=0.5,
    free_cache_engine=True,
)
_MEGATRON = replace(
    _JOB, strategy=Strategy.MEGATRON, tensor_model_parallel_size=2, pipeline_model_parallel_size=2, fsdp_size=1
)
_BILLION = 10**9


def _entropy(**keys):
    return replace(_JOB, entropy=EntropySettings(**keys))


def test_the_entropy_of_the_update_by_hand():
    toy = replace(_7B, vocab_size=100)
    in_loss = {"in_update": True, "in_loss": True}
    assert entropy_update_bytes(_JOB, toy, 1_000) == 0
    # one more bfloat16 gradient of 1,000 x 100 logits
    assert entropy_update_bytes(_entropy(**in_loss), toy, 1_000) == 200_000
    assert entropy_update_bytes(_entropy(**in_loss, is_compiled=False), toy, 1_000) == 2_400_000
    assert entropy_update_bytes(_entropy(in_update=True, is_compiled=False), toy, 1_000) == 1_000_000
    kept = _entropy(in_update=True, is_compiled=False, checkpointing=True)
    assert entropy_update_bytes(kept, toy, 1_000) == 200_000
    # 1,024 of 1,536 tokens are responses
    responses = _entropy(**in_loss, is_compiled=False, only_responses=True)
    assert entropy_update_bytes(responses, toy, 1_536) == 1_024 * 100 * 24
    assert entropy_update_bytes(replace(_entropy(**in_loss), use_fused_kernels=True), toy, 1_000) == 0


def test_the_entropy_of_old_log_probabilities_by_hand():
    toy, eager = replace(_7B, vocab_size=100), _entropy(is_compiled=False)
    assert entropy_log_prob_bytes(_JOB, toy, 1_000) == 0
    assert entropy_log_prob_bytes(eager, toy, 1_000) == 1_200_000
    chunks = _entropy(is_compiled=False, chunking=True)
    assert entropy_log_prob_bytes(chunks, toy, 10_000) == 2_048 * 100 * 12
    # A reference computes no entropy.
    phases = verl_estimate(eager, _7B, _CARD).phases
    more = phases[VerlPhase.LOG_PROB][Component.LOGITS] - phases[VerlPhase.REFERENCE][Component.LOGITS]
    assert more == 1_000 * _7B.vocab_size * 12


def _sharding(job, model=_7B, count=7 * _BILLION):
    kind = SHARDINGS[job.strategy]
    return kind(job=job, architecture=model, model=TrainedModel(weight_bytes=4), values=count, trained=count)


def test_shards_by_hand():
    found = _sharding(_JOB)
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
    assert _sharding(_JOB, half_billion).gathered(backward).size == 331_920_640
    assert _sharding(_MEGATRON, half_billion).gathered(backward).size == 0
    zero2 = replace(_JOB, reshard_after_forward=False)
    assert _sharding(zero2, half_billion).gathered(backward).size == 2 * 494_032_768
    assert _sharding(_JOB).unreduced_bytes(1_000, reducing=False) == 2_000
    assert _sharding(_JOB).unreduced_bytes(1_000, reducing=True) == 6_000
    assert logits_bytes(_JOB, half_billion, 1_000, training=True) == 2 * 303_872_000
    assert logits_bytes(replace(_JOB, use_fused_kernels=True), half_billion, 1_000, training=True) == 0
    assert stack_bytes(_JOB, _7B, _JOB.actor) == 200_704_000
    assert stack_bytes(_JOB, _7B, replace(_JOB.actor, activation_offload=True)) == 14_336_000


def test_the_rollout_by_hand():
    assert pool_bytes(_JOB, 80 * _BILLION) == 40_000_000_000
    assert kv_demand_bytes(_JOB, _7B) == 90_194_313_216


def test_a_critic_has_one_value_instead_of_a_vocabulary(toy):
    untied = replace(toy, tie_word_embeddings=False)

    assert critic_count(toy) == parameter_count(toy) + 9
    assert critic_count(untied) == parameter_count(untied) - 800 + 9


@given(
    gpus=st.sampled_from([1, 2, 4, 8]),
    lora_rank=st.sampled_from([0, 16]),
    strategy=st.sampled_from([Strategy.FSDP, Strategy.FSDP2, Strategy.MEGATRON]),
    has_critic=st.booleans(),
    sleeps=st.booleans(),
)
def test_more_gpus_and_more_offloading_never_need_more(gpus, lora_rank, strategy, has_critic, sleeps):
    job = replace(
        _JOB,
        n_gpus=gpus,
        fsdp_size=gpus,
        lora_rank=lora_rank,
        strategy=strategy,
        critic=TrainedModel() if has_critic else None,
        free_cache_engine=sleeps,
    )
    offloaded = TrainedModel(param_offload=True, optimizer_offload=True, max_tokens=1_000, activation_offload=True)
    found = verl_estimate(job, _7B, _CARD)
    wider = verl_estimate(replace(job, n_gpus=2 * gpus, fsdp_size=2 * gpus), _7B, _CARD)
    lighter = verl_estimate(replace(job, actor=offloaded), _7B, _CARD)

    for phase in found.phases:
        assert sum(wider.phases[phase].values()) <= sum(found.phases[phase].values())
        assert sum(lighter.phases[phase].values()) <= sum(found.phases[phase].values())
    assert found.peak_bytes == max(sum(parts.values()) for parts in found.phases.values())
    assert (VerlPhase.UPDATE_CRITIC in found.phases) == has_critic


def test_offloading_saves_memory_in_other_phases_but_not_in_the_update():
    offloaded = replace(_JOB, actor=replace(_JOB.actor, param_offload=True, optimizer_offload=True))
    before, after = (verl_estimate(job, _7B, _CARD).phases for job in (_JOB, offloaded))

    assert after[VerlPhase.UPDATE_ACTOR] == before[VerlPhase.UPDATE_ACTOR]
    assert Component.ACTOR not in after[VerlPhase.ROLLOUT]
    assert Component.ACTOR_STATE not in after[VerlPhase.LOG_PROB]
    policy = replace(_JOB, actor=replace(_JOB.actor, offload_policy=True))
    assert Component.ACTOR not in verl_estimate(policy, _7B, _CARD).phases[VerlPhase.UPDATE_ACTOR]


def test_an_engine_that_never_sleeps_keeps_its_pool_in_every_phase():
    found = verl_estimate(replace(_JOB, free_cache_engine=False), _7B, _CARD)

    assert {parts[Component.POOL] for parts in found.phases.values()} == {pool_bytes(_JOB, _CARD.memory_bytes)}


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

    assert report_activation_bytes(_7B, **shape, checkpointing=False, offloading=False) == 200_704_000
    assert report_activation_bytes(_7B, **shape, checkpointing=True, offloading=False) == 50_176_000
    assert report_activation_bytes(_7B, **shape, checkpointing=True, offloading=True) == 15_052_800


@pytest.mark.parametrize(
    "job",
    [
        _JOB,
        _MEGATRON,
        replace(_JOB, critic=TrainedModel(optimizer_offload=True), free_cache_engine=False),
        replace(_JOB, lora_rank=32, use_fused_kernels=True),
        replace(_JOB, actor=replace(_JOB.actor, offload_policy=True, activation_offload=True)),
    ],
)
def test_the_report_and_all_differences_sum_to_our_estimate(job):
    found = verl_estimate(job, _7B, _CARD)
    view = baseline_view(found, _7B)

    assert view.ours_bytes == sum(found.phases[VerlPhase.UPDATE_ACTOR].values())
    assert view.report_bytes + sum(each.size_bytes for each in view.differences) == view.ours_bytes
