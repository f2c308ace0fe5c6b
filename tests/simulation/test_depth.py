"""Traces of a few equal layers continue to more of them; traces that do not repeat are refused."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiler.allocator.traces.trace import Site, Trace, TraceBuilder
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.simulation.depth.continuation import DepthDiffersError, continued
from profiler.simulation.depth.tokens import _combined

NORMS = "aten.stack"
A100, T4 = (KNOWN_GPUS[name].chip for name in ("a100-80gb", "t4-16gb"))


def site(operation: str, layer: int, *shape: int) -> Site:
    return Site(operation=operation, shape=shape, dtype="float32", module=f"model.layers.{layer}.mlp")


def trace_of(
    layers: int,
    *,
    size: Callable[[int], int] = lambda _: 64,
    norms: str = NORMS,
    last: int = 0,
    freed: Callable[[int], Sequence[int]] = lambda _: (),
) -> Trace:
    """Return weights, a forward that keeps a tensor per layer, a backward that frees them, and norms of gradients.

    Args:
        layers: The depth.
        size: Bytes that a layer keeps.
        norms: The operation of the list with a value per layer.
        last: How many further blocks the last phase frees in the wrong order.
        freed: Which of ten equal blocks the last phase frees, by the depth.
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
    for block in reversed(kept):
        builder.free(block)
    builder.enter(Phase.OPTIMIZER)
    builder.streams[builder.allocate(16, Category.WORKSPACE)] = 1
    index = builder.site_index(Site(operation=norms, shape=(layers,), dtype="float32", module=""))
    builder.free(builder.allocate(4 * layers, Category.WORKSPACE, index))
    again = [builder.allocate(8, Category.WORKSPACE) for _ in range(layers * last)]
    for block in sorted(again, key=lambda block: (block * 7) % 5):
        builder.free(block)
    equal = [builder.allocate(24, Category.WORKSPACE) for _ in range(10)]
    for number in freed(layers):
        builder.free(equal[number])
    return builder.finished()


def by_value(trace: Trace) -> list[tuple[object, ...]]:
    sites = (trace.sites[number] for number in trace.site_of)
    return list(zip(trace.sizes_bytes, trace.categories, sites, strict=True))


@pytest.mark.parametrize("layers", [3, 4, 9, 100])
@pytest.mark.parametrize("deep", [3, 4])
def test_equal_layers_are_continued(deep: int, layers: int) -> None:
    if layers < deep:
        return
    found = continued(trace_of(deep - 1), trace_of(deep), layers_of_deep=deep, layers=layers)
    whole = trace_of(layers)
    assert found.events == whole.events
    assert by_value(found) == by_value(whole)
    assert (found.names, found.streams) == (whole.names, whole.streams)
    assert found.sizes_by_capability == whole.sizes_by_capability
    assert (found.phase_starts, found.cache_emptied) == (whole.phase_starts, whole.cache_emptied)


REFUSED = {
    "a layer that keeps more": {"size": lambda layer: 64 + 8 * layer},
    "a size of another operation that grows": {"norms": "aten.cat"},
    "frees in an order that does not repeat": {"last": 1},
    "a block that is freed twice": {"freed": lambda _: (0, 0)},
    "a block that exists at small depths only": {"freed": lambda layers: (3 * (layers - 2),)},
    "a block before the first one": {"freed": lambda layers: (9 - 9 * (layers - 2),)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_repeat_is_refused(name: str) -> None:
    shallow, deep = (trace_of(layers, **REFUSED[name]) for layers in (2, 3))
    with pytest.raises(DepthDiffersError):
        continued(shallow, deep, layers_of_deep=3, layers=12)


def test_other_phases_are_refused() -> None:
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    with pytest.raises(DepthDiffersError, match="phases differ"):
        continued(builder.finished(), trace_of(3), layers_of_deep=3, layers=12)


VALUES = st.one_of(st.integers(-3, 3), st.integers(-(10**12), 10**12))


@given(st.integers(1, 4).flatmap(lambda columns: st.lists(st.tuples(*[VALUES] * columns), min_size=1, max_size=12)))
def test_only_equal_properties_have_equal_tokens(rows: list[tuple[int, ...]]) -> None:
    found = _combined([np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)]).tolist()
    places = range(len(rows))
    assert all((found[one] == found[two]) == (rows[one] == rows[two]) for one in places for two in places)
