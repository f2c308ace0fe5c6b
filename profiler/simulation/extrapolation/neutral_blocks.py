"""Blocks of a decoding step that need not be told over, because they leave the caching allocator as it was.

Blocks of at most 1 MiB live in segments of their own (`kSmallSize` in `c10/cuda/CUDACachingAllocator.cpp`): what
happens there and what happens to larger blocks do not touch each other. A stretch of the small blocks' events in which
everything that is allocated is freed again, and nothing else, gives every piece back to the free block that it was cut
from. So the same stretch, some steps later, finds the same free blocks, needs no new segment and changes nothing. It
runs in full in the first steps and in the last, which has the highest level of them all.

That the blocks between such stretches (ids, masks) leave room where they left room before is likely and not certain: a
test compares segments and peaks with and without. On a card that is full, where cached segments are given back during
the rollout, the two may differ by small segments of 2 MiB.
"""

import numpy as np
import numpy.typing as npt

from profiler.domain.units import MIB

_SMALL_BYTES = MIB


def cycles_until_large(sizes_bytes: npt.NDArray[np.int64], growth_bytes: npt.NDArray[np.int64], cycles: int) -> int:
    """Of this many cycles, those until the last block that leaves the small ones on the way has left; all if none does.

    From there on more blocks pass without a trace: a cache that grows among the small ones breaks their stretches.
    """
    leaving = (growth_bytes > 0) & (sizes_bytes <= _SMALL_BYTES) & (sizes_bytes + cycles * growth_bytes > _SMALL_BYTES)
    if not leaving.any():
        return cycles
    last = int(((_SMALL_BYTES - sizes_bytes[leaving]) // growth_bytes[leaving]).max()) + 1
    return min(last, cycles)


def passing(
    allocates: npt.NDArray[np.bool_],
    numbers: npt.NDArray[np.int64],
    sizes_bytes: npt.NDArray[np.int64],
    growth_bytes: npt.NDArray[np.int64],
) -> set[int]:
    """Blocks of a cycle that come and go in such stretches.

    `allocates` and `numbers` are the cycle's events, blocks counted from its first; sizes are of the last cycle, growth
    from one to the next. None where a block shrinks: then the last step is not the highest.
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
        # It may outgrow the small blocks on the way.
        freed_at.pop(int(number), None)
    found: set[int] = set()
    start = 0
    while start < len(events):
        end = _end_of_stretch(events, freed_at, start)
        if end is None:
            start += 1
            continue
        found.update(number for number, _ in events[start : end + 1])
        start = end + 1
    return found


def _end_of_stretch(events: list[tuple[int, bool]], freed_at: dict[int, int], start: int) -> int | None:
    """The last event of the shortest stretch from `start` that leaves nothing behind; None if there is none."""
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
