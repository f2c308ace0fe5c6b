"""The largest tensors among blocks in use. Similar tensors from the same place in every layer form one group."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping

from profiler.allocator.traces.trace import NO_SITE, Trace
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.readings import TensorGroup

MOST_GROUPS = 10

_NUMBER_IN_PATH = re.compile(r"(?<=\.)\d+(?=\.|$)")


def largest_groups(trace: Trace, live_bytes: Mapping[int, int], *, most: int = MOST_GROUPS) -> tuple[TensorGroup, ...]:
    """Return the largest groups of the blocks in `live_bytes` (block -> bytes it takes), largest first.

    Blocks are alike if they have the same category, shape, data type, phase of making and name; where they have no
    name, the same module (layers as ``*``) and operation.
    """
    made_at = _made_at(trace, live_bytes)
    groups: defaultdict[TensorGroup, list[int]] = defaultdict(list)
    for block, size in live_bytes.items():
        groups[_likeness(trace, block, _phase_at(trace, made_at[block]))].append(size)
    found = [_filled(group, sizes) for group, sizes in groups.items()]
    found.sort(key=lambda group: (-group.size_bytes, group.name, group.module, group.operation))
    return tuple(found[:most])


def _made_at(trace: Trace, blocks: Mapping[int, int]) -> dict[int, int]:
    """Return the event at which each block was allocated."""
    return {event - 1: index for index, event in enumerate(trace.events) if event > 0 and event - 1 in blocks}


def _phase_at(trace: Trace, event: int) -> Phase:
    index = bisect_right(trace.phase_starts, event, key=lambda start: start[0]) - 1
    return trace.phase_starts[max(0, index)][1]


def _likeness(trace: Trace, block: int, phase: Phase) -> TensorGroup:
    """Return the group of a block, without sizes."""
    site = trace.sites[trace.site_of[block]] if trace.site_of else NO_SITE
    name = _NUMBER_IN_PATH.sub("*", trace.names.get(block, ""))
    return TensorGroup(
        category=trace.categories[block],
        size_bytes=0,
        tensors=0,
        shape=site.shape,
        dtype=site.dtype,
        name=name,
        module="" if name else _NUMBER_IN_PATH.sub("*", site.module),
        # Empty for weights and states; for a gradient, its origin: the backward of a layer, or a fused head.
        operation="" if name and trace.categories[block] is not Category.GRADIENTS else site.operation,
        phase=phase,
    )


def _filled(group: TensorGroup, sizes: list[int]) -> TensorGroup:
    return TensorGroup(
        category=group.category,
        size_bytes=sum(sizes),
        tensors=len(sizes),
        shape=group.shape,
        dtype=group.dtype,
        name=group.name,
        module=group.module,
        operation=group.operation,
        phase=group.phase,
    )
