"""Sequences worked by hand from the source of PyTorch's caching allocator, one function a rule.

Each takes the model as an argument, so that `test_mutation.py` can show that a model with one rule changed fails one of
them. The symbol named in a docstring is where the rule stands: c10/cuda/CUDACachingAllocator.cpp, or
c10/core/AllocatorConfig.h and .cpp, torch 2.13.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from profiler.domain.cards.gpu import Chip, Gpu
from profiler.domain.memory import Phase

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

SCENARIOS: list[Callable[[Any], None]] = []


def scenario(function: Callable[[Any], None]) -> Callable[[Any], None]:
    SCENARIOS.append(function)
    return function


def allocator(model: Any, capacity: int | None = None, *, total: int | None = None, **settings: Any) -> Any:
    return model.CachingAllocator(capacity_bytes=capacity, config=model.AllocatorConfig(**settings), total_bytes=total)


def layout(allocator: Any) -> list[list[int]]:
    """Bytes of each block of each segment in MiB where whole, else in bytes; in use positive, free negative."""
    shown = []
    for segment in allocator.segments():
        for left, right in pairwise(segment):
            assert left.address + left.size_bytes == right.address
        shown.append([_shown(block.size_bytes) * (1 if block.allocated else -1) for block in segment])
    return shown


def _shown(size: int) -> int:
    return size // MIB if size % MIB == 0 else size


def mib(*sizes: int) -> list[int]:
    return [size * MIB for size in sizes]


def refused(model: Any, allocator: Any, size: int) -> Any:
    try:
        allocator.allocate(size)
    except model.OutOfMemoryError as error:
        return error
    raise AssertionError("the allocation should have been refused")


@scenario
def the_defaults_are_pytorchs(model: Any) -> None:
    """The members of `AcceleratorAllocatorConfig` and `CUDAAllocatorConfig`."""
    config = model.AllocatorConfig()
    assert config.large_segment_bytes == config.max_non_split_rounding_bytes == 20971520
    assert config.roundup_power2_divisions == (0,) * 16
    assert (config.max_split_bytes, config.expandable_segments) == (None, False)
    assert (config.garbage_collection_threshold, config.per_process_memory_fraction) == (0.0, 1.0)


@scenario
def nothing_is_held_at_first(model: Any) -> None:
    """`DeviceStats`: zeroes."""
    it = allocator(model)
    stats = it.stats()
    assert stats.allocated_bytes == stats.peak_allocated_bytes == 0
    assert stats.reserved_bytes == stats.peak_reserved_bytes == 0
    assert stats.inactive_split_bytes == stats.peak_inactive_split_bytes == stats.peak_unreleasable_bytes == 0
    assert stats.num_alloc_retries == 0
    assert layout(it) == []


@scenario
def a_card_can_be_given(model: Any) -> None:
    """Ours: who answers for the driver can be chosen."""
    card = model.CardMemory(capacity_bytes=20 * MIB)
    it = model.CachingAllocator(capacity_bytes=None, config=model.AllocatorConfig(), card=card)
    assert refused(model, it, 21 * MIB).free_bytes == 20 * MIB


@scenario
def of_equal_blocks_that_of_the_lower_address_is_taken(model: Any) -> None:
    """`BlockComparatorSize`: the older segment's where addresses ascend, the younger one's where they descend."""
    for descends, taken in ((False, 0), (True, 1)):
        it = model.CachingAllocator(capacity_bytes=None, config=model.AllocatorConfig(addresses_descend=descends))
        blocks = [it.allocate(30 * MIB), it.allocate(40 * MIB), it.allocate(30 * MIB)]
        places = [block.address for block in blocks]
        steps = [places[1] - places[0], places[2] - places[1]]
        assert steps == ([-40 * MIB, -30 * MIB] if descends else [30 * MIB, 40 * MIB])
        for block in blocks:
            it.free(block)
        assert it.allocate(30 * MIB).address == places[2 * taken]


@scenario
def addresses_decide_before_torch_2_13(model: Any) -> None:
    """pytorch/pytorch#183591: from then on the age of the segment does."""
    versions = ("1.14.0", "2.11.0+cu130", "2.12.1", "2.13.0", "2.14.0", "3.0.0")
    assert [model.addresses_descend(version) for version in versions] == [True, True, True, False, False, False]


@scenario
def sizes_are_rounded_up_to_512(model: Any) -> None:
    """`round_size`, `kMinBlockSize`."""
    config = model.AllocatorConfig()
    found = [model.block_bytes(size, config) for size in (1, 511, 512, 513, 1024, 1025, 3 * MIB + 1)]
    assert found == [512, 512, 512, 1024, 1024, 1536, 3 * MIB + 512]


