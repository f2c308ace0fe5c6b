"""Reward models and evaluations: numbers by hand, properties, and a comparison with the simulation."""

from dataclasses import replace

import pytest
from trial_strategies import architecture

from profiler.analytical.estimate import estimate, phase_instants
from profiler.analytical.formulas.models.weights import reward_models
from profiler.analytical.many import estimate_specs
from profiler.analytical.timeline.instants import InstantName
from profiler.config.models.lookup import builtin_architecture
from profiler.constraints.table import faults_in_a_sweep
from profiler.domain.memory import GIB, Category, Phase
from profiler.domain.trials.trial import Backend, Dtype, Lengths, TrialSpec, Tuning

SPEC = TrialSpec(
    backend=Backend.SIMULATED,
    gpu="h100-80gb",
    model="qwen2.5-0.5b",
    max_prompt_length=256,
    max_completion_length=256,
    lengths=Lengths.FORCED,
    steps=2,
)
POLICY, JUDGE = architecture("qwen2.5-0.5b"), architecture("qwen2.5-1.5b")
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
