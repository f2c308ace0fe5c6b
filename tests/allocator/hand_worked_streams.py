"""Sequences worked by hand for several streams, and for segments that an allocator takes over.

Written as in `hand_worked.py`: one function per rule, with the source of the rule in its docstring.
"""

from collections.abc import Callable
from typing import Any

from hand_worked import MIB, allocator, layout, mib, refused

SCENARIOS: list[Callable[[Any], None]] = []


def scenario(function: Callable[[Any], None]) -> Callable[[Any], None]:
    SCENARIOS.append(function)
    return function


def recording_card(model: Any, capacity: int | None = None) -> Any:
    """A card that keeps the addresses of what is given back, in order."""

    class Card(model.CardMemory):
        def __init__(self) -> None:
            super().__init__(capacity_bytes=capacity)
            self.given_back: list[int] = []

        def give_segment_back(self, address: int, size_bytes: int) -> None:
            super().give_segment_back(address, size_bytes)
            self.given_back.append(address)

        def unmap_pages(self, address: int, size_bytes: int) -> None:
            super().unmap_pages(address, size_bytes)
            self.given_back.append(address)

    return Card()


def on(card: Any, model: Any, **settings: Any) -> Any:
    return model.CachingAllocator(
        capacity_bytes=card.capacity_bytes, config=model.AllocatorConfig(**settings), card=card
    )


@scenario
def a_stream_is_served_from_its_own_blocks_only(model: Any) -> None:
    """`get_free_block`: `(*it)->stream != p.stream()` ends the search."""
    it = allocator(model)
    it.free(it.allocate(20 * MIB, 1))
    it.free(it.allocate(1, 1))
    assert layout(it) == [[-20], [-2]]
    assert not it.serves_from_cache(20 * MIB)
    assert it.serves_from_cache(20 * MIB, 1)
    assert not it.serves_from_cache(20 * MIB + 1, 1)
    assert it.serves_from_cache(MIB, 1)
    assert it.serves_from_cache(MIB + 1, 1)
    assert not it.serves_from_cache(MIB, 0)
    it.allocate(20 * MIB, 2)
    it.allocate(20 * MIB)
    it.allocate(1)
    assert layout(it) == [[-20], [-2], [20], [20], [512, -(2 * MIB - 512)]]
    it.allocate(20 * MIB, 1)
    it.allocate(1, 1)
    assert layout(it)[:2] == [[20], [512, -(2 * MIB - 512)]]
    assert it.stats().reserved_bytes == 64 * MIB


@scenario
def a_freed_block_returns_to_its_own_stream(model: Any) -> None:
    """`free_block`: `block->pool`, where it is kept under `block->stream`."""
    it = allocator(model)
    block = it.allocate(5 * MIB, 3)
    assert block.pool.stream == 3
    it.free(block)
    assert it.largest_free_bytes(stream=3) == 20 * MIB
    assert it.largest_free_bytes(stream=0) == 0
    assert it.largest_free_bytes() == 20 * MIB


@scenario
def the_default_stream_is_0(model: Any) -> None:
    """`cuda::getDefaultCUDAStream`: the null stream."""
    it = allocator(model)
    it.free(it.allocate(20 * MIB))
    it.allocate(20 * MIB, 0)
    assert layout(it) == [[20]]
    it.free(it.allocate(30 * MIB, 0))
    assert it.serves_from_cache(30 * MIB)
    assert model.FreeBlocks(is_small=True).stream == 0


@scenario
def the_largest_free_block_is_found_in_one_pool_or_in_all(model: Any) -> None:
    """Ours: what a request could have been served with."""
    it = allocator(model)
    assert it.largest_free_bytes() == 0
    it.allocate(5 * MIB)
    it.allocate(1)
    it.free(it.allocate(30 * MIB, 7))
    it.free(it.allocate(22 * MIB, 7))
    assert it.largest_free_bytes() == 30 * MIB
    assert it.largest_free_bytes(is_small=False) == 30 * MIB
    assert it.largest_free_bytes(is_small=True) == 2 * MIB - 512
    assert it.largest_free_bytes(is_small=False, stream=0) == 15 * MIB
    assert it.largest_free_bytes(is_small=True, stream=7) == 0


@scenario
def a_flush_gives_back_the_segments_of_all_streams(model: Any) -> None:
    """`release_blocks`: the large pool before the small one, each in the order of `BlockComparatorSize`."""
    card = recording_card(model, 120 * MIB)
    it = on(card, model)
    blocks = [
        it.allocate(size, stream) for size, stream in ((30 * MIB, 2), (24 * MIB, 1), (20 * MIB, 2), (1, 2), (1, 1))
    ]
    for block in blocks:
        it.free(block)
    at = [block.address for block in blocks]
    order = [1, 2, 0, 4, 3]
    sizes = [30 * MIB, 24 * MIB, 20 * MIB, 2 * MIB, 2 * MIB]
    assert it.releasable() == [(at[number], sizes[number]) for number in order]
    it.allocate(100 * MIB, 9)
    assert card.given_back == [at[number] for number in order]
    assert layout(it) == [[100]]
    assert it.stats().num_alloc_retries == 1