@scenario
def sizes_are_rounded_up_to_divisions_of_powers_of_two(model: Any) -> None:
    """`roundup_power2_next_division`: only beyond 512 x divisions, and powers of two stay."""
    config = model.AllocatorConfig(roundup_power2_divisions=(4,) * 16)
    sizes = (100, 1200, 2047, 2048, 2049, 2560, 3000, 4096, 4097, 5 * MIB + 1)
    found = [model.block_bytes(size, config) for size in sizes]
    assert found == [512, 1536, 2048, 2048, 2560, 2560, 3072, 4096, 5120, 6 * MIB]
    one = model.AllocatorConfig(roundup_power2_divisions=(1,) * 16)
    assert model.block_bytes(2049, one) == 2560
    two = model.AllocatorConfig(roundup_power2_divisions=(2,) * 16)
    assert model.block_bytes(2049, two) == 3072


@scenario
def divisions_are_looked_up_by_the_power_of_two_below(model: Any) -> None:
    """`AcceleratorAllocatorConfig::roundup_power2_divisions`: interval 0 is below 2 MiB, the last from 32 GiB on."""
    config = model.AllocatorConfig(roundup_power2_divisions=(0, 2, *(0,) * 13, 4))
    sizes = (1 * MIB + 1, 2 * MIB - 1, 2 * MIB + 1, 3 * MIB + 1, 4 * MIB + 1, 40 * GIB + 1, 130 * GIB)
    found = [model.block_bytes(size, config) for size in sizes]
    assert found == [1 * MIB + 512, 2 * MIB, 3 * MIB, 4 * MIB, 4 * MIB + 512, 48 * GIB, 160 * GIB]
    first = model.AllocatorConfig(roundup_power2_divisions=(2, *(0,) * 15))
    assert model.block_bytes(300 * KIB, first) == 384 * KIB
    assert model.block_bytes(1 * MIB + 1, first) == 1536 * KIB


@scenario
def segments_have_three_sizes(model: Any) -> None:
    """`get_allocation_size`: `kSmallBuffer`, `large_segment_size`, multiples of `kRoundLarge`."""
    config = model.AllocatorConfig()
    sizes = (512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 10 * MIB + 512, 12 * MIB)
    found = [model.segment_bytes(size, config) for size in sizes]
    assert found == mib(2, 2, 20, 20, 10, 12, 12)
    larger = model.AllocatorConfig(large_segment_bytes=64 * MIB)
    assert [model.segment_bytes(size, larger) for size in mib(1, 5, 10)] == mib(2, 64, 10)


@scenario
def small_requests_share_segments_of_2_mib(model: Any) -> None:
    """`get_pool`: up to `kSmallSize` is small; a small free block does not serve a large request, nor the reverse."""
    it = allocator(model)
    it.allocate(600 * KIB)
    it.allocate(600 * KIB)
    assert layout(it) == [[600 * KIB, 600 * KIB, -848 * KIB]]
    it.allocate(900 * KIB)
    assert it.stats().reserved_bytes == 4 * MIB
    assert it.stats().allocated_bytes == 2100 * KIB
    it.allocate(1 * MIB)
    assert layout(it) == [[600 * KIB, 600 * KIB, -848 * KIB], [900 * KIB, 1, -124 * KIB]]
    it.allocate(1 * MIB + 1)
    assert layout(it)[2:] == [[MIB + 512, -(19 * MIB - 512)]]
    it.allocate(1 * MIB)
    assert it.stats().reserved_bytes == 26 * MIB


@scenario
def a_small_block_is_split_down_to_512_bytes(model: Any) -> None:
    """`should_split`: in the small pool the rest is split off from `kMinBlockSize` on."""
    it = allocator(model)
    it.allocate(1 * MIB)
    it.allocate(1 * MIB - 512)
    assert layout(it) == [[1, MIB - 512, -512]]
    it.allocate(1)
    assert layout(it) == [[1, MIB - 512, 512]]
    assert it.stats().allocated_bytes == it.stats().reserved_bytes == 2 * MIB


@scenario
def up_to_1_mib_of_a_large_block_is_wasted_and_counts_as_allocated(model: Any) -> None:
    """`should_split`: in the large pool the rest is split off beyond `kSmallSize`; `alloc_found_block` counts sizes."""
    it = allocator(model)
    it.allocate(11 * MIB)
    assert layout(it) == [[12]]
    assert it.stats().allocated_bytes == 12 * MIB
    it.allocate(11 * MIB - 512)
    assert layout(it)[1] == [11 * MIB - 512, -(MIB + 512)]
    assert it.stats().allocated_bytes == 23 * MIB - 512


@scenario
def the_smallest_block_that_fits_is_taken_then_the_lowest_address(model: Any) -> None:
    """`get_free_block`: `lower_bound` in the order of `BlockComparatorSize`."""
    it = allocator(model)
    held = [it.allocate(size) for size in mib(40, 30, 20, 30)]
    first, second = held[1].address, held[3].address
    assert first < second
    for block in reversed(held):
        it.free(block)
    assert it.allocate(20 * MIB).size_bytes == 20 * MIB
    assert it.allocate(25 * MIB).address == first
    assert it.allocate(26 * MIB).address == second
    assert layout(it) == [[-40], [25, -5], [20], [26, -4]]
    assert it.stats().reserved_bytes == 120 * MIB


