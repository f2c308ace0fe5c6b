"""Peaks of a trace on a card of a given capacity."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiler.allocator.refusals.refusal import Refusal
from profiler.allocator.traces.trace import Trace
from profiler.domain.memory import Category, Phase

BLOCK_GRANULARITY_BYTES = 512
"""Every request is rounded up to a multiple of this (`kMinBlockSize`, c10 allocator)."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """Peaks of a trace up to the refused allocation, or of all of it."""

    peak_allocated_bytes: int
    peak_phase: Phase
    phases: Mapping[Phase, int]
    """Peak of each phase that began."""
    breakdown: Mapping[Category, int]
    """By category at the first instant of the peak; sums to it. Categories without bytes are left out."""
    refusal: Refusal | None


def rounded(size_bytes: Integers) -> Integers:
    """Return the bytes of the block for a request: a multiple of `BLOCK_GRANULARITY_BYTES`, at least one."""
    blocks = np.maximum(1, -(-size_bytes // BLOCK_GRANULARITY_BYTES))
    result: Integers = blocks * BLOCK_GRANULARITY_BYTES
    return result


def replay(trace: Trace, *, capacity_bytes: int | None = None) -> Peaks:
    """Return peaks by phase and category of `trace` on a card of `capacity_bytes` (None: unlimited).

    Allocated memory is the sum of the rounded sizes of the blocks in use, as `torch.cuda.memory_allocated` counts it
    but for what a large block wastes because its rest is too small to split off.

    Raises:
        ValueError: the trace has no events.
    """
    events = np.asarray(trace.events, dtype=np.int64)
    if not len(events):
        raise ValueError("a trace without events has no peak")
    sizes = rounded(np.asarray(trace.sizes_bytes, dtype=np.int64))
    allocated = np.cumsum(np.sign(events) * sizes[np.abs(events) - 1])
    refused_at = _first_beyond(allocated, capacity_bytes)
    reached = len(events) if refused_at is None else refused_at
    if reached == 0:
        return _refused_at_once(trace, capacity_bytes or 0)
    peak_at = int(np.argmax(allocated[:reached]))
    return Peaks(
        peak_allocated_bytes=int(allocated[peak_at]),
        peak_phase=_phase_at(trace, peak_at),
        phases=_phase_peaks(trace, allocated[:reached]),
        breakdown=_breakdown(trace, events[: peak_at + 1], sizes),
        refusal=None
        if refused_at is None
        else _refusal(trace, refused_at, int(allocated[refused_at - 1]), capacity_bytes or 0),
    )


def _first_beyond(allocated: Integers, capacity_bytes: int | None) -> int | None:
    if capacity_bytes is None:
        return None
    beyond = np.flatnonzero(allocated > capacity_bytes)
    return int(beyond[0]) if len(beyond) else None


def _refused_at_once(trace: Trace, capacity_bytes: int) -> Peaks:
    phase = _phase_at(trace, 0)
    return Peaks(
        peak_allocated_bytes=0,
        peak_phase=phase,
        phases={phase: 0},
        breakdown={},
        refusal=_refusal(trace, 0, 0, capacity_bytes),
    )


def _refusal(trace: Trace, event: int, allocated_bytes: int, capacity_bytes: int) -> Refusal:
    requested_bytes = trace.sizes_bytes[trace.events[event] - 1]
    return Refusal(
        phase=_phase_at(trace, event),
        requested_bytes=requested_bytes,
        tried_bytes=requested_bytes,
        free_bytes=capacity_bytes - allocated_bytes,
        allocated_bytes=allocated_bytes,
        reserved_bytes=allocated_bytes,
    )


def _phase_at(trace: Trace, event: int) -> Phase:
    starts = [start for start, _ in trace.phase_starts]
    index = int(np.searchsorted(starts, event, side="right")) - 1
    return trace.phase_starts[max(0, index)][1]


def _phase_peaks(trace: Trace, allocated: Integers) -> dict[Phase, int]:
    """Return the highest level during each phase, including the level at its beginning."""
    peaks: dict[Phase, int] = {}
    ends = [start for start, _ in trace.phase_starts[1:]] + [len(allocated)]
    for (start, phase), end in zip(trace.phase_starts, ends, strict=True):
        if start > len(allocated) or (start == len(allocated) and start > 0 and phase in peaks):
            continue
        levels = allocated[max(0, start - 1) : max(start, min(end, len(allocated)))]
        peaks[phase] = max(peaks.get(phase, 0), int(levels.max(initial=0)))
    return peaks


def _breakdown(trace: Trace, events: Integers, sizes: Integers) -> dict[Category, int]:
    """Return bytes by category of the blocks in use after `events`."""
    signed = np.zeros(len(sizes), dtype=np.int64)
    np.add.at(signed, np.abs(events) - 1, np.sign(events))
    live = np.flatnonzero(signed)
    totals: dict[Category, int] = {}
    for block in live.tolist():
        category = trace.categories[block]
        totals[category] = totals.get(category, 0) + int(sizes[block])
    return totals
