"""A run that is replayed piece by piece has the peaks of its whole trace."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.allocator import parse_alloc_conf, replay_on_card
from profiler.allocator.traces.card_replay import RefusedError, StepReplay
from profiler.allocator.traces.trace import Piece, Trace, TraceBuilder, piece_of
from profiler.domain.memory import MIB, Category, Phase

CONFIG = parse_alloc_conf("", torch_version="2.13.0")


def random_trace(choices: list[int]) -> Trace:
    trace, alive = TraceBuilder(), []
    for number, choice in enumerate(choices):
        if number % 7 == 0:
            trace.enter((Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)[number // 7 % 3])
        if number % 11 == 0:
            trace.empty_cache()
        if choice % 3 == 0 and alive:
            trace.free(alive.pop(choice % len(alive)))
        else:
            alive.append(trace.allocate(choice * MIB // 64, Category.ACTIVATIONS))
    return trace.finished()


def pieces_of(trace: Trace, cuts: list[int]) -> list[Piece]:
    bounds = [0, *sorted(cuts), len(trace.events)]
    made = [sum(event > 0 for event in trace.events[:bound]) for bound in bounds]
    return [
        piece_of(trace, first, end, first_block=block)
        for first, end, block in zip(bounds, bounds[1:], made, strict=False)
    ]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 3000), min_size=12, max_size=80), st.data())
def test_pieces_have_the_peaks_of_the_trace(choices: list[int], data: st.DataObject) -> None:
    trace = random_trace(choices)
    cuts = data.draw(st.lists(st.integers(0, len(trace.events)), max_size=4))
    whole = replay_on_card(trace, capacity_bytes=None, config=CONFIG)
    replay = StepReplay(capacity_bytes=None, config=CONFIG)
    found = replay.step(pieces_of(trace, cuts))
    assert found.allocated_bytes == whole.peak_allocated_bytes
    assert found.reserved_bytes == whole.peak_reserved_bytes
    assert found.phase is whole.peak_phase
    again = StepReplay(capacity_bytes=None, config=CONFIG)
    steps = [again.step([piece]) for piece in pieces_of(trace, cuts)]
    assert max(step.reserved_bytes for step in steps) == whole.peak_reserved_bytes
    assert steps[-1].reserved_after_bytes == found.reserved_after_bytes


def test_a_refused_request_names_its_piece() -> None:
    trace = random_trace([64 * 10, 64 * 10, 64 * 31, 64 * 2, 64])
    replay = StepReplay(capacity_bytes=30 * MIB, config=CONFIG)
    with pytest.raises(RefusedError) as raised:
        replay.step(pieces_of(trace, [1, 2]))
    assert raised.value.piece == 2
    assert raised.value.refusal.requested_bytes == 31 * MIB
    assert raised.value.refusal.allocated_bytes == 20 * MIB