@scenario
def a_freed_block_merges_with_its_free_neighbours(model: Any) -> None:
    """`free_block`, `try_merge_blocks`: with both sides, and the segment is kept."""
    it = allocator(model)
    a, b, c = (it.allocate(size) for size in mib(5, 6, 7))
    assert layout(it) == [[5, 6, 7, -2]]
    it.free(a)
    assert layout(it) == [[-5, 6, 7, -2]]
    it.free(c)
    assert layout(it) == [[-5, 6, -9]]
    it.free(b)
    assert layout(it) == [[-20]]
    assert it.stats().reserved_bytes == 20 * MIB
    assert it.stats().allocated_bytes == 0
    a, b, c = (it.allocate(size) for size in mib(5, 6, 7))
    it.free(b)
    it.free(a)
    assert layout(it) == [[-11, 7, -2]]
    a = it.allocate(4 * MIB)
    b = it.allocate(7 * MIB)
    assert layout(it) == [[4, 7, 7, -2]]
    it.free(a)
    it.free(b)
    assert layout(it) == [[-11, 7, -2]]
    it.free(c)
    assert layout(it) == [[-20]]


@scenario
def blocks_of_two_segments_do_not_merge(model: Any) -> None:
    """`try_merge_blocks`: neighbours are of one segment, whatever their addresses."""
    it = allocator(model)
    for block in [it.allocate(20 * MIB), it.allocate(30 * MIB)]:
        it.free(block)
    assert layout(it) == [[-20], [-30]]
    assert sorted(it.allocate(size).size_bytes for size in mib(20, 30)) == mib(20, 30)


@scenario
def a_freed_part_of_a_used_segment_raises_the_peak(model: Any) -> None:
    """`stats.inactive_split_bytes` in `free_block`: 5 of 20 MiB."""
    it = allocator(model)
    first, _ = it.allocate(5 * MIB), it.allocate(15 * MIB)
    it.reset_peaks()
    it.free(first)
    assert it.stats().peak_inactive_split_bytes == 5 * MIB


@scenario
def free_parts_of_used_segments_are_inactive(model: Any) -> None:
    """`stats.inactive_split_bytes` in `alloc_found_block` and `free_block`."""
    it = allocator(model)
    inactive = []

    def note() -> None:
        inactive.append(it.stats().inactive_split_bytes / MIB)

    a = it.allocate(5 * MIB)  # 5, -15
    note()
    b = it.allocate(6 * MIB)  # 5, 6, -9
    note()
    it.free(a)  # -5, 6, -9
    note()
    c = it.allocate(4 * MIB)  # 5 (1 wasted), 6, -9
    note()
    d = it.allocate(9 * MIB)  # 5, 6, 9
    note()
    whole = it.allocate(30 * MIB)
    it.free(whole)  # a free segment is not split
    note()
    it.free(d)
    note()
    it.free(c)
    note()
    it.free(b)
    note()
    assert inactive == [15, 9, 14, 9, 0, 0, 9, 14, 0]
    assert it.stats().peak_inactive_split_bytes == 15 * MIB


@scenario
def a_segment_with_a_block_in_use_is_never_given_back(model: Any) -> None:
    """`release_blocks` in `emptyCache` gives back only blocks that are whole segments."""
    it = allocator(model)
    small = it.allocate(5 * MIB)  # 5, -15
    it.free(it.allocate(30 * MIB))  # whole, and gone again
    assert it.stats().peak_unreleasable_bytes == 50 * MIB
    it.allocate(1)  # 5 and 15 of the segment, and 2 of a small one: no new peak
    assert it.stats().peak_unreleasable_bytes == 50 * MIB
    it = allocator(model)
    small = it.allocate(5 * MIB)
    it.free(it.allocate(30 * MIB))
    it.empty_cache()
    it.reset_peaks()
    assert it.stats().peak_unreleasable_bytes == it.stats().reserved_bytes == 20 * MIB
    it.free(small)
    it.reset_peaks()
    assert it.stats().peak_unreleasable_bytes == 0


@scenario
def a_full_card_makes_the_cache_give_back_whole_segments(model: Any) -> None:
    """`malloc`: `alloc_block` fails, `release_cached_blocks` (large and small), `num_alloc_retries`."""
    it = allocator(model, 52 * MIB)
    it.free(it.allocate(20 * MIB))
    it.free(it.allocate(1 * KIB))
    kept = it.allocate(5 * MIB)
    assert layout(it) == [[5, -15], [-2]]
    assert it.stats().num_alloc_retries == 0
    it.allocate(32 * MIB)
    assert layout(it) == [[5, -15], [32]]
    assert it.stats().num_alloc_retries == 1
    assert it.stats().reserved_bytes == 52 * MIB
    assert it.stats().peak_reserved_bytes == 52 * MIB
    it.free(kept)
    assert layout(it) == [[-20], [32]]
    it.allocate(11 * MIB + 1)
    assert layout(it) == [[11 * MIB + 512, -(9 * MIB - 512)], [32]]


