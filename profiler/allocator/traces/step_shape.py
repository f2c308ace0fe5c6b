"""The shape of one optimizer step: allocated memory by category, from its rollout to the optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from profiler.allocator.settings.sizes import MIN_BLOCK_BYTES
from profiler.allocator.traces.trace import Trace
from profiler.domain.memory import Category, Phase

INSTANTS_A_STRETCH = 10
"""Number of instants kept of each run of one phase: the highest of each tenth."""


@dataclass(frozen=True, kw_only=True)
class ShapeInstant:
    """One instant of a step."""

    phase: Phase
    sizes_bytes: Mapping[Category, int]
    """Requested bytes, each block rounded up to 512; without empty categories."""


def step_shape(trace: Trace) -> tuple[ShapeInstant, ...]:
    """Return the last complete optimizer step of a trace, with optimizer states; empty if no step was finished.

    Events, not time, decide which tenth an instant belongs to: a trace knows no clock.
    """
    stretches = _last_step(trace)
    if not stretches:
        return ()
    begin, end = stretches[0][0], stretches[-1][1]
    events = np.array(trace.events, dtype=np.int64)
    blocks = np.abs(events) - 1
    sizes = -(-np.array(trace.sizes_bytes, dtype=np.int64) // MIN_BLOCK_BYTES) * MIN_BLOCK_BYTES
    changes = np.sign(events) * sizes[blocks]
    kinds = list(Category)
    kind_of = np.array([kinds.index(category) for category in trace.categories], dtype=np.int64)[blocks]
    before = np.bincount(kind_of[:begin], weights=changes[:begin], minlength=len(kinds)).astype(np.int64)
    levels = before[:, None] + np.cumsum(
        np.where(np.arange(len(kinds))[:, None] == kind_of[begin:end], changes[begin:end], 0), axis=1
    )
    total = levels.sum(axis=0)
    return tuple(
        ShapeInstant(
            phase=phase,
            sizes_bytes={kind: int(level) for kind, level in zip(kinds, levels[:, at], strict=True) if level},
        )
        for start, stop, phase in stretches
        for at in _highest(total, start - begin, stop - begin)
    )


def _last_step(trace: Trace) -> Sequence[tuple[int, int, Phase]]:
    """Return (first event, end, phase) of each non-empty part of the last step that ends with an optimizer."""
    starts = [*trace.phase_starts, (len(trace.events), None)]
    stretches = [(start, stop, phase) for (start, phase), (stop, _) in pairwise(starts) if phase is not None]
    ends = [number for number, (_, _, phase) in enumerate(stretches) if phase is Phase.OPTIMIZER]
    if not ends:
        return []
    first = ends[-2] + 1 if len(ends) > 1 else 0
    return [
        (start, stop, phase)
        for start, stop, phase in stretches[first : ends[-1] + 1]
        if stop > start and phase is not Phase.LOAD
    ]


def _highest(total: "np.ndarray[tuple[int], np.dtype[np.int64]]", start: int, stop: int) -> list[int]:
    """Return the highest instant of each tenth of a part."""
    bounds = np.linspace(start, stop, min(INSTANTS_A_STRETCH, stop - start) + 1).astype(int)
    return [int(low + np.argmax(total[low:high])) for low, high in pairwise(bounds)]
