"""Segments that a growing cache leaves behind: by hand, and against the model of the allocator."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from profiler.allocator import AllocatorConfig, Trace, replay_on_card
from profiler.analytical.timeline.cached import Growth, growth_segments_bytes, own_segments_bytes
from profiler.domain.memory import MIB, Category, Phase


def test_by_hand():
    # no segment of 10 MiB holds 12: the arena, and four new segments each of 12, 14 and 16 MiB
    grown = Growth(tensors=4, first=10 * MIB, last=15 * MIB, arena=40 * MIB, largest=10 * MIB)
    # a segment of 32 MiB holds two tensors of 12 to 16 MiB: two segments hold all four
    hosted = Growth(tensors=4, first=10 * MIB, last=15 * MIB, arena=64 * MIB, largest=32 * MIB)

    shared = Growth(tensors=46, first=6 * MIB, last=9 * MIB, arena=0, largest=1)

    assert own_segments_bytes(shared) == 0
    assert own_segments_bytes(grown) == 4 * 42 * MIB
    assert growth_segments_bytes(grown) == (40 + 4 * 42) * MIB
    assert own_segments_bytes(hosted) == 0
    assert growth_segments_bytes(hosted) == 64 * MIB


def _replayed(tensors, labelled_inputs, prompt, tokens):
    """Return reserved memory after `tensors` caches have grown by concatenation, token by token, without a limit."""
    sizes, events = [], []

    def allocate(size):
        sizes.append(size)
        events.append(len(sizes))
        return len(sizes)

    live = [allocate(labelled_inputs * prompt) for _ in range(tensors)]
    for length in range(prompt + 1, prompt + tokens):
        for index in range(tensors):
            longer = allocate(labelled_inputs * length)
            events.append(-live[index])
            live[index] = longer
    trace = Trace(
        sizes_bytes=sizes,
        categories=[Category.KV_CACHE] * len(sizes),
        events=events,
        phase_starts=[(0, Phase.ROLLOUT)],
    )
    return replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig()).peak_reserved_bytes


@pytest.mark.parametrize(
    ("tensors", "labelled_inputs", "prompt", "tokens"),
    [
        (48, 16 * 1024, 640, 400),
        (20, 64 * 1024, 512, 300),
        (56, 16 * 1024, 256, 786),
        (16, 128 * 1024, 40, 200),
    ],
)
def test_the_formula_predicts_the_segments_of_the_allocator(tensors, labelled_inputs, prompt, tokens):
    first, last = labelled_inputs * prompt, labelled_inputs * (prompt + tokens - 1)
    growth = Growth(tensors=tensors, first=first, last=last, arena=tensors * first, largest=first)

    assert growth_segments_bytes(growth) == pytest.approx(_replayed(tensors, labelled_inputs, prompt, tokens), rel=0.06)


@example(tensors=46, first=6_337_048, growth=2_051_561, arena=0, largest=1)
@given(
    tensors=st.integers(2, 128),
    first=st.integers(1, 200 * MIB),
    growth=st.integers(0, 200 * MIB),
    arena=st.integers(0, 4_000 * MIB),
    largest=st.integers(1, 400 * MIB),
)
def test_more_growth_or_arena_never_needs_fewer_segments(tensors, first, growth, arena, largest):
    def found(last, arena):
        return growth_segments_bytes(Growth(tensors=tensors, first=first, last=last, arena=arena, largest=largest))

    assert found(first + growth, arena) <= found(first + 2 * growth, arena)
    assert arena <= found(first + growth, arena)
    assert found(first + growth, arena + 100 * MIB) <= found(first + growth, arena) + 100 * MIB