@scenario
def what_fits_exactly_is_not_refused(model: Any) -> None:
    """`cudaMalloc` gives the last byte; the retry is not counted where the first try succeeds."""
    it = allocator(model, 30 * MIB)
    it.allocate(30 * MIB)
    assert it.stats().num_alloc_retries == 0
    error = refused(model, it, 1)
    assert (error.requested_bytes, error.tried_bytes, error.free_bytes) == (1, 2 * MIB, 0)


@scenario
def a_refusal_says_what_there_was(model: Any) -> None:
    """`malloc`: `TORCH_CHECK_WITH(OutOfMemoryError, ...)` names `alloc_size`; what was in use still is."""
    it = allocator(model, 50 * MIB)
    a = it.allocate(11 * MIB)
    it.allocate(5 * MIB)
    it.free(it.allocate(10 * MIB))
    error = refused(model, it, 19 * MIB + 5)
    assert error.requested_bytes == 19 * MIB + 5
    assert error.tried_bytes == 20 * MIB
    assert error.free_bytes == 18 * MIB
    assert error.allocated_bytes == 17 * MIB
    assert error.reserved_bytes == 32 * MIB
    assert error.retries == 1
    assert layout(it) == [[12], [5, -15]]
    assert it.allocate(18 * MIB).size_bytes == 18 * MIB
    it.free(a)
    assert refused(model, it, 16 * MIB).retries == 2
    assert it.stats().num_alloc_retries == 2


@scenario
def nothing_is_refused_without_a_capacity(model: Any) -> None:
    """No card has as much."""
    it = allocator(model)
    assert it.allocate(1024 * GIB).size_bytes == 1024 * GIB
    assert it.stats().reserved_bytes == 1024 * GIB


@scenario
def unsplittable_blocks_serve_no_smaller_request(model: Any) -> None:
    """`get_free_block`: below `max_split_size` no block of at least that size is taken."""
    it = allocator(model, max_split_bytes=32 * MIB)
    it.free(it.allocate(32 * MIB))
    it.allocate(31 * MIB)
    assert layout(it) == [[-32], [31, -1]] or layout(it) == [[-32], [32]]
    it = allocator(model, max_split_bytes=32 * MIB)
    it.free(it.allocate(30 * MIB))
    it.allocate(25 * MIB)
    assert layout(it) == [[25, -5]]
    it.allocate(32 * MIB)
    assert layout(it) == [[25, -5], [32]]


@scenario
def a_block_below_the_limit_is_split_even_if_its_segment_is_not_below(model: Any) -> None:
    """`should_split` compares the request with `max_split_size`, not the block."""
    it = allocator(model, max_split_bytes=20 * MIB)
    block = it.allocate(5 * MIB)
    assert layout(it) == [[5, -15]]
    it.free(block)
    assert layout(it) == [[-20]]
    it.allocate(5 * MIB)
    assert layout(it) == [[-20], [5, -15]]


@scenario
def unsplittable_blocks_may_be_somewhat_too_large(model: Any) -> None:
    """`get_free_block`: less than `max_non_split_rounding_size` more; `should_split`: never split."""
    it = allocator(model, max_split_bytes=32 * MIB)
    it.free(it.allocate(54 * MIB))
    it.allocate(34 * MIB)
    assert layout(it) == [[-54], [34]]
    it.allocate(32 * MIB)
    assert layout(it) == [[-54], [34], [32]]
    it.allocate(36 * MIB)
    assert layout(it) == [[54], [34], [32]]
    assert it.stats().allocated_bytes == 120 * MIB
    it = allocator(model, max_split_bytes=32 * MIB, max_non_split_rounding_bytes=30 * MIB)
    it.free(it.allocate(60 * MIB))
    it.allocate(32 * MIB)
    assert layout(it) == [[60]]


@scenario
def unsplittable_blocks_are_given_back_first(model: Any) -> None:
    """`release_available_cached_blocks`: the smallest that makes room alone."""
    it = allocator(model, 120 * MIB, max_split_bytes=32 * MIB, max_non_split_rounding_bytes=2 * MIB)
    for block in [it.allocate(60 * MIB), it.allocate(40 * MIB)]:
        it.free(block)
    it.allocate(34 * MIB)
    assert layout(it) == [[-60], [34]]
    assert it.stats().num_alloc_retries == 0
    it = allocator(model, 44 * MIB, max_split_bytes=32 * MIB)
    it.free(it.allocate(12 * MIB))
    it.free(it.allocate(32 * MIB))
    it.allocate(30 * MIB)
    assert layout(it) == [[-12], [30]]
    assert it.stats().num_alloc_retries == 0


