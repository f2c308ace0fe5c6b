"""Blocks of a decoding step that need no extrapolation, because they leave the caching allocator unchanged.

Blocks of at most 1 MiB live in segments of their own (`kSmallSize` in `c10/cuda/CUDACachingAllocator.cpp`), so small
and large blocks do not affect each other. A sequence of events of small blocks is neutral if it frees exactly what it
allocates: each piece returns to the free block from which it was split. The same sequence some steps later finds the
same free blocks, needs no new segment and changes nothing. It runs in full in the first steps and in the last one,
which has the highest level.

ASSUMED: the blocks between such sequences (ids, masks) leave free blocks in the same places as before. A test compares
segments and peaks with and without. On a full card, where cached segments are released during the rollout, the two may
differ by small segments of 2 MiB.
"""

import numpy as np
import numpy.typing as npt

from profiler.domain.units import MIB

_SMALL_BYTES = MIB


def cycles_until_large(sizes_bytes: npt.NDArray[np.int64], growth_bytes: npt.NDArray[np.int64], cycles: int) -> int:
    """Return how many of these cycles pass until the last growing block exceeds 1 MiB; all if none does.

    From there on more blocks are neutral: a small block that grows interrupts the sequences of the others.
    """
    leaving = (growth_bytes > 0) & (sizes_bytes <= _SMALL_BYTES) & (sizes_bytes + cycles * growth_bytes > _SMALL_BYTES)
    if not leaving.any():
        return cycles
    last = int(((_SMALL_BYTES - sizes_bytes[leaving]) // growth_bytes[leaving]).max()) + 1
    return min(last, cycles)


def neutral_blocks(
    allocates: npt.NDArray[np.bool_],
    numbers: npt.NDArray[np.int64],
    sizes_bytes: npt.NDArray[np.int64],
    growth_bytes: npt.NDArray[np.int64],
) -> set[int]:
    """Return the neutral blocks of a cycle.

    `allocates` and `numbers` are the cycle's events, with blocks counted from its first; sizes are those of the last
    cycle, growth is per cycle. There are none if a block shrinks: the last step is not the highest then.
    """
    if growth_bytes.min() < 0:
        return set()
    blocks = len(sizes_bytes)
    small = sizes_bytes + growth_bytes <= _SMALL_BYTES
    events = [
        (int(number), bool(allocated))
        for number, allocated in zip(numbers, allocates, strict=True)
        if small[number % blocks]
    ]
    freed_at = {number: index for index, (number, allocated) in enumerate(events) if not allocated}
    for number in np.flatnonzero(growth_bytes):
        # It may exceed 1 MiB in a later cycle.
        freed_at.pop(int(number), None)
    found: set[int] = set()
    start = 0
    while start < len(events):
        end = _end_of_sequence(events, freed_at, start)
        if end is None:
            start += 1
            continue
        found.update(number for number, _ in events[start : end + 1])
        start = end + 1
    return found


def _end_of_sequence(events: list[tuple[int, bool]], freed_at: dict[int, int], start: int) -> int | None:
    """Return the last event of the shortest neutral sequence from `start`; None if there is none."""
    made: set[int] = set()
    index = end = start
    while index <= end:
        number, allocated = events[index]
        if not allocated and number not in made:
            return None
        if allocated:
            if number not in freed_at:
                return None
            made.add(number)
            end = max(end, freed_at[number])
        index += 1
    return end
