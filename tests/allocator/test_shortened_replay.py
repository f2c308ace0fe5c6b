"""Replays of traces that leave out cycles: the same as those of the whole trace, and hand-worked ones."""

import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
from test_card_replay import MIB, PLAIN
from test_compiled_replay import library  # noqa: F401  # a fixture

from profiler.allocator import AllocatorConfig, Trace, TraceBuilder, replay_on_card
from profiler.allocator.traces import smallest_fit as module
from profiler.allocator.traces.replay import Lengthened, largest_groups, shortened, step_shape
from profiler.allocator.traces.smallest_fit import replays
from profiler.allocator.traces.trace import Categories, Integers, LeftOut, Site
from profiler.domain.memory import Category, Phase
from profiler.simulation.extrapolation.left_out import written_out

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

CATEGORIES = (Category.KV_CACHE, Category.ACTIVATIONS, Category.INPUTS)
SCALES = (512, MIB // 2, MIB, 3 * MIB)


class Cycles:
    """Cycles of blocks that are freed in the same one, in the next or in the one after it."""

    def __init__(self, numbers: random.Random) -> None:
        self.blocks = blocks = numbers.randint(1, 6)
        self.later = [numbers.randint(1, 2), *(numbers.randint(0, 2) for _ in range(blocks - 1))]
        self.memory = max(self.later)
        scales = [numbers.choice(SCALES) for _ in range(blocks)]
        self.sizes = [numbers.randint(0, 9) * scale + numbers.randint(0, 600) for scale in scales]
        self.growth = [numbers.choice((0, 0, numbers.randint(0, 3) * scale // 8)) for scale in scales]
        self.categories = [numbers.choice(CATEGORIES) for _ in range(blocks)]
        self.sites = [numbers.randint(0, 1) for _ in range(blocks)]
        order = [(block, True) for block in range(blocks)]
        for block, later in enumerate(self.later):
            made = order.index((block, True)) if not later else -1
            order.insert(numbers.randint(made + 1, len(order)), (block, False))
        self.order = order

    def add(self, trace: TraceBuilder, times: int, *, left_out: int) -> None:
        """Append `times` cycles, of which some are noted only."""
        begin, starts, first = self.memory + 2, [], len(trace.sizes_bytes)
        for time in range(times):
            if begin <= time < begin + left_out:
                continue
            there = time if time < begin else time - left_out
            starts.append(len(trace.events))
            for block, is_made in self.order:
                if is_made:
                    site = Site(
                        operation="aten.cat", shape=(self.sites[block] * time, block), dtype="", module="layers.0"
                    )
                    size = self.sizes[block] + time * self.growth[block]
                    trace.allocate(size, self.categories[block], trace.site_index(site))
                elif there >= self.later[block]:
                    trace.free(first + (there - self.later[block]) * self.blocks + block)
        if left_out:
            three = starts[begin - 2], starts[begin - 1], starts[begin]
            trace.left_out.append(LeftOut(starts=three, cycles=left_out, memory=self.memory))
        for block, later in enumerate(self.later):
            for back in range(later):
                trace.free(first + (len(starts) - 1 - back) * self.blocks + block)


def rollouts(seed: int, *, is_shortened: bool) -> Trace:
    """Two rollouts between other blocks of all sizes, with a step each; then there may be a step without one."""
    numbers, trace = random.Random(seed), TraceBuilder()
    trace.enter(Phase.LOAD)
    others = [trace.allocate(numbers.randint(1, 40) * MIB // 4, Category.WEIGHTS) for _ in range(12)]
    for block in others[::2]:
        trace.free(block)
    for _ in range(2):
        cycles, times = Cycles(numbers), numbers.randint(12, 40)
        trace.enter(Phase.ROLLOUT)
        cycles.add(trace, times, left_out=times - 2 * cycles.memory - 2 if is_shortened else 0)
        if numbers.random() < 0.5:
            trace.empty_cache()
        for phase in (Phase.FORWARD, Phase.OPTIMIZER):
            trace.enter(phase)
            trace.names[kept := trace.allocate(numbers.randint(1, 30) * MIB, Category.GRADIENTS)] = "kept"
            trace.free(trace.allocate(numbers.randint(0, 30) * MIB, Category.ACTIVATIONS))
            if numbers.random() < 0.7:
                trace.free(kept)
    for phase in (Phase.FORWARD, Phase.OPTIMIZER) if numbers.random() < 0.5 else ():
        trace.enter(phase)
        for block in [trace.allocate(numbers.randint(1, 9) * MIB, Category.GRADIENTS) for _ in range(3)]:
            trace.free(block)
    return written_out(trace.finished(), trace.left_out)


def written(trace: Trace) -> Trace:
    """Return the same trace with all its numbers."""
    return replace(
        trace,
        events=Integers(np.asarray(trace.events)),
        sizes_bytes=Integers(np.asarray(trace.sizes_bytes)),
        categories=Categories(np.asarray(trace.categories.places)),
        site_of=Integers(np.asarray(trace.site_of)),
    )


@pytest.mark.parametrize("config", [PLAIN, AllocatorConfig(large_segment_bytes=32 * MIB)], ids=["plain", "large"])
def test_shortened_replays_are_those_of_whole_traces(library, monkeypatch, config):  # noqa: F811
    monkeypatch.setattr(module, "compiled", lambda: library)
    kinds, compiled, whole_ones = set(), module.compiled_replay, []
    monkeypatch.setattr(
        module, "compiled_replay", lambda *each, **keys: whole_ones.append(1) or compiled(*each, **keys)
    )
    for seed in range(150):
        trace = rollouts(seed, is_shortened=True)
        whole = rollouts(seed, is_shortened=False)
        for most in (0.4, 0.7, 0.9, 1.0, 1.1, 9.0):
            capacity = int(most * replay_on_card(whole, capacity_bytes=None, config=config).peak_allocated_bytes)
            found = replays(trace, config, capacity_bytes=capacity, total_bytes=capacity)
            expected = [replay_on_card(whole, capacity_bytes=each, config=config) for each in (None, capacity)]
            assert [*found] == expected
            assert [[*each.live_bytes] for each in found] == [[*each.live_bytes] for each in expected]
            refusal = expected[1].refusal
            kinds.add((refusal and refusal.phase, bool(expected[1].num_alloc_retries)))
        assert written(trace).events == whole.events
        assert written(trace).sizes_bytes == whole.sizes_bytes
    assert {(Phase.ROLLOUT, True), (Phase.FORWARD, True), (None, True), (None, False)} <= kinds
    assert 0 < len(whole_ones) < 400, "the highest level is in a cycle that repeats now and then"


def test_numbers_are_written_when_they_are_asked_for():
    kinds = set()
    for seed in range(40):
        trace, whole = (rollouts(seed, is_shortened=each) for each in (True, False))
        assert len(trace.events) == len(whole.events)
        assert all(isinstance(each, Lengthened) for each in (trace.events, trace.sizes_bytes, trace.site_of))
        assert [trace.events[at] for at in range(len(trace.events))] == [*whole.events]
        blocks = range(len(whole.sizes_bytes))
        assert [trace.sizes_bytes[block] for block in blocks] == [*whole.sizes_bytes]
        assert [trace.categories[block] for block in blocks] == [*whole.categories]
        sites = [[each.sites[each.site_of[block]] for block in blocks] for each in (trace, whole)]
        assert sites[0] == sites[1]
        assert trace.events[-1] == whole.events[-1]
        with pytest.raises(IndexError):
            trace.events[len(trace.events)]
        live_bytes = replay_on_card(whole, capacity_bytes=None, config=PLAIN).live_bytes
        assert largest_groups(trace, live_bytes) == largest_groups(whole, live_bytes)
        assert step_shape(trace) == step_shape(whole)
        kinds.add(trace.phase_starts[-3][1])
    assert kinds == {Phase.ROLLOUT, Phase.OPTIMIZER}


def test_a_trace_with_other_sizes_is_no_longer_shortened(library, monkeypatch):  # noqa: F811
    monkeypatch.setattr(module, "compiled", lambda: library)
    trace = rollouts(0, is_shortened=True)
    assert shortened(trace) is not None
    larger = replace(trace, sizes_bytes=Integers(np.asarray(trace.sizes_bytes) + MIB))
    assert shortened(larger) is None
    whole = replay_on_card(written(larger), capacity_bytes=None, config=PLAIN)
    assert replays(larger, PLAIN, capacity_bytes=2**40, total_bytes=2**40) == (whole, whole)


def test_a_refused_request_of_a_repeated_cycle(library, monkeypatch):  # noqa: F811
    """By hand: cycles of a block of 10, 20, 30 MiB, ..., which the next one frees; four of nine are left out."""
    monkeypatch.setattr(module, "compiled", lambda: library)
    builder = TraceBuilder()
    builder.enter(Phase.ROLLOUT)
    builder.free(builder.allocate(114 * MIB, Category.OTHER))
    for block, size in enumerate((10, 20, 30, 80, 90), start=1):
        site = builder.site_index(Site(operation="", shape=(size,), dtype="", module=""))
        builder.allocate(size * MIB, Category.KV_CACHE, site)
        if block > 1:
            builder.free(block - 1)
    builder.left_out.append(LeftOut(starts=(3, 5, 7), cycles=4, memory=1))
    trace = written_out(builder.finished(), builder.left_out)
    _, full = replays(trace, PLAIN, capacity_bytes=115 * MIB, total_bytes=115 * MIB)
    # Within 114 MiB 50 and 60 fit together, 60 and 70 do not: after the first block 11 events allocate up to 60.
    assert full.refusal is not None
    assert (full.refusal.requested_bytes, full.events_reached) == (70 * MIB, 2 + 11)
    assert (full.live_bytes, full.peak_event) == ({0: 114 * MIB}, 0)
