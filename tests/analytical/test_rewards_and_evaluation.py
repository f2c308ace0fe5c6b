"""Reward models and evaluations: numbers by hand, properties, and a comparison with the simulation."""

from dataclasses import replace

import pytest
from trial_strategies import architecture

from profiler.allocator import AllocatorConfig, replay_on_card
from profiler.analytical.estimate import estimate, phase_instants, with_replay
from profiler.analytical.formulas.models.weights import reward_models
from profiler.analytical.many import estimate_specs
from profiler.analytical.timeline.instants import InstantName
from profiler.analytical.timeline.optional_instants import without_dropout
from profiler.config.models.lookup import builtin_architecture
from profiler.constraints.table import faults_in_a_sweep
from profiler.domain.memory import GIB, Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import (
    Attention,
    Backend,
    Dtype,
    Evaluations,
    Lengths,
    Logprobs,
    RowLengths,
    TrialSpec,
    Tuning,
)
from profiler.worker.simulated import simulate

SPEC = TrialSpec(
    backend=Backend.SIMULATED,
    gpu="h100-80gb",
    model="qwen2.5-0.5b",
    max_prompt_length=256,
    max_completion_length=256,
    lengths=Lengths.FORCED,
    steps=2,
)
POLICY, JUDGE, TINY = (architecture(name) for name in ("qwen2.5-0.5b", "qwen2.5-1.5b", "tiny"))
SCORED = replace(SPEC, reward_models=("qwen2.5-1.5b",))
BOTH = replace(POLICY, reward_models=(JUDGE,))


