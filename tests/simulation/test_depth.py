"""A trace of three equal layers continues to more of them; one that does not repeat is refused."""

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiler.allocator.traces.trace import NO_LAYER, OUTSIDE_LAYERS, Site, Trace, TraceBuilder
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.simulation.depth import continuation, repetitions
from profiler.simulation.depth.continuation import TrainedTensors, continued
from profiler.simulation.depth.repetitions import (
    LAYERS_RUN,
    Blocks,
    DepthDiffersError,
    Repetition,
    Tokens,
    Zones,
    _combined,
    repetitions_of,
    tokens_of,
)

A100, T4 = (KNOWN_GPUS[name].chip for name in ("a100-80gb", "t4-16gb"))


STACK, NORM, SCRATCH = "aten.stack", "aten._foreach_norm.Scalar", "aten._foreach_norm.Scalar's kernel"
STATE = "aten.zeros_like"


def site(operation: str, layer: int, *shape: int) -> Site:
    return Site(operation=operation, shape=shape, dtype="float32", module=f"model.layers.{layer}.mlp")


def bare(operation: str, layer: int, *shape: int) -> Site:
    return Site(operation=operation, shape=shape, dtype="float32", module="", operand_layer=layer)


def trained(layers: int) -> TrainedTensors:
    return TrainedTensors(few=LAYERS_RUN + 1, all=layers + 1)


def trace_of(
    layers: int,
    *,
    size: Callable[[int], int] = lambda _: 64,
    listed: str = STACK,
    lists_in: Phase = Phase.OPTIMIZER,
    more_norms: int = 1,
    groups: Callable[[list[int]], Sequence[list[int]]] = lambda tensors: [tensors],
    scratch_bytes: Callable[[int], int] = lambda tensors: 8 * tensors,
    origin: Callable[[int], int] = lambda layer: layer,
    skipped: int | None = None,
    freed: Sequence[int] = (),
) -> Trace:
    """Return weights, a forward that keeps a tensor per layer, a backward that frees them, and states and norms.

    Args:
        layers: The depth.
        size: Bytes that a layer keeps.
        listed: The operation of a list with a value per trained tensor.
        lists_in: The phase of that list.
        more_norms: Trained tensors that belong to no layer.
        groups: The layers of trained tensors, by type.
        scratch_bytes: Bytes for the norms of so many tensors.
        origin: The layer of the operand that a layer's state is made of.
        skipped: A layer whose activation is kept to the end.
        freed: Which of ten equal blocks of no layer the last phase frees.
    """
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    for layer in range(layers):
        block = builder.allocate(128, Category.WEIGHTS, builder.site_index(site("weights", layer, 32)))
        builder.names[block] = f"model.layers.{layer}.mlp.weight"
    builder.enter(Phase.FORWARD)
    kept = []
    for layer in range(layers):
        scratch = builder.allocate(32, Category.WORKSPACE, builder.site_index(site("scratch", layer)))
        builder.streams[scratch] = 2
        builder.sizes_by_capability[scratch] = {A100: 48}
        builder.free(scratch)
        index = builder.site_index(site("aten.mm", layer, 16))
        kept.append(builder.allocate(size(layer), Category.ACTIVATIONS, index))
        builder.sizes_by_capability[kept[-1]] = {A100: 80, T4: 96}
    builder.enter(Phase.BACKWARD)
    builder.empty_cache()
    for layer in reversed(range(layers)):
        if layer != skipped:
            builder.free(kept[layer])
    builder.enter(lists_in)
    builder.streams[builder.allocate(16, Category.WORKSPACE)] = 1
    tensors = [*range(layers), *[OUTSIDE_LAYERS] * more_norms]
    for group in groups(tensors):
        scratch = builder.allocate(scratch_bytes(len(group)), Category.WORKSPACE, builder.site_index(bare(SCRATCH, 0)))
        for layer in group:
            builder.allocate(4, Category.WORKSPACE, builder.site_index(bare(NORM, layer)))
        builder.free(scratch)
    index = builder.site_index(bare(listed, OUTSIDE_LAYERS, len(tensors)))
    builder.free(builder.allocate(4 * len(tensors), Category.WORKSPACE, index))
    builder.enter(Phase.OPTIMIZER)
    for layer in range(layers):
        builder.allocate(8, Category.WORKSPACE, builder.site_index(bare(STATE, origin(layer), 2)))
    equal = [builder.allocate(24, Category.WORKSPACE, builder.site_index(bare("x", OUTSIDE_LAYERS))) for _ in range(10)]
    for number in freed:
        builder.free(equal[number])
    return builder.finished()


def by_value(trace: Trace) -> list[tuple[object, ...]]:
    sites = (trace.sites[number] for number in trace.site_of)
    return list(zip(trace.sizes_bytes, trace.categories, sites, strict=True))


