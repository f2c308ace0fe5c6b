"""A trace as a sequence of tokens, in which a layer's part looks the same in each layer."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.allocator.traces.trace import LAYER, OUTSIDE_LAYERS, Site, Trace, layer_in
from profiler.domain.memory import Category, Phase

Numbers = npt.NDArray[np.int64]

_LISTS_OF_NORMS = frozenset({"aten.stack", "aten._foreach_norm.Scalar's kernel"})
"""Operations of gradient clipping with one value, or as many as the largest tensor has chunks, per trained tensor
(`_get_total_norm` in torch/nn/utils/clip_grad.py; `_foreach_norm` in `simulation/cuda/scratch/kernel_scratch.py`). Both
are linear in the number of layers. No other block's size may depend on it."""

_DENSE = 8
"""Values with a range of at most so many times their number are dense."""

_CATEGORIES = {category: number for number, category in enumerate(Category)}


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A trace as tokens: for each event the kind of its block, negative where it is freed, without layer numbers."""

    trace: Trace
    tokens: Numbers
    block: Numbers
    """The block of each event."""
    layer_of: Numbers
    """The layer of each block; negative without one, and for lists with a value per trained tensor."""
    marks: Sequence[Phase | None]
    """Phases where they start, and None where the cache is emptied, in their order."""
    starts: Sequence[int]
    """The first event after each mark."""


def tokens_of(trace: Trace) -> Tokens:
    """Return the tokens of a trace; equal kinds of blocks have equal numbers."""
    events = np.array(trace.events, dtype=np.int64)
    block = np.abs(events) - 1
    kinds = _combined(_kind_columns(trace))
    emptied: list[tuple[int, Phase | None]] = [(at, None) for at in trace.cache_emptied]
    marks = sorted([*emptied, *trace.phase_starts], key=lambda mark: mark[0])
    return Tokens(
        trace=trace,
        tokens=np.sign(events) * (kinds[block] + 1),
        block=block,
        layer_of=_layers(trace),
        marks=[phase for _, phase in marks],
        starts=[start for start, _ in marks],
    )


def is_list_of_norms(site: Site) -> bool:
    """Return whether a block of `site` has a size that depends on the number of trained tensors."""
    return site.operation in _LISTS_OF_NORMS and not site.module and len(site.shape) <= 1


def _layers(trace: Trace) -> Numbers:
    site_of = np.array(trace.site_of, dtype=np.int64)
    of_sites = [OUTSIDE_LAYERS if is_list_of_norms(site) else site.layer for site in trace.sites]
    layers = np.array(of_sites, dtype=np.int64)[site_of]
    named = {block: layer_in(name) for block, name in trace.names.items()}
    without = [block for block, layer in named.items() if layer < 0 and layers[block] >= 0]
    for block in without:
        del named[block]
    layers[list(named)] = list(named.values())
    return layers


def _kind_columns(trace: Trace) -> Sequence[Numbers]:
    """Return what makes two blocks alike, one array per property."""
    codes = _Codes()
    sites = np.array([codes.of(_without_layer(site)) for site in trace.sites], dtype=np.int64)
    names = {block: codes.of(LAYER.sub("*", name, count=1)) for block, name in trace.names.items()}
    by_capability = {block: codes.of(frozenset(sizes.items())) for block, sizes in trace.sizes_by_capability.items()}
    blocks = len(trace.sizes_bytes)
    return (
        sites[np.array(trace.site_of, dtype=np.int64)],
        np.fromiter(map(_CATEGORIES.__getitem__, trace.categories), dtype=np.int64, count=blocks),
        np.array(trace.sizes_bytes, dtype=np.int64),
        _spread(names, blocks),
        _spread(by_capability, blocks),
        _spread(trace.streams, blocks),
    )


class _Codes:
    """Numbers of values."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        return self._codes.setdefault(value, len(self._codes) + 1)


def _without_layer(site: Site) -> Hashable:
    """Return what of a site is the same in each layer."""
    is_of_layer = site.layer >= 0
    return site.operation, site.dtype, site.shape, LAYER.sub("*", site.module, count=1), is_of_layer


def _spread(values: Mapping[int, int], blocks: int) -> Numbers:
    """Return the value of each block."""
    spread = np.zeros(blocks, dtype=np.int64)
    spread[list(values)] = list(values.values())
    return spread


def _combined(columns: Iterable[Numbers]) -> Numbers:
    """Return one number per row of `columns`, equal for equal rows."""
    rows: Any = 0
    for column in columns:
        values = _ranks(column)
        rows = _ranks(rows * (int(values.max(initial=0)) + 1) + values)
    return np.asarray(rows, dtype=np.int64)


def _ranks(values: Numbers) -> Numbers:
    """Return the place of each value among the distinct ones, ascending; dense values need no sorting."""
    lowest, highest = int(values.min(initial=0)), int(values.max(initial=0))
    if highest - lowest > _DENSE * len(values):
        return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)
    exists = np.zeros(highest - lowest + 1, dtype=np.bool_)
    exists[values - lowest] = True
    return (np.cumsum(exists) - 1)[values - lowest]
