"""A run that ends when its steps repeat has the same trace as the complete run."""

from typing import Any

import pytest
from matrix import with_further
from simulating import LORA, simulate, small_spec

from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.trial import Lengths, Logprobs, Tuning
from profiler.worker.simulated import run_simulated

STEPS = 6
FORCED: dict[str, Any] = {"steps": STEPS, "lengths": Lengths.FORCED}
CASES: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA with a reference, without checkpointing": {
        "tuning": Tuning.LORA,
        "beta": 0.04,
        "gradient_checkpointing": False,
        **LORA,
    },
    "8-bit, a rollout for every micro-batch": {"optim": Optimizer.ADAMW_8BIT, "steps_per_generation": 1},
    "log-probabilities of 2025": {"logprobs": Logprobs.FULL},
}


@pytest.mark.parametrize("case", with_further(CASES, list(CASES)[:2]))
def test_the_trace_equals_that_of_the_complete_run(case: str) -> None:
    keys = FORCED | CASES[case]
    complete = simulate(**keys)
    ended = simulate(**keys, ends_when_repeating=True)
    assert complete.trainer.state.global_step == STEPS
    assert ended.trainer.state.global_step < STEPS
    assert ended.trace == complete.trace


def test_ragged_steps_differ_and_all_run() -> None:
    keys: dict[str, Any] = {"steps": 4, "lengths": Lengths.RAGGED}
    complete = simulate(**keys)
    ended = simulate(**keys, ends_when_repeating=True)
    assert ended.trainer.state.global_step == 4
    assert ended.trace == complete.trace


def test_a_record_counts_the_steps_that_ran() -> None:
    spec = small_spec(**FORCED)
    outcome = run_simulated(spec, BUILTIN_MODELS[spec.model].config)
    assert outcome.status is Status.OK
    assert outcome.work.steps_run == 4  # the first two extrapolate their rollouts, the others fill their cache
    assert outcome.work.micro_batches_run == 4 * spec.gradient_accumulation_steps


def test_the_configuration_is_not_changed() -> None:
    ended = simulate(**FORCED, ends_when_repeating=True)
    assert ended.trainer.args.max_steps == STEPS
    assert ended.trainer.state.max_steps == STEPS