@scenario
def several_unsplittable_blocks_are_given_back_from_the_largest_on(model: Any) -> None:
    """`release_available_cached_blocks`: until they make room together; short of it the cache is flushed."""
    it = allocator(model, 124 * MIB, max_split_bytes=32 * MIB)
    for block in [it.allocate(size) for size in mib(40, 34, 36)]:
        it.free(block)
    it.allocate(76 * MIB)
    assert layout(it) == [[-34], [76]]
    assert it.stats().num_alloc_retries == 0
    it = allocator(model, 100 * MIB, max_split_bytes=32 * MIB)
    for block in [it.allocate(size) for size in mib(34, 30)]:
        it.free(block)
    it.allocate(70 * MIB)
    assert layout(it) == [[70]]
    assert it.stats().num_alloc_retries == 1
    it = allocator(model, 64 * MIB, max_split_bytes=32 * MIB)
    it.free(it.allocate(30 * MIB))
    it.free(it.allocate(32 * MIB))
    assert refused(model, it, 66 * MIB).retries == 1
    it = allocator(model, 100 * MIB, max_split_bytes=30 * MIB, max_non_split_rounding_bytes=2 * MIB)
    for block in [it.allocate(size) for size in mib(30, 30, 28)]:
        it.free(block)
    it.allocate(60 * MIB)
    assert layout(it) == [[-28], [60]]
    assert it.stats().num_alloc_retries == 0


@scenario
def a_share_of_the_card_is_a_limit(model: Any) -> None:
    """`alloc_block`: `total_allocated_memory + size > allowed_memory_maximum`; `setMemoryFraction`: below 1 only."""
    it = allocator(model, 100 * MIB, per_process_memory_fraction=0.5)
    it.allocate(30 * MIB)
    it.allocate(20 * MIB)
    error = refused(model, it, 1)
    assert error.free_bytes == 50 * MIB
    it = allocator(model, 100 * MIB, total=120 * MIB, per_process_memory_fraction=0.5)
    it.allocate(60 * MIB)
    assert refused(model, it, 1).reserved_bytes == 60 * MIB
    it = allocator(model, None, total=120 * MIB, per_process_memory_fraction=0.5)
    assert refused(model, it, 62 * MIB).free_bytes is None
    assert allocator(model, 100 * MIB, total=60 * MIB).allocate(90 * MIB).size_bytes == 90 * MIB


@scenario
def old_free_segments_are_collected_beyond_the_threshold(model: Any) -> None:
    """`garbage_collect_cached_blocks`: those at least as old as the mean, until enough is reclaimed."""
    limits = {"per_process_memory_fraction": 0.5, "garbage_collection_threshold": 0.6}
    it = allocator(model, 200 * MIB, **limits)
    it.free(it.allocate(30 * MIB))
    it.free(it.allocate(40 * MIB))
    # 70 held of 100 allowed, 60 wanted; ages 2 and 1, mean 1.5.
    it.allocate(50 * MIB)
    assert layout(it) == [[-40], [50]]
    assert it.stats().num_alloc_retries == 0
    # Nothing is old enough or free beyond the threshold: 90 held, one block of 40, its own mean.
    it.allocate(42 * MIB)
    assert layout(it) == [[50], [42]]


@scenario
def nothing_is_collected_up_to_the_threshold(model: Any) -> None:
    """`garbage_collect_cached_blocks`: `total_allocated_memory <= gc_threshold`; without a fraction it does nothing."""
    it = allocator(model, 200 * MIB, per_process_memory_fraction=0.5, garbage_collection_threshold=0.7)
    it.free(it.allocate(30 * MIB))
    it.free(it.allocate(40 * MIB))
    it.allocate(50 * MIB)
    assert layout(it) == [[50]]
    assert it.stats().num_alloc_retries == 1
    it = allocator(model, 200 * MIB, garbage_collection_threshold=0.1)
    it.free(it.allocate(30 * MIB))
    it.allocate(50 * MIB)
    assert layout(it) == [[-30], [50]]
    it = allocator(model, 200 * MIB, per_process_memory_fraction=0.5)
    it.free(it.allocate(30 * MIB))
    it.allocate(50 * MIB)
    assert layout(it) == [[-30], [50]]