@pytest.fixture(params=[1, 1 << 16])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events are numbered one repetition at a time, and all together."""
    monkeypatch.setattr(continuation, "_AT_ONCE", request.param)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("layers", [3, 4, 9, 100])
def test_equal_layers_are_continued(layers: int) -> None:
    found = continued(trace_of(LAYERS_RUN), layers=layers, trained=trained(layers))
    whole = trace_of(layers)
    assert found.events == whole.events
    assert by_value(found) == by_value(whole)
    assert (found.names, found.streams) == (whole.names, whole.streams)
    assert found.sizes_by_capability == whole.sizes_by_capability
    assert (found.phase_starts, found.cache_emptied) == (whole.phase_starts, whole.cache_emptied)


REFUSED: dict[str, dict[str, Any]] = {
    "a layer that keeps more": {"size": lambda layer: 64 + 8 * layer},
    "a last layer that keeps more, and a middle one": {"size": lambda layer: 64 + 8 * (layer > 0)} | {"skipped": 2},
    "a middle layer that is freed late": {"skipped": 1},
    "a list of another length than trained tensors": {"more_norms": 2},
    "norms of some tensors": {"groups": lambda tensors: [tensors[1:]]},
    "scratch that is not the same for each tensor": {"scratch_bytes": lambda tensors: 8 * tensors + 1},
    "a list of unknown purpose": {"listed": "aten.cat", "groups": lambda _: []},
    "a list outside of gradient clipping": {"lists_in": Phase.SCORE},
    "states of unknown origin": {"origin": lambda _: NO_LAYER},
    "states of the middle layer alone": {"origin": lambda layer: layer if layer == 1 else OUTSIDE_LAYERS},
    "a block that is freed twice": {"freed": (0, 0)},
}


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_repeat_is_refused(name: str) -> None:
    with pytest.raises(DepthDiffersError):
        continued(trace_of(LAYERS_RUN, **REFUSED[name]), layers=12, trained=trained(12))


def test_norms_of_tensors_of_two_types_are_continued() -> None:
    """As of adapters in float32 and a head in bfloat16."""
    few, whole = (trace_of(layers, groups=lambda tensors: [tensors[-1:], tensors[:-1]]) for layers in (LAYERS_RUN, 12))
    found = continued(few, layers=12, trained=trained(12))
    assert (found.events, by_value(found)) == (whole.events, by_value(whole))


def test_a_list_that_is_shorter_than_the_layers_stays() -> None:
    """Stacks of two values exist in rewards; a value per layer would be three."""
    builder = TraceBuilder()
    builder.enter(Phase.REWARD)
    builder.allocate(8, Category.WORKSPACE, builder.site_index(bare(STACK, NO_LAYER, LAYERS_RUN - 1)))
    assert continued(builder.finished(), layers=12, trained=trained(12)).sizes_bytes == (8,)


VALUES = st.one_of(st.integers(-3, 3), st.integers(-(10**12), 10**12))


@given(st.integers(1, 4).flatmap(lambda columns: st.lists(st.tuples(*[VALUES] * columns), min_size=1, max_size=12)))
def test_only_equal_properties_have_equal_tokens(rows: list[tuple[int, ...]]) -> None:
    found = _combined([np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]).tolist()
    places = range(len(rows))
    assert all((found[one] == found[two]) == (rows[one] == rows[two]) for one in places for two in places)


@st.composite
def repeated(draw: st.DrawFn) -> tuple[Tokens, Sequence[Repetition]]:
    """A few blocks of any layers, made and freed in any order, of which any range is said to repeat by layer."""
    layer_of, kinds = [], []
    events: list[int] = []
    live: list[int] = []
    for _ in range(draw(st.integers(2, 9))):
        if live and draw(st.booleans()):
            events.append(-live.pop(draw(st.integers(0, len(live) - 1))) - 1)
        else:
            live.append(len(layer_of))
            events.append(len(layer_of) + 1)
            layer_of.append(draw(st.integers(NO_LAYER, LAYERS_RUN - 1)))
            kinds.append(draw(st.integers(1, 2)))
    length = draw(st.integers(1, max(1, len(events) // 3)))
    start = draw(st.integers(0, max(0, len(events) - 3 * length)))
    end = draw(st.integers(start + 2 * length, len(events)))
    block = np.abs(np.array(events)) - 1
    tokens = np.sign(events) * np.array(kinds)[block]
    found = Repetition(start=start, length=length, end=end, step=draw(st.sampled_from([1, -1])))
    made = Tokens(
        trace=Trace(sizes_bytes=(), categories=(), events=events, phase_starts=()),
        tokens=tokens,
        block=block,
        layer_of=np.array(layer_of),
        marks=(),
        starts=(),
    )
    return made, [found]


def numbered_one_by_one(tokens: Tokens, repetitions: Sequence[Repetition], layers: int) -> Sequence[int]:
    """Return the events at the real depth, numbered one after the other."""
    zones, blocks = Zones(tokens, repetitions, layers=layers), Blocks(tokens, repetitions)
    (found,) = repetitions
    second, third = found.start + found.length, found.start + 2 * found.length
    turns = [(event, turn) for turn in range(layers - LAYERS_RUN + 1) for event in range(second, third)]
    order = [*((event, 0) for event in range(second)), *turns, *((e, 0) for e in range(third, len(tokens.tokens)))]
    numbers: dict[tuple[int, int], int] = {}
    live: dict[tuple[int, int], int] = {}
    events = []
    for event, turn in order:
        block, token = int(tokens.block[event]), int(tokens.tokens[event])
        layer = int(blocks.layer[block])
        reached = layer if layer < 0 else layer + int(zones.moved[event]) + turn * int(zones.per_turn[event])
        key = int(blocks.kin[block]), reached
        if layer >= 0 and not 0 <= reached < layers:
            raise DepthDiffersError
        if token > 0:
            if key in numbers:
                raise DepthDiffersError
            numbers[key], live[key] = len(numbers), token
            events.append(numbers[key] + 1)
        else:
            if live.pop(key, 0) != -token:
                raise DepthDiffersError
            events.append(-numbers[key] - 1)
    return events


def outcome_of(found: Callable[[], Sequence[int]]) -> Sequence[int] | None:
    try:
        return list(found())
    except DepthDiffersError:
        return None


def made_in_layers(*layer_of: int) -> tuple[Tokens, Sequence[Repetition]]:
    """Blocks of equal kinds that are never freed, one per layer that is said to repeat the one before."""
    made = len(layer_of)
    trace = Trace(sizes_bytes=(), categories=(), events=range(1, made + 1), phase_starts=())
    tokens = Tokens(
        trace=trace,
        tokens=np.ones(made, dtype=np.int64),
        block=np.arange(made),
        layer_of=np.array(layer_of),
        marks=(),
        starts=(),
    )
    return tokens, [Repetition(start=0, length=1, end=made, step=1)]


@given(repeated(), st.integers(3, 6), st.sampled_from([1, 1 << 16]))
@example(made_in_layers(0, 1, 1), 5, 1)  # the last turn of the middle layer makes the block of the last one
@settings(max_examples=400)
def test_events_are_numbered_as_one_by_one(
    case: tuple[Tokens, Sequence[Repetition]], layers: int, at_once: int
) -> None:
    with patch.object(continuation, "_AT_ONCE", at_once):
        found = outcome_of(lambda: continuation._numbered(*case, layers=layers).events.tolist())
    assert found == outcome_of(lambda: numbered_one_by_one(*case, layers))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=10, max_size=30), st.sampled_from((1, -1)))
def test_steps_that_repeat_alike_are_found_as_one_by_one(steps: list[tuple[int, int]], step: int) -> None:
    """Each step has some events of no layer, and then three layers; kinds of blocks are those of one step."""
    layer_of, kinds = [], []
    for number, (outside, inside) in enumerate(steps):
        for layer in (-1, *range(LAYERS_RUN)[::step]):
            for place in range(outside if layer < 0 else inside):
                layer_of.append(OUTSIDE_LAYERS if layer < 0 else layer)
                kinds.append(20 * number + (10 if layer < 0 else 1) + place)
    made = len(kinds)
    tokens = Tokens(
        trace=Trace(sizes_bytes=(), categories=(), events=range(1, made + 1), phase_starts=()),
        tokens=np.array(kinds, dtype=np.int64),
        block=np.arange(made),
        layer_of=np.array(layer_of),
        marks=(Phase.ROLLOUT,),
        starts=(0,),
    )
    at_one_time = list(repetitions_of(tokens))
    with patch.object(repetitions, "_OFTEN", 10**9):
        assert at_one_time == list(repetitions_of(tokens))
    assert [found.length for found in at_one_time] == [inside for _, inside in steps]


def test_a_block_that_is_freed_before_it_is_made_is_refused() -> None:
    builder = TraceBuilder()
    builder.enter(Phase.FORWARD)
    builder.free(builder.allocate(64, Category.ACTIVATIONS, builder.site_index(site("x", 1))))
    numbering = continuation._Numbering(tokens_of(builder.finished()), [], turns=1, layers=LAYERS_RUN)
    with pytest.raises(DepthDiffersError, match="before"):
        numbering.number(np.array([1, 0]), np.zeros(2, dtype=np.int32))
