"""The shape of a step: a trace by hand, and what must hold of any."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from simulating import simulate

from profiler.allocator import Trace, TraceBuilder
from profiler.allocator.traces.replay import INSTANTS_A_STRETCH, in_use, step_shape
from profiler.domain.memory import Category, Phase


def by_hand() -> Trace:
    """Weights of 1,000 bytes; two steps of forward (700 bytes) and optimizer, which in the first makes its state."""
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    builder.allocate(1000, Category.WEIGHTS)
    for step in range(2):
        builder.enter(Phase.FORWARD)
        activations = builder.allocate(700, Category.ACTIVATIONS)
        builder.enter(Phase.OPTIMIZER)
        builder.free(activations)
        if step == 0:
            builder.allocate(512, Category.OPTIMIZER_STATE)
    return builder.finished()


def test_by_hand():
    # Blocks are multiples of 512: 1,000 is 1,024, and so is 700.
    forward, optimizer = step_shape(by_hand())
    assert (forward.phase, optimizer.phase) == (Phase.FORWARD, Phase.OPTIMIZER)
    persistent = {Category.WEIGHTS: 1024, Category.OPTIMIZER_STATE: 512}
    assert forward.sizes_bytes == persistent | {Category.ACTIVATIONS: 1024}
    assert optimizer.sizes_bytes == persistent


def test_a_step_before_which_nothing_was_made():
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    builder.allocate(700, Category.ACTIVATIONS)
    builder.enter(Phase.OPTIMIZER)
    builder.allocate(1, Category.OPTIMIZER_STATE)
    forward, optimizer = step_shape(builder.finished())
    assert forward.sizes_bytes == {Category.ACTIVATIONS: 1024}
    assert optimizer.sizes_bytes == {Category.ACTIVATIONS: 1024, Category.OPTIMIZER_STATE: 512}


def test_a_run_that_finished_no_step_has_no_shape():
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    builder.allocate(1000, Category.WEIGHTS)
    assert step_shape(builder.finished()) == ()
    assert step_shape(TraceBuilder().finished()) == ()


@given(
    st.lists(
        st.tuples(st.sampled_from([Phase.ROLLOUT, Phase.FORWARD, Phase.BACKWARD]), st.integers(1, 10**6)), max_size=80
    )
)
def test_each_stretch_keeps_its_highest_instant(makes):
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    builder.allocate(5000, Category.WEIGHTS)
    alive = []
    for number, (phase, size) in enumerate(makes):
        builder.enter(phase)
        alive.append(builder.allocate(size, Category.ACTIVATIONS))
        if number % 3 == 0:
            builder.free(alive.pop(0))
    builder.enter(Phase.OPTIMIZER)
    builder.allocate(100, Category.OPTIMIZER_STATE)
    trace = builder.finished()
    found = step_shape(trace)
    level, totals = 0, []
    for event in trace.events:
        size = -(-trace.sizes_bytes[abs(event) - 1] // 512) * 512
        level += size if event > 0 else -size
        totals.append(level)
    ends = [*(start for start, _ in trace.phase_starts), len(trace.events)]
    stretches = [(low, high) for low, high in pairwise(ends) if high > low][1:]
    assert len(found) == sum(min(INSTANTS_A_STRETCH, high - low) for low, high in stretches)
    assert max(sum(instant.sizes_bytes.values()) for instant in found) == max(totals[stretches[0][0] :])


def test_of_a_real_trial_the_phases_follow_as_the_trainer_runs_them():
    found = step_shape(simulate().trace)
    order = [instant.phase for number, instant in enumerate(found) if number % INSTANTS_A_STRETCH == 0]
    assert order[0] is Phase.ROLLOUT
    assert order[-1] is Phase.OPTIMIZER
    assert order.count(Phase.FORWARD) == order.count(Phase.BACKWARD) == 2
    assert all(Category.WEIGHTS in instant.sizes_bytes for instant in found)


def test_blocks_in_use_are_made_and_not_freed() -> None:
    # By hand: ``+a +b -a`` of three blocks.
    assert in_use(np.array([1, 2, -1], dtype=np.int32), 3).tolist() == [False, True, False]
