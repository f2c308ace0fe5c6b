"""A run that ends where its steps repeat has the trace of the run to the end."""

from typing import Any

import pytest
from simulating import LORA, simulate, small_spec

from profiler.domain.builtin_models import BUILTIN_MODELS
from profiler.domain.optimizers import Optimizer
from profiler.domain.outcome import Status
from profiler.domain.trial import Lengths, Logprobs, Tuning
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


@pytest.mark.parametrize("case", CASES)
def test_the_trace_is_that_of_the_run_to_the_end(case: str) -> None:
    long_way = simulate(**FORCED, **CASES[case])
    ended = simulate(**FORCED, **CASES[case], ends_when_repeating=True)
    assert long_way.trainer.state.global_step == STEPS
    assert ended.trainer.state.global_step < STEPS
    assert ended.trace == long_way.trace


def test_ragged_steps_are_dealt_out_anew_and_all_run() -> None:
    long_way = simulate(steps=4, lengths=Lengths.RAGGED)
    ended = simulate(steps=4, lengths=Lengths.RAGGED, ends_when_repeating=True)
    assert ended.trainer.state.global_step == 4
    assert ended.trace == long_way.trace


def test_a_record_says_what_really_ran() -> None:
    spec = small_spec(**FORCED)
    outcome = run_simulated(spec, BUILTIN_MODELS[spec.model].config)
    assert outcome.status is Status.OK
    assert outcome.work.steps_run == 4  # the first two tell their rollouts, the third and the fourth fill their cache
    assert outcome.work.micro_batches_run == 4 * spec.gradient_accumulation_steps


def test_the_configuration_is_never_changed_to_shorten() -> None:
    ended = simulate(**FORCED, ends_when_repeating=True)
    assert ended.trainer.args.max_steps == STEPS
    assert ended.trainer.state.max_steps == STEPS
