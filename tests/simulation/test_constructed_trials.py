"""Trials that do what trl's trainer cannot, simulated: a critic, and micro-batches by tokens."""

from typing import Any

import pytest
from simulating import FOUR_MICRO_BATCHES, simulate, small_spec

from profiler.allocator import parse_alloc_conf, replay_on_card
from profiler.analytical.estimate import phase_instants
from profiler.config.models.lookup import builtin_architecture
from profiler.domain.memory import Category, Phase
from profiler.domain.trials.trial import Rollout

COMMON: dict[str, Any] = {
    "max_prompt_length": 64,
    "max_completion_length": 128,
    "rollout": Rollout.SYNTHETIC,
    "steps": 3,
    "critic": True,
    **FOUR_MICRO_BATCHES,
}
BY_TOKENS: dict[str, Any] = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 600}


def test_the_peaks_of_a_critic_are_those_of_torchs_cuda_build_and_nearly_those_of_the_closed_form() -> None:
    """The same trial with backend=emulated, trl 1.16 and torch 2.13."""
    trace = simulate(**COMMON).trace
    found = replay_on_card(trace, capacity_bytes=None, config=parse_alloc_conf(""))
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (101_486_080, 157_286_400)
    order = list(dict.fromkeys(phase for _, phase in trace.phase_starts))
    assert order.index(Phase.REWARD) < order.index(Phase.SCORE) < order.index(Phase.CRITIC) < order.index(Phase.FORWARD)
    critics = {name for name in trace.names.values() if "critic: " in name}
    assert {"critic: score.weight", "gradient of critic: score.weight", "exp_avg of critic: score.weight"} <= critics
    assert trace.categories.count(Category.CRITIC) == len([name for name in critics if name.startswith("critic: ")])
    instants = phase_instants(small_spec(**COMMON), builtin_architecture("tiny"))  # type: ignore[arg-type]
    for phase, peak in found.phases.items():
        assert instants[phase].total_bytes == pytest.approx(peak.peak_allocated_bytes, rel=0.05), phase


def test_the_peaks_of_parts_by_tokens_are_those_of_torchs_cuda_build() -> None:
    """The same trial with backend=emulated. Its steps repeat, because parts are sorted by length."""
    run = simulate(**COMMON, **BY_TOKENS, gradient_checkpointing=False, ends_when_repeating=True)
    found = replay_on_card(run.trace, capacity_bytes=None, config=parse_alloc_conf(""))
    assert (found.peak_allocated_bytes, found.peak_reserved_bytes) == (97_671_168, 100_663_296)
    # Four rows each of 192, 176, 160 and 144 tokens: three rows fit into 600 tokens, and the four shortest.
    assert run.trainer.micro_batches_run == run.trainer.state.global_step * 5