@scenario
def nothing_is_releasable_of_a_segment_in_use(model: Any) -> None:
    """`release_blocks`: `!block->prev && !block->next`; of expandable segments whole pages."""
    it = allocator(model)
    it.allocate(5 * MIB)
    assert it.releasable() == []
    it = allocator(model, expandable_segments=True)
    it.allocate(5 * MIB)
    hole = it.allocate(50 * MIB)
    it.allocate(25 * MIB)
    assert it.releasable() == []
    it.free(hole)
    # 5 in use, then free from 5 to 55: of the pages of 20 MiB only the one from 20 to 40 lies in it wholly.
    assert it.releasable() == [(hole.address + 15 * MIB, 20 * MIB)]
    assert it.releasable() == [(hole.address + 15 * MIB, 20 * MIB)]
    it.empty_cache()
    assert it.releasable() == []


@scenario
def unsplittable_blocks_of_other_streams_stay(model: Any) -> None:
    """`release_available_cached_blocks`: `(*it)->stream == p.stream()`, for one block and for several."""
    limits = {"max_split_bytes": 32 * MIB, "max_non_split_rounding_bytes": 2 * MIB}
    it = allocator(model, 120 * MIB, **limits)
    it.free(it.allocate(60 * MIB, 1))
    it.free(it.allocate(50 * MIB))
    it.allocate(34 * MIB)
    assert layout(it) == [[-60], [34]]
    assert it.stats().num_alloc_retries == 0
    it = allocator(model, 120 * MIB, **limits)
    for block in [it.allocate(40 * MIB, 1), it.allocate(40 * MIB), it.allocate(36 * MIB)]:
        it.free(block)
    it.allocate(76 * MIB)
    assert layout(it) == [[-40], [76]]
    assert it.stats().num_alloc_retries == 0
    # A segment of another stream would have made room, but only the flush of all gives it back.
    it = allocator(model, 60 * MIB, **limits)
    it.free(it.allocate(60 * MIB, 1))
    it.allocate(34 * MIB)
    assert layout(it) == [[34]]
    assert it.stats().num_alloc_retries == 1


@scenario
def garbage_is_collected_from_all_streams(model: Any) -> None:
    """`garbage_collect_cached_blocks`: over `large_blocks`, whose searches count for all its blocks."""
    limits = {"per_process_memory_fraction": 0.5, "garbage_collection_threshold": 0.6}
    it = allocator(model, 200 * MIB, **limits)
    it.free(it.allocate(30 * MIB, 1))
    it.free(it.allocate(40 * MIB, 2))
    # 70 held of 100 allowed, 60 wanted. Searches: 1 by stream 1, 2 by stream 2, 3 by stream 3: ages 2 and 1.
    it.allocate(50 * MIB, 3)
    assert layout(it) == [[-40], [50]]
    it = allocator(model, 200 * MIB, **limits)
    it.free(it.allocate(40 * MIB, 2))
    it.free(it.allocate(30 * MIB, 1))
    it.allocate(50 * MIB, 3)
    assert layout(it) == [[-30], [50]]
    # Searches in the small pool do not age large blocks: both are of age 1, so both go.
    it = allocator(model, 200 * MIB, **limits)
    it.allocate(1, 1)
    a, b = it.allocate(30 * MIB, 1), it.allocate(40 * MIB, 2)
    it.free(a)
    it.allocate(1, 1)
    it.free(b)
    it.allocate(50 * MIB, 3)
    assert layout(it) == [[512, 512, -(2 * MIB - 1024)], [50]]


@scenario
def garbage_is_collected_in_the_order_of_streams(model: Any) -> None:
    """`garbage_collect_cached_blocks`: it walks `large_blocks`, which is ordered by stream."""
    card = recording_card(model, 200 * MIB)
    it = on(card, model, per_process_memory_fraction=0.5, garbage_collection_threshold=0.2)
    blocks = [it.allocate(30 * MIB, 2), it.allocate(24 * MIB, 1)]
    for block in blocks:
        it.free(block)
    it.allocate(40 * MIB, 1)
    assert card.given_back == [blocks[1].address, blocks[0].address]