@scenario
def collection_goes_on_until_enough_is_reclaimed(model: Any) -> None:
    """`garbage_collect_cached_blocks`: a second round with the mean age of what is left; split segments stay."""
    it = allocator(model, 200 * MIB, per_process_memory_fraction=0.5, garbage_collection_threshold=0.2)
    it.allocate(5 * MIB)
    it.free(it.allocate(18 * MIB))
    it.free(it.allocate(22 * MIB))
    # 60 held, 20 wanted: 18 is older, then 22.
    it.allocate(30 * MIB)
    assert layout(it) == [[5, -15], [30]]
    assert it.stats().reserved_bytes == 50 * MIB
    it = allocator(model, 200 * MIB, per_process_memory_fraction=0.5, garbage_collection_threshold=0.4)
    it.allocate(5 * MIB)
    it.free(it.allocate(18 * MIB))
    it.free(it.allocate(20 * MIB))
    # 58 held, 40 wanted: giving back 18 is exactly enough.
    it.allocate(30 * MIB)
    assert layout(it) == [[5, -15], [-20], [30]]
    # 70 MiB held, a byte less wanted.
    total = 280 * MIB - 4
    it = allocator(model, total, per_process_memory_fraction=0.5, garbage_collection_threshold=0.5)
    it.free(it.allocate(30 * MIB))
    it.free(it.allocate(40 * MIB))
    it.allocate(50 * MIB)
    assert layout(it) == [[-40], [50]]


@scenario
def the_age_of_a_block_counts_from_when_it_became_free(model: Any) -> None:
    """`insert_into_blocks`: `gc_count_base` is set at every insertion; searches count in their own pool only."""
    it = allocator(model, 200 * MIB, per_process_memory_fraction=0.5, garbage_collection_threshold=0.5)
    it.free(it.allocate(1))
    it.free(it.allocate(30 * MIB))
    a = it.allocate(30 * MIB)
    b = it.allocate(40 * MIB)
    it.free(b)
    it.free(a)
    # Searches in the large pool: 3 when 30 and 40 became free, now 4. Both are of age 1, the mean: both go.
    it.allocate(50 * MIB)
    assert layout(it) == [[-2], [50]]


@scenario
def expandable_segments_grow_by_pages(model: Any) -> None:
    """`try_allocate_expandable_block`, `map_block`: pages of 20 MiB, 2 MiB in the small pool; the free end is used."""
    it = allocator(model, expandable_segments=True)
    it.allocate(5 * MIB)
    assert layout(it) == [[5, -15]]
    it.allocate(16 * MIB)
    assert layout(it) == [[5, 16, -19]]
    it.allocate(19 * MIB)
    assert layout(it) == [[5, 16, 19]]
    it.allocate(41 * MIB)
    assert layout(it) == [[5, 16, 19, 41, -19]]
    it.allocate(1 * MIB)
    assert layout(it)[1:] == [[1, -1]]
    it.free(it.allocate(512))
    it.allocate(1 * MIB)
    it.allocate(512)
    assert layout(it)[1:] == [[1, 1, 512, -(2 * MIB - 512)]]
    assert it.stats().reserved_bytes == 104 * MIB
    assert it.stats().inactive_split_bytes == it.stats().peak_inactive_split_bytes == 0
    it = allocator(model, expandable_segments=True, large_segment_bytes=32 * MIB)
    it.allocate(5 * MIB)
    assert layout(it) == [[5, -27]]


@scenario
def expandable_blocks_are_split_down_to_512_bytes(model: Any) -> None:
    """`should_split`: with expandable segments in the large pool too."""
    it = allocator(model, expandable_segments=True)
    it.allocate(20 * MIB - 512)
    assert layout(it) == [[20 * MIB - 512, -512]]
    it.allocate(20 * MIB - 1024)
    assert layout(it) == [[20 * MIB - 512, 20 * MIB - 1024, -1536]]


@scenario
def holes_are_filled_before_the_growing_end(model: Any) -> None:
    """`get_free_block`: `expandable_size` of the end is all it could grow to."""
    it = allocator(model, expandable_segments=True)
    hole = it.allocate(18 * MIB)
    it.allocate(5 * MIB)
    assert layout(it) == [[18, 5, -17]]
    it.free(hole)
    it.allocate(16 * MIB)
    assert layout(it) == [[16, -2, 5, -17]]
    it = allocator(model, expandable_segments=True)
    holes = [it.allocate(size) for size in mib(14, 9, 15)]
    it.allocate(1 * MIB + 512)
    it.free(holes[0])
    it.free(holes[2])
    assert layout(it) == [[-14, 9, -15, MIB + 512, -(MIB - 512)]]
    it.allocate(13 * MIB)
    assert layout(it) == [[13, -1, 9, -15, MIB + 512, -(MIB - 512)]]
    # The end of 10 is the smallest that is large enough, then a hole of 12 and one of 18.
    it = allocator(model, expandable_segments=True)
    held = [it.allocate(size) for size in mib(12, 2, 18, 2, 2, 14)]
    it.free(held[0])
    it.free(held[2])
    assert layout(it) == [[-12, 2, -18, 2, 2, 14, -10]]
    it.allocate(9 * MIB)
    assert layout(it) == [[9, -3, 2, -18, 2, 2, 14, -10]]


@scenario
def of_equal_holes_the_lowest_is_filled(model: Any) -> None:
    """`get_free_block`: `expandable_size(*next) < expandable_size(*it)`, not `<=`."""
    it = allocator(model, expandable_segments=True)
    held = [it.allocate(size) for size in mib(8, 2, 8, 2)]
    it.free(held[0])
    it.free(held[2])
    it.allocate(8 * MIB)
    assert layout(it) == [[8, 2, -8, 2]]


