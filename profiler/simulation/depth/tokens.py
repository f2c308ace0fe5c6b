"""Traces of two depths as sequences of tokens, in which a layer's part looks the same in each layer."""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from profiler.allocator.traces.trace import Site, Trace
from profiler.domain.memory import Category, Phase

Numbers = npt.NDArray[np.int64]

LAYER = re.compile(r"(?<=\blayers\.)\d+(?=\.|$)")
"""The number of a layer in a path of modules or in the name of a tensor."""

BLOCK, SIZE, LENGTH, MODULE, NAME = range(5)
"""Quantities of an event's block: its number, its bytes, the length of a list of norms, and the layers in the path of
its module and in its name (-1: none)."""

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
    quantities: Numbers
    """One row per event, with the columns above. What is part of the kind is in no column of another value."""
    marks: Sequence[Phase | None]
    """Phases where they start, and None where the cache is emptied, in their order."""
    starts: Sequence[int]
    """The first event after each mark."""


def tokens_of(traces: Sequence[Trace]) -> Sequence[Tokens]:
    """Return the tokens of traces of one trial with different depths; equal kinds have equal numbers."""
    codes = _Codes()
    columns = [_kind_columns(trace, codes) for trace in traces]
    kinds = _combined([np.concatenate(column) for column in zip(*columns, strict=True)])
    ends = np.cumsum([len(trace.sizes_bytes) for trace in traces])
    return [_tokens(trace, kind) for trace, kind in zip(traces, np.split(kinds, ends[:-1]), strict=True)]


def is_list_of_norms(site: Site) -> bool:
    """Return whether a block of `site` has a size that depends on the number of trained tensors."""
    return site.operation in _LISTS_OF_NORMS and not site.module and len(site.shape) <= 1


class _Codes:
    """Numbers of values, shared by the traces that are compared."""

    def __init__(self) -> None:
        self._codes: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        return self._codes.setdefault(value, len(self._codes) + 1)


def _kind_columns(trace: Trace, codes: _Codes) -> Sequence[Numbers]:
    """Return what makes two blocks alike, one array per property."""
    sites = np.array([codes.of(_without_layer(site)) for site in trace.sites], dtype=np.int64)
    names = {block: codes.of(LAYER.sub("*", name, count=1)) for block, name in trace.names.items()}
    by_capability = {block: codes.of(frozenset(sizes.items())) for block, sizes in trace.sizes_by_capability.items()}
    site_of = np.array(trace.site_of, dtype=np.int64)
    varies = np.array([is_list_of_norms(site) for site in trace.sites], dtype=np.bool_)[site_of]
    blocks = len(trace.sizes_bytes)
    return (
        sites[site_of],
        np.fromiter(map(_CATEGORIES.__getitem__, trace.categories), dtype=np.int64, count=blocks),
        np.where(varies, -1, np.array(trace.sizes_bytes, dtype=np.int64)),
        _spread(names, blocks),
        _spread(by_capability, blocks),
        _spread(trace.streams, blocks),
    )


def _without_layer(site: Site) -> Hashable:
    shape = len(site.shape) if is_list_of_norms(site) else site.shape
    return site.operation, site.dtype, shape, LAYER.sub("*", site.module, count=1)


def _spread(values: Mapping[int, int], blocks: int, *, default: int = 0) -> Numbers:
    """Return the value of each block."""
    spread = np.full(blocks, default, dtype=np.int64)
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


def _tokens(trace: Trace, kinds: Numbers) -> Tokens:
    events = np.array(trace.events, dtype=np.int64)
    block = np.abs(events) - 1
    emptied: list[tuple[int, Phase | None]] = [(at, None) for at in trace.cache_emptied]
    marks = sorted([*emptied, *trace.phase_starts], key=lambda mark: mark[0])
    return Tokens(
        trace=trace,
        tokens=np.sign(events) * (kinds[block] + 1),
        quantities=_quantities(trace)[block],
        marks=[phase for _, phase in marks],
        starts=[start for start, _ in marks],
    )


def _quantities(trace: Trace) -> Numbers:
    site_of = np.array(trace.site_of, dtype=np.int64)
    lengths = [site.shape[0] if is_list_of_norms(site) and site.shape else -1 for site in trace.sites]
    modules = [layer_in(site.module) for site in trace.sites]
    blocks = len(trace.sizes_bytes)
    return np.stack(
        [
            np.arange(blocks, dtype=np.int64),
            np.array(trace.sizes_bytes, dtype=np.int64),
            np.array(lengths, dtype=np.int64)[site_of],
            np.array(modules, dtype=np.int64)[site_of],
            _spread({block: layer_in(name) for block, name in trace.names.items()}, blocks, default=-1),
        ],
        axis=1,
    )


def layer_in(path: str) -> int:
    """Return the number of the layer in a path or name; -1 if there is none."""
    found = LAYER.search(path)
    return int(found.group()) if found else -1
