"""A trace with decoding steps that were left out and written again equals one in which none was."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.allocator.traces.trace import LeftOut, Site, Trace, TraceBuilder
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.simulation.extrapolation.left_out import StepsDifferError, written_out
from profiler.simulation.extrapolation.step_template import Template, _Cycle, continue_trace, cycles_left_out

CHIP = KNOWN_GPUS["h100-80gb"].chip
CATEGORIES = (Category.KV_CACHE, Category.ACTIVATIONS)


def site(rows: int, module: str = "model.layers.0") -> Site:
    return Site(operation="aten.cat", shape=(2, rows, 4), dtype="bfloat16", module=module)


def growing(*sizes_bytes: int) -> Trace:
    """Each step makes a block and frees the one before it."""
    made = len(sizes_bytes)
    return Trace(
        sizes_bytes=sizes_bytes,
        categories=(Category.KV_CACHE,) * made,
        events=(1, *(event for block in range(2, made + 1) for event in (block, 1 - block))),
        phase_starts=((0, Phase.ROLLOUT),),
        sites=tuple(site(size) for size in sizes_bytes),
        site_of=tuple(range(made)),
    )


TWO_LEFT_OUT = LeftOut(starts=(3, 5, 7), cycles=2, memory=1)


def test_two_steps_between_others_are_written() -> None:
    found, whole = written_out(growing(2, 4, 6, 8, 14), [TWO_LEFT_OUT]), growing(2, 4, 6, 8, 10, 12, 14)
    assert found.sizes_bytes == (2, 4, 6, 8, 10, 12, 14)
    assert found.events == whole.events
    assert [found.sites[number] for number in found.site_of] == list(whole.sites)
    assert {*found.sites} == {*whole.sites}
    with pytest.raises(IndexError):
        found.sites[len(found.sites)]


@pytest.mark.parametrize(
    "changed",
    [
        growing(2, 4, 6, 8, 13),
        replace(growing(2, 4, 6, 8, 14), events=(1, 2, -1, 3, -2, 4, -3, -4, 5)),
        replace(growing(2, 4, 6, 8, 14), events=(1, 2, -1, 3, -2, -3, 4, 5, -4)),
        replace(growing(2, 4, 6, 8, 14), categories=(*[Category.KV_CACHE] * 4, Category.ACTIVATIONS)),
        replace(growing(2, 4, 6, 8, 14), categories=(*[Category.KV_CACHE] * 3, *[Category.ACTIVATIONS] * 2)),
    ],
    ids=["size after", "order after", "order before", "category after", "category before"],
)
def test_nothing_is_written_between_steps_that_differ(changed: Trace) -> None:
    with pytest.raises(StepsDifferError):
        written_out(changed, [TWO_LEFT_OUT])


@st.composite
def templates(draw: st.DrawFn) -> Template:
    """Cycles whose blocks are freed in the same cycle, in the next or in the one after it."""
    blocks = draw(st.integers(1, 4))
    later = draw(st.lists(st.integers(0, 2), min_size=blocks, max_size=blocks))
    later[0] = draw(st.integers(1, 2))
    events = [(block, True) for block in range(blocks)]
    for block, cycles in enumerate(later):
        made = events.index((block, True)) if not cycles else -1
        events.insert(draw(st.integers(made + 1, len(events))), (block - cycles * blocks, False))
    numbers, allocates = zip(*events, strict=True)
    each = st.lists(st.integers(0, 9), min_size=blocks, max_size=blocks)
    return Template(
        cycle=_Cycle(
            allocates=np.array(allocates),
            numbers=np.array(numbers, dtype=np.int64),
            sizes_bytes=np.array(draw(each), dtype=np.int64) * 512,
            categories=[CATEGORIES[draw(st.integers(0, 1))] for _ in range(blocks)],
            site_of=np.zeros(blocks, dtype=np.int64),
        ),
        growth_bytes=np.array(draw(each), dtype=np.int64) * 512,
        moving_sites=((site(7), (0, 1, 0), (0,)),) if draw(st.booleans()) else (),
        every_block=True,
    )


def rollouts(template: Template, cycles: int, *, shortened: bool) -> Trace:
    """Two rollouts, with something before, between and after them."""
    trace = TraceBuilder()
    trace.site_index(site(1, "model"))
    for _ in range(2):
        trace.enter(Phase.ROLLOUT)
        for _ in range(template.memory):
            for size, category in zip(template.cycle.sizes_bytes.tolist(), template.cycle.categories, strict=True):
                trace.sizes_by_capability[trace.allocate(size, category, 0)] = {CHIP: size + 512}
        left_out = cycles_left_out(template, cycles) if shortened else 0
        continue_trace(trace, template, cycles, left_out=left_out)
        last = len(trace.sizes_bytes)
        trace.enter(Phase.SCORE)
        trace.empty_cache()
        kept = trace.allocate(1024, Category.ACTIVATIONS, 0)
        trace.names[kept], trace.streams[kept] = "kept", 1
        trace.free(last - 1)
        trace.free(kept)
    return written_out(trace.finished(), trace.left_out)


@given(templates(), st.integers(1, 30))
@settings(max_examples=300)
def test_a_shortened_rollout_equals_a_whole_one(template: Template, cycles: int) -> None:
    short, whole = (rollouts(template, cycles, shortened=shortened) for shortened in (True, False))
    sites = [[trace.sites[number] for number in trace.site_of] for trace in (short, whole)]
    assert sites[0] == sites[1]
    assert replace(short, sites=(), site_of=()) == replace(whole, sites=(), site_of=())


def test_most_steps_of_a_long_rollout_are_left_out() -> None:
    cycle = _Cycle(
        allocates=np.array([True, False]),
        numbers=np.array([0, -1], dtype=np.int64),
        sizes_bytes=np.array([512], dtype=np.int64),
        categories=[Category.KV_CACHE],
        site_of=np.zeros(1, dtype=np.int64),
    )
    template = Template(cycle=cycle, growth_bytes=np.array([512]), moving_sites=(), every_block=True)
    assert [cycles_left_out(template, cycles) for cycles in (1, 4, 5, 100)] == [0, 0, 1, 96]


def test_steps_left_out_are_forgotten_with_their_rollout() -> None:
    trace = TraceBuilder(left_out=[TWO_LEFT_OUT, TWO_LEFT_OUT.later(40)], events=list(range(1, 60)))
    trace.forget_from(event=20, block=20)
    assert trace.left_out == [TWO_LEFT_OUT]
