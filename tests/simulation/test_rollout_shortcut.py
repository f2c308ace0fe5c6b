"""The rollout without its length holds what the rollout token by token holds."""

import pytest
from simulating import LORA, Simulated, simulate

from profiler.domain.memory import Category, Phase
from profiler.domain.trial import Lengths, Tuning


def rollout_peaks(simulated: Simulated) -> tuple[int, int]:
    """Highest total and highest KV cache during the rollout."""
    rollout = [
        (sum(level.values()), level[Category.KV_CACHE]) for phase, level in simulated.levels() if phase is Phase.ROLLOUT
    ]
    return max(total for total, _ in rollout), max(cache for _, cache in rollout)


@pytest.mark.parametrize("keys", [{}, {"tuning": Tuning.LORA, "beta": 0.04, **LORA}, {"lengths": Lengths.FORCED}])
def test_the_shortcut_has_the_peaks_of_the_long_way(keys: dict[str, object]) -> None:
    sizes = {"max_prompt_length": 16, "max_completion_length": 24, "steps": 1}
    short, long = simulate(**sizes, **keys), simulate(shortcut_rollout=False, **sizes, **keys)
    assert len(short.trace.events) < len(long.trace.events)
    assert rollout_peaks(short) == rollout_peaks(long)
    assert short.left_at_the_end() == long.left_at_the_end()


def test_a_run_repeated_is_the_same_event_by_event() -> None:
    assert simulate().trace == simulate().trace


def test_only_scored_positions_reach_the_fused_head() -> None:
    """trl scores, on a GPU, the positions of completions only; ragged rows have fewer of them than forced ones."""
    ragged, forced = simulate(lengths=Lengths.RAGGED, steps_per_generation=1), simulate(lengths=Lengths.FORCED)
    hidden_bytes = 64 * 2
    # Completions of 12, 11, 9 and 8 tokens (0, 1, 2 and 3 eighths of 12 less) against four of 12.
    assert (12 + 12 - 12 // 8 + 12 - 24 // 8 + 12 - 36 // 8) * hidden_bytes in ragged.trace.sizes_bytes
    assert 4 * 12 * hidden_bytes in forced.trace.sizes_bytes