@scenario
def a_block_before_a_gap_is_preferred_to_the_end(model: Any) -> None:
    """`get_free_block`: the search stops at the first block that could not grow to less than the one before it."""
    it = allocator(model, expandable_segments=True)
    held = [it.allocate(size) for size in mib(10, 30, 8, 12, 9)]
    it.free(held[1])
    it.free(held[3])
    it.empty_cache()
    # 10, free 10, a page without memory | 8, free 12, 9, free 11 at the end.
    assert layout(it) == [[10, -10], [8, -12, 9, -11]]
    it.allocate(9 * MIB)
    assert layout(it) == [[10, 9, -1], [8, -12, 9, -11]]


@scenario
def a_free_block_without_a_whole_page_is_left_alone(model: Any) -> None:
    """`unmap_block`: nothing to unmap, nothing changed."""
    it = allocator(model, expandable_segments=True)
    _, hole, after = (it.allocate(size) for size in mib(15, 10, 10))
    it.free(hole)
    it.empty_cache()
    assert layout(it) == [[15, -10, 10, -5]]
    it.free(after)
    assert layout(it) == [[15, -25]]
    it = allocator(model, expandable_segments=True)
    _, hole, after = (it.allocate(size) for size in mib(5, 10, 4))
    it.free(hole)
    it.empty_cache()
    assert layout(it) == [[5, -10, 4, -1]]
    it.free(after)
    assert layout(it) == [[5, -15]]


@scenario
def pages_that_are_wholly_free_are_given_back_under_pressure(model: Any) -> None:
    """`release_blocks`, `unmap_block`, `ExpandableSegment::unmap`: whole pages only; the ends stay free."""
    it = allocator(model, 61 * MIB, expandable_segments=True)
    a = it.allocate(30 * MIB)
    it.allocate(20 * MIB)
    assert layout(it) == [[30, 20, -10]]
    it.free(a)
    it.allocate(1)
    assert layout(it) == [[-10, 20, -10], [512, -(2 * MIB - 512)]]
    assert it.stats().num_alloc_retries == 1
    assert it.stats().reserved_bytes == 42 * MIB
    assert it.stats().peak_reserved_bytes == 60 * MIB
    # The hole of one page in front and the 10 MiB behind it make room for 29, where only 18 are left on the card.
    error = refused(model, it, 29 * MIB)
    assert (error.tried_bytes, error.free_bytes) == (30 * MIB, 19 * MIB)


@scenario
def both_ends_of_a_freed_stretch_are_kept(model: Any) -> None:
    """`unmap_block`: `before_free` and `after_free`."""
    it = allocator(model, expandable_segments=True)
    it.allocate(5 * MIB)
    hole = it.allocate(50 * MIB)
    it.allocate(25 * MIB)
    assert layout(it) == [[5, 50, 25]]
    it.free(hole)
    it.empty_cache()
    assert layout(it) == [[5, -15], [-15, 25]]
    assert it.stats().reserved_bytes == 60 * MIB
    # 15 free, 20 without memory, 15 free: found together as the lowest place with room for 38.
    it.allocate(38 * MIB)
    assert layout(it) == [[5, 38, -12, 25]]
    assert it.stats().reserved_bytes == 80 * MIB


@scenario
def a_hole_too_small_is_passed_over(model: Any) -> None:
    """`find_expandable_block`: `has_available_address_space` ends at a block in use."""
    it = allocator(model, 80 * MIB, expandable_segments=True)
    a = it.allocate(30 * MIB)
    it.allocate(20 * MIB)
    it.free(a)
    it.allocate(40 * MIB)
    assert layout(it) == [[-10, 20, 40, -10]]
    assert it.stats().num_alloc_retries == 1
    assert it.stats().reserved_bytes == 80 * MIB
    assert refused(model, it, 25 * MIB).retries == 2
    it = allocator(model, 120 * MIB, expandable_segments=True)
    a = it.allocate(30 * MIB)
    it.allocate(20 * MIB)
    it.free(a)
    it.empty_cache()
    it.allocate(60 * MIB)
    assert layout(it) == [[-10, 20, 60, -10]]
    assert it.stats().reserved_bytes == 100 * MIB
    assert refused(model, it, 31 * MIB).reserved_bytes == 100 * MIB
    it.allocate(30 * MIB)
    assert layout(it) == [[30, 20, 60, -10]]
    assert it.stats().reserved_bytes == 120 * MIB


@scenario
def a_wholly_free_expandable_segment_is_dropped(model: Any) -> None:
    """`release_expandable_segment`."""
    it = allocator(model, 100 * MIB, expandable_segments=True)
    block = it.allocate(30 * MIB)
    first = block.address
    it.free(block)
    it.empty_cache()
    assert layout(it) == []
    assert it.stats().reserved_bytes == 0
    assert it.allocate(30 * MIB).address > first