def test_reward_models_stay_on_the_gpu_and_score_in_turn():
    alone, one, two = (
        phase_instants(SPEC, replace(POLICY, reward_models=models)) for models in ((), (JUDGE,), (JUDGE, JUDGE))
    )
    weights = reward_models(SPEC, BOTH).size
    for phase in (Phase.ROLLOUT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert one[phase].total_bytes - alone[phase].total_bytes == weights
    assert two[Phase.REWARD].total_bytes - one[Phase.REWARD].total_bytes == weights
    assert one[Phase.LOAD].name is InstantName.REWARD_LOADED
    # keys and values of 28 layers with 2 heads of 128, for 16 rows of 512 tokens
    assert one[Phase.REWARD].sizes[Category.KV_CACHE] == 2 * 28 * 256 * 16 * 512 * 2


def test_trl_quantises_and_adapts_the_policy_only():
    adapted = replace(SPEC, tuning=Tuning.QLORA, lora_rank=8, lora_target_modules=("q_proj",))
    assert reward_models(adapted, BOTH).size == reward_models(SPEC, BOTH).size
    assert estimate(adapted, BOTH).peak_allocated_bytes > estimate(adapted, POLICY).peak_allocated_bytes


SIMULATED = [
    (
        SCORED,
        {"load": 3.80, "rollout": 5.92, "reward": 6.47, "forward": 6.83, "backward": 7.59, "optimizer": 6.67},
    ),
    (
        replace(SCORED, dtype=Dtype.FLOAT32),
        {"load": 7.59, "rollout": 12.51, "reward": 14.81, "forward": 14.20, "backward": 14.22, "optimizer": 13.20},
    ),
    (
        replace(SCORED, dtype=Dtype.FLOAT32, per_device_eval_batch_size=64),
        {"load": 7.59, "rollout": 12.51, "reward": 14.81, "backward": 14.22, "evaluation": 17.91},
    ),
    (
        replace(SPEC, per_device_eval_batch_size=64),
        {"rollout": 3.03, "reward": 2.84, "forward": 3.95, "backward": 4.71, "optimizer": 3.79, "evaluation": 3.95},
    ),
]
"""Peaks in GiB of scripts with trl 1.16 by `python -m profiler.run backend=simulated`, reward models by their names."""


@pytest.mark.parametrize(("spec", "simulated"), SIMULATED)
def test_phases_agree_with_the_simulation(spec, simulated):
    found = phase_instants(spec, BOTH if spec.reward_models else POLICY)
    for phase, gib in simulated.items():
        assert found[Phase(phase)].total_bytes / GIB == pytest.approx(gib, rel=0.02), phase


def test_an_evaluation_is_a_phase_of_its_own():
    evaluated = replace(SPEC, per_device_eval_batch_size=16)
    alone, found = phase_instants(SPEC, POLICY), phase_instants(evaluated, POLICY)
    assert Phase.EVALUATION not in alone
    assert {phase: found[phase].total_bytes for phase in alone} == {
        phase: each.total_bytes for phase, each in alone.items()
    }
    # a generation batch has 16 rows as well: what is generated needs the same, with a second set of inputs
    larger = phase_instants(replace(SPEC, per_device_eval_batch_size=64), POLICY)
    assert larger[Phase.EVALUATION].total_bytes > found[Phase.EVALUATION].total_bytes
    assert Category.GRADIENTS not in {key for key, size in found[Phase.EVALUATION].sizes.items() if size}


def test_an_evaluation_after_one_step_has_optimizer_state():
    one = phase_instants(replace(SPEC, steps=1, per_device_eval_batch_size=4), POLICY)[Phase.EVALUATION]
    assert one.sizes[Category.OPTIMIZER_STATE] == 2 * 2 * 494_032_768 + 290 * 4


def test_an_evaluation_has_the_state_of_the_critic_too():
    with_critic = replace(SPEC, critic=True, per_device_eval_batch_size=4)
    found = phase_instants(with_critic, POLICY)
    state = found[Phase.OPTIMIZER].sizes[Category.OPTIMIZER_STATE]
    assert found[Phase.EVALUATION].sizes[Category.OPTIMIZER_STATE] == state
    alone = phase_instants(replace(with_critic, critic=False), POLICY)[Phase.EVALUATION]
    assert state > 1.9 * alone.sizes[Category.OPTIMIZER_STATE]


def test_arrays_of_trials_agree_with_single_ones():
    specs = [
        replace(SCORED, per_device_eval_batch_size=rows, max_completion_length=n) for rows in (8, 64) for n in (32, 64)
    ]
    table = estimate_specs(specs, {"qwen2.5-0.5b": BOTH})
    for row, spec in enumerate(specs):
        assert table.estimate(row) == replace(estimate(spec, BOTH), breakdown=())
    assert table.peak_phase(3) is Phase.EVALUATION


def test_a_sweep_names_what_it_does_not_run():
    faults = faults_in_a_sweep([replace(SCORED, per_device_eval_batch_size=8)], builtin_architecture)
    assert [fault.key for fault in faults] == ["reward_models", "per_device_eval_batch_size"]


# ---- of rows of data -------------------------------------------------------------------------------------------------


def rows_spec(**keys):
    rows = {"recipe": Recipe.SFT, "max_length": 512, "per_device_train_batch_size": 1, "per_device_eval_batch_size": 4}
    return replace(SPEC, gradient_accumulation_steps=1, steps_per_generation=1, **(rows | keys))


def test_logits_of_an_evaluation_of_labels_by_hand():
    """4 rows of 512, V = 151,936: the outputs in float32, and two copies without the last token while trl logs them."""
    found = phase_instants(rows_spec(logprobs=Logprobs.NLL_TWO_COPIES), POLICY)[Phase.EVALUATION]
    assert found.name is InstantName.EVALUATION_LOSS
    assert found.sizes[Category.LOGITS] == 4 * (512 + 2 * 511) * 151_936 * 4
    in_model = phase_instants(rows_spec(logprobs=Logprobs.NLL), POLICY)[Phase.EVALUATION]
    assert in_model.sizes[Category.LOGITS] == 4 * 512 * 151_936 * (2 + 4 + 4)
    # three int64 tensors of the row of training, and of the four rows
    assert found.sizes[Category.INPUTS] == 3 * 5 * 512 * 8


ROWS = [
    {},
    {"logprobs": Logprobs.NLL_ENTROPY, "tuning": Tuning.LORA, "lora_rank": 8, "lora_target_modules": ("q_proj",)},
    {"logprobs": Logprobs.CHUNKED_NLL},
    {"recipe": Recipe.DPO, "beta": 0.1},
    {"recipe": Recipe.KTO, "beta": 0.1, "per_device_train_batch_size": 2},
    {"recipe": Recipe.REWARD},
]


@pytest.mark.parametrize("keys", ROWS)
def test_an_evaluation_of_rows_adds_a_phase_and_changes_no_other(keys):
    spec = rows_spec(**keys)
    alone = phase_instants(replace(spec, per_device_eval_batch_size=None), POLICY)
    found = phase_instants(spec, POLICY)
    assert {phase: found[phase].total_bytes for phase in found if phase is not Phase.EVALUATION} == {
        phase: each.total_bytes for phase, each in alone.items()
    }
    evaluated = found[Phase.EVALUATION]
    assert evaluated.sizes.get(Category.GRADIENTS, 0) == 0
    assert evaluated.sizes[Category.OPTIMIZER_STATE] == found[Phase.OPTIMIZER].sizes[Category.OPTIMIZER_STATE]
    more = phase_instants(replace(spec, per_device_eval_batch_size=8), POLICY)[Phase.EVALUATION]
    assert more.total_bytes > evaluated.total_bytes


@pytest.mark.parametrize("tokens", [64, 2048], ids=["the head is the peak", "attention is the peak"])
def test_nothing_is_dropped_or_checkpointed_in_an_evaluation(tokens):
    lora = {"tuning": Tuning.LORA, "lora_rank": 8, "lora_alpha": 16, "lora_target_modules": ("down_proj",)}
    eager = replace(rows_spec(**lora, logprobs=Logprobs.FUSED, max_length=tokens), attn_implementation=Attention.EAGER)
    kinds = [replace(POLICY, attention_dropout=part) for part in (0.0, 0.5)]
    found = {
        phase_instants(replace(eager, lora_dropout=part, gradient_checkpointing=checkpoints), kind)[
            Phase.EVALUATION
        ].total_bytes
        for part in (0.0, 0.05)
        for checkpoints in (False, True)
        for kind in kinds
    }
    assert len(found) == 1
    assert without_dropout(kinds[1]) == kinds[0]


def test_the_reference_of_rows_to_evaluate_runs_before_training():
    spec = rows_spec(recipe=Recipe.DPO, beta=0.1, precompute_ref_log_probs=True, per_device_eval_batch_size=8)
    alone = replace(spec, per_device_eval_batch_size=None)
    as_many = replace(alone, precompute_ref_batch_size=8)
    evaluated, few, many = (phase_instants(each, POLICY)[Phase.SCORE].total_bytes for each in (spec, alone, as_many))
    assert evaluated == many > few


@pytest.mark.parametrize("keys", ROWS)
def test_an_evaluation_of_rows_agrees_with_the_simulation(keys):
    spec = rows_spec(**{"lora_alpha": 16, **keys}, model="tiny", max_length=256, max_prompt_length=32)
    longest = 256 - (32 if spec.recipe.facts.has_prompts else 0)
    sides = 1 if spec.recipe.facts.rows_are_single else 2
    prompts = (32,) if spec.recipe.facts.has_prompts else ()
    evaluations = Evaluations(
        eval_steps=1, per_device_eval_batch_size=4, prompts=prompts * 4, completions=[longest] * 4 * sides
    )
    lengths = RowLengths(prompts=prompts, completions=[longest], evaluations=evaluations)
    bare = replace(spec, per_device_eval_batch_size=None)
    trace = simulate(bare, BUILTIN_MODELS["tiny"].config, rows=lengths).trace
    simulated = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    found = with_replay(estimate(spec, TINY), spec, TINY)
    evaluated = phase_instants(spec, TINY)[Phase.EVALUATION].total_bytes
    assert evaluated == pytest.approx(simulated.phases[Phase.EVALUATION].peak_allocated_bytes, rel=0.01)
    assert found.peak_reserved_bytes == pytest.approx(simulated.peak_reserved_bytes, rel=0.05)


def test_a_replay_of_an_evaluation_has_its_segments():
    """16 rows of logits twice in float32 are more than all segments of a row of training."""
    spec = rows_spec(logprobs=Logprobs.NLL, per_device_eval_batch_size=16)
    found = with_replay(estimate(spec, POLICY), spec, POLICY)
    alone = replace(spec, per_device_eval_batch_size=None)
    assert found.peak_unreleasable_bytes is not None
    assert found.peak_reserved_bytes >= found.peak_allocated_bytes
    assert found.peak_reserved_bytes - with_replay(estimate(alone, POLICY), alone, POLICY).peak_reserved_bytes > GIB
