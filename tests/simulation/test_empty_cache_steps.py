"""`torch_empty_cache_steps` empties the cache before backward, in the optimizer steps that it names."""

import pytest
from simulating import simulate

from profiler.domain.memory import Phase


@pytest.mark.parametrize(("every", "emptied"), [(None, 0), (1, 4), (2, 2)])
def test_the_cache_is_emptied_between_loss_and_backward(every: int | None, emptied: int) -> None:
    """Two optimizer steps of two micro-batches each; transformers counts the first step as step 0."""
    trace = simulate(torch_empty_cache_steps=every).trace
    starts = [index for index, phase in trace.phase_starts if phase is Phase.BACKWARD]
    in_training = [index for index in trace.cache_emptied if index >= starts[0]]
    assert len(in_training) == emptied
    # The cache is emptied after the phase has begun, before the first block of backward.
    assert all(0 <= index - max(start for start in starts if start <= index) <= 40 for index in in_training)