@scenario
def each_stream_has_an_expandable_segment(model: Any) -> None:
    """`find_expandable_block`: `(*it)->stream == stream` ends the search for a place."""
    it = allocator(model, 1000 * MIB, expandable_segments=True)
    a = it.allocate(5 * MIB, 1)
    it.allocate(5 * MIB, 2)
    it.allocate(7 * MIB, 1)
    assert layout(it) == [[5, 7, -8], [5, -15]]
    it.free(a)
    it.allocate(25 * MIB, 2)
    assert layout(it) == [[-5, 7, -8], [5, 25, -10]]


def held(model: Any, sizes: list[int], states: str, **settings: Any) -> Any:
    """A segment at 1000 MiB of blocks of `sizes` MiB: `u` in use, `f` free, `-` without memory."""
    state = {"u": model.BlockState.IN_USE, "f": model.BlockState.FREE, "-": model.BlockState.UNMAPPED}
    address, blocks = 1000 * MIB, []
    for size, kind in zip(mib(*sizes), states, strict=True):
        blocks.append(
            model.HeldBlock(
                address=address, size_bytes=size, requested_bytes=size - 7 if kind == "u" else 0, state=state[kind]
            )
        )
        address += size
    kept = {"stream": 0, "is_small": False, "page_bytes": None} | settings
    return model.HeldSegment(blocks=tuple(blocks), **kept)


@scenario
def a_segment_is_taken_over_as_it_is(model: Any) -> None:
    """Ours: counters as if the blocks had been requested (`alloc_found_block`, `free_block`)."""
    it = allocator(model, 100 * MIB)
    in_use = it.hold(held(model, [5, 9, 6], "ufu", stream=4))
    assert [(block.address, block.size_bytes, block.requested_bytes) for block in in_use] == [
        (1000 * MIB, 5 * MIB, 5 * MIB - 7),
        (1014 * MIB, 6 * MIB, 6 * MIB - 7),
    ]
    assert layout(it) == [[5, -9, 6]]
    stats = it.stats()
    assert (stats.allocated_bytes, stats.reserved_bytes, stats.inactive_split_bytes) == (11 * MIB, 20 * MIB, 9 * MIB)
    assert (stats.peak_allocated_bytes, stats.peak_reserved_bytes) == (0, 0)
    it.hold(held(model, [30], "f"))
    assert it.stats().inactive_split_bytes == 9 * MIB
    assert it.stats().reserved_bytes == 50 * MIB
    it.free(in_use[0])
    assert layout(it)[0] == [-14, 6] or layout(it)[1] == [-14, 6]
    assert it.stats().inactive_split_bytes == 14 * MIB
    assert it.allocate(14 * MIB, 4).address == 1000 * MIB
    assert refused(model, it, 81 * MIB).reserved_bytes == 20 * MIB


@scenario
def an_expandable_segment_is_taken_over_with_its_gaps(model: Any) -> None:
    """Ours: `map_block`, `unmap_block` and `try_merge_blocks` go on from what was held."""
    it = allocator(model, 200 * MIB, expandable_segments=True)
    it.hold(held(model, [5, 15, 40, 10, 10, 120], "uf-uf-", page_bytes=20 * MIB))
    assert layout(it) == [[5, -15], [10, -10]]
    assert it.stats().reserved_bytes == 40 * MIB
    assert it.stats().allocated_bytes == 15 * MIB
    assert it.stats().inactive_split_bytes == 0
    # 15 free and the gap of 40 are the lowest place with room for 50.
    assert it.allocate(50 * MIB).address == 1005 * MIB
    assert layout(it) == [[5, 50, -5, 10, -10]]
    # Behind the last block there are addresses for 130 MiB in all.
    assert it.allocate(130 * MIB).address == 1070 * MIB
    assert it.stats().reserved_bytes == 200 * MIB
    it = allocator(model, expandable_segments=True)
    it.hold(held(model, [5, 15, 40, 10, 10, 120], "uf-uf-", page_bytes=20 * MIB))
    assert it.releasable() == []
    first, _ = (block for segment in it.segments() for block in segment if block.allocated)
    it.free(first)
    assert it.releasable() == [(1000 * MIB, 20 * MIB)]
    assert it.allocate(21 * MIB).address == 1000 * MIB
    assert layout(it) == [[21, -19], [10, -10]]
    it = allocator(model, expandable_segments=True)
    for block in it.hold(held(model, [5, 15, 180], "uu-", page_bytes=20 * MIB)):
        it.free(block)
    assert it.allocate(30 * MIB).address == 1000 * MIB
    assert layout(it) == [[30, -10]]


@scenario
def a_small_segment_is_taken_over_by_the_small_pool(model: Any) -> None:
    """Ours: `get_pool`."""
    it = allocator(model)
    it.hold(held(model, [1, 1], "uf", is_small=True))
    assert it.serves_from_cache(MIB)
    assert not it.serves_from_cache(MIB + 1)
    assert it.allocate(1).address == 1001 * MIB
    assert it.largest_free_bytes(is_small=False) == 0