@scenario
def an_expandable_segment_has_nine_eighths_of_the_card(model: Any) -> None:
    """`ExpandableSegment`'s constructor: beyond its addresses another segment begins."""
    for size, expected in ((440, [[20, 440]]), (441, [[20], [441, -19]])):
        it = allocator(model, 720 * MIB, expandable_segments=True)
        hole = it.allocate(360 * MIB)
        it.allocate(20 * MIB)
        it.free(hole)
        it.empty_cache()
        # 810 MiB of addresses are 41 pages: 360 in front of the block in use, 440 behind it.
        it.allocate(size * MIB)
        assert layout(it) == expected


@scenario
def peaks_begin_anew_when_reset(model: Any) -> None:
    """`resetPeakStats`: a peak is what is held now."""
    it = allocator(model)
    it.free(it.allocate(30 * MIB))
    it.allocate(5 * MIB)
    assert it.stats().peak_allocated_bytes == 30 * MIB
    it.empty_cache()
    it.reset_peaks()
    stats = it.stats()
    assert (stats.peak_allocated_bytes, stats.allocated_bytes) == (5 * MIB, 5 * MIB)
    assert stats.peak_inactive_split_bytes == stats.inactive_split_bytes
    assert stats.peak_reserved_bytes == stats.reserved_bytes


@scenario
def a_block_is_freed_once(model: Any) -> None:
    """`NativeCachingAllocator::free` knows only blocks in use."""
    it = allocator(model)
    block = it.allocate(1)
    it.free(block)
    try:
        it.free(block)
    except KeyError:
        return
    raise AssertionError("freed twice")


@scenario
def sizes_are_reported_in_the_unit_they_exceed(model: Any) -> None:
    """`format_size`: two digits; `<=` 1024 of a unit stays in it."""
    sizes = (0, 1024, 1025, 1536, MIB, MIB + 6 * KIB, GIB, GIB + 6 * MIB, 79 * GIB + 112 * MIB)
    found = [model.size_text(size) for size in sizes]
    assert found == [
        "0 bytes",
        "1024 bytes",
        "1.00 KiB",
        "1.50 KiB",
        "1024.00 KiB",
        "1.01 MiB",
        "1024.00 MiB",
        "1.01 GiB",
        "79.11 GiB",
    ]


@scenario
def a_refusal_prints_pytorchs_sentence(model: Any) -> None:
    """`DeviceCachingAllocator::malloc`, worded as in the logs of torch 2.10 and later."""
    refusal = model.Refusal(
        phase=Phase.BACKWARD,
        requested_bytes=1,
        tried_bytes=2 * GIB,
        free_bytes=1 * GIB + GIB // 2,
        allocated_bytes=70 * GIB,
        reserved_bytes=76 * GIB,
    )
    gpu = Gpu(
        name="", title="", memory_bytes=80 * GIB, chip=Chip(compute_capability=(9, 0), multiprocessors=132), source=""
    )
    assert refusal.message(gpu) == (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.50 GiB is "
        "free. Including non-PyTorch memory, this process has 78.50 GiB memory in use. Of the allocated memory "
        "70.00 GiB is allocated by PyTorch, and 6.00 GiB is reserved by PyTorch but unallocated. If reserved but "
        "unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
    )


@scenario
def a_sequence_that_leaves_all_as_it_was_only_raises_peaks(model: Any) -> None:
    """`Stat`, c10/core/Allocator.h: a peak is the highest level, whatever follows."""
    it = allocator(model)
    it.allocate(5 * MIB)
    it.reset_peaks()
    # By hand: 5 MiB of a segment of 20 are in use and 15 are inactive.
    assert it.pass_over(3 * MIB, 2 * MIB, 1 * MIB) == 8 * MIB
    assert it.pass_over(2 * MIB, 1 * MIB, 0) == 7 * MIB
    stats = it.stats()
    assert mib(8, 17, 21) == [
        stats.peak_allocated_bytes,
        stats.peak_inactive_split_bytes,
        stats.peak_unreleasable_bytes,
    ]
    assert mib(5, 15) == [stats.allocated_bytes, stats.inactive_split_bytes]


@scenario
def only_some_settings_take_another_block_than_the_smallest(model: Any) -> None:
    """`get_free_block`, and the ages that `garbage_collect_cached_blocks` compares."""
    assert allocator(model).takes_the_smallest
    assert allocator(model, 64 * MIB, per_process_memory_fraction=0.5).takes_the_smallest
    assert not allocator(model, expandable_segments=True).takes_the_smallest
    assert not allocator(model, max_split_bytes=32 * MIB).takes_the_smallest
    collecting = {"per_process_memory_fraction": 0.5, "garbage_collection_threshold": 0.5}
    assert not allocator(model, 64 * MIB, **collecting).takes_the_smallest
