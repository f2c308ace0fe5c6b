"""A recorded program with other settings and on other cards."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_histories import ALLOC, EMPTY, FREE, OwnHistory, recorded, steps

from profiler.allocator import AllocatorConfig, CachingAllocator, OutOfMemoryError, parse_alloc_conf
from profiler.allocator.histories.course import BEFORE, CountedCard
from profiler.allocator.histories.history import read_history
from profiler.allocator.histories.recorded import replay_history
from profiler.allocator.histories.what_if import CapacitySource, Question, WhatIf, answer, what_if
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import UsageError

MIB = 1024 * 1024
EXPANDABLE = "expandable_segments:True"
T4 = KNOWN_GPUS["t4-16gb"]


def tried(history: OwnHistory, alloc_conf: str = "", *, capacity: int | None = None, cut: int = 0) -> WhatIf:
    read = read_history(history.snapshot(cut))
    return what_if(read, replay_history(read), config=parse_alloc_conf(alloc_conf), capacity_bytes=capacity)


@settings(max_examples=150)
@given(steps(), st.sampled_from([("", None), ("", 90 * MIB), ("max_split_size_mb:24", 90 * MIB), (EXPANDABLE, None)]))
def test_under_its_own_conditions_a_program_does_what_it_did(steps, case):
    alloc_conf, capacity = case
    history = recorded([step for step in steps if step[0] != EMPTY], alloc_conf=alloc_conf, capacity_bytes=capacity)
    found = tried(history, alloc_conf, capacity=capacity)
    course = replay_history(read_history(history.snapshot())).course
    assert found.course == course
    assert found.refused is None
    assert found.served == ()


@settings(max_examples=150)
@given(steps(), st.sampled_from(["", EXPANDABLE, "max_split_size_mb:24"]), st.integers(1, 150), st.data())
def test_parts_sum_to_the_peak_under_any_conditions(steps, alloc_conf, capacity_mib, data):
    history = recorded(steps)
    cut = data.draw(st.integers(0, len(history.allocator.entries)))
    found = tried(history, alloc_conf, capacity=capacity_mib * MIB, cut=cut)
    course, peak = found.course, found.course.peak
    entries = len(history.allocator.entries) - cut
    assert len(course.reserved_bytes) == len(course.allocated_bytes) <= entries + 1
    assert found.refused is not None or len(course.reserved_bytes) == entries + 1
    assert (
        max(course.reserved_bytes) == peak.reserved_bytes == course.reserved_bytes[peak.entry + 1] <= capacity_mib * MIB
    )
    assert course.allocated_bytes[peak.entry + 1] == peak.allocated_bytes <= course.peak_allocated_bytes
    assert peak.free_bytes >= peak.largest_free_bytes >= 0
    assert all(low <= high for low, high in zip(course.allocated_bytes, course.reserved_bytes, strict=True))
    if found.refused is not None:
        refused = found.refused
        assert refused.entry == len(course.reserved_bytes) - 1 or refused.entry == BEFORE
        assert refused.driver_free_bytes == capacity_mib * MIB - refused.reserved_bytes


@given(steps(), st.sampled_from(["", EXPANDABLE]), st.integers(20, 150))
def test_segments_are_counted_as_a_snapshot_lists_them(steps, alloc_conf, capacity_mib):
    card = CountedCard(capacity_bytes=capacity_mib * MIB)
    allocator = CachingAllocator(capacity_bytes=capacity_mib * MIB, config=parse_alloc_conf(alloc_conf), card=card)
    live = []
    for what, number, stream in steps:
        if what == ALLOC:
            with suppress(OutOfMemoryError):
                live.append(allocator.allocate(number, stream))
        elif what == EMPTY:
            allocator.empty_cache()
        elif live:
            allocator.free(live.pop(number % len(live)))
        assert card.count.segments == len(allocator.segments())


def test_expandable_segments_serve_what_segments_left_behind_do_not():
    # Of each of three segments of 30 only 20 are used again: 60 of 90, and 10 free in each.
    history = recorded([], capacity_bytes=100 * MIB)
    for _ in range(3):
        history.do((ALLOC, 30 * MIB, 0))
        history.do((FREE, len(history.live) - 1, 0))
        history.do((ALLOC, 20 * MIB, 0))
    history.do((ALLOC, 40 * MIB, 0))
    assert [entry["action"] for entry in history.allocator.entries][-1] == "oom"
    read = read_history(history.snapshot())
    comparison = replay_history(read)
    (refusal,) = comparison.course.refusals
    found = answer(read, Question())
    assert found.after is not None
    assert found.after.config.expandable_segments
    assert found.after.capacity.source is CapacitySource.OOM
    assert found.after.capacity.size_bytes == refusal.reserved_bytes + refusal.driver_free_bytes == 100 * MIB
    assert found.after.result.fits
    assert found.after.result.served == (refusal.entry,)
    assert found.anew is None


def test_a_smaller_card_refuses_and_the_program_ends():
    history = recorded([(ALLOC, 30 * MIB, 0), (ALLOC, 6 * MIB, 0), (FREE, 0, 0), (ALLOC, 24 * MIB, 3), (ALLOC, 1, 0)])
    found = tried(history, capacity=60 * MIB)
    assert found.refused is None
    assert found.course.num_alloc_retries == 1
    found = tried(history, capacity=42 * MIB)
    assert found.refused is not None
    assert (found.refused.entry, found.refused.requested_bytes) == (3, 6 * MIB)
    assert (found.refused.reserved_bytes, found.refused.allocated_bytes) == (30 * MIB, 30 * MIB)
    assert found.refused.driver_free_bytes == 12 * MIB
    assert list(found.course.reserved_bytes) == [0, 0, 30 * MIB, 30 * MIB]
    assert not found.fits


def test_the_cache_is_emptied_where_the_program_emptied_it():
    history = recorded(
        [(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (EMPTY, 0, 0), (ALLOC, 30 * MIB, 0), (FREE, 0, 0), (EMPTY, 0, 0)]
    )
    found = tried(history, EXPANDABLE)
    assert found.course.peak.reserved_bytes == 40 * MIB
    assert found.course.reserved_bytes[-1] == 0
    # 12 would have been taken out of the free 30.
    later = recorded([(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (EMPTY, 0, 0), (ALLOC, 12 * MIB, 0), (ALLOC, 30 * MIB, 0)])
    assert tried(later).course.peak.reserved_bytes == 42 * MIB


def test_streams_are_kept_apart():
    history = recorded([(ALLOC, 30 * MIB, 1), (FREE, 0, 0), (ALLOC, 30 * MIB, 2)])
    assert tried(history).course.peak.reserved_bytes == 60 * MIB


def test_a_history_that_begins_in_the_middle_begins_with_its_blocks_in_use():
    history = recorded([(ALLOC, 5 * MIB, 0), (ALLOC, 12 * MIB, 0), (FREE, 1, 0), (ALLOC, 30 * MIB, 0), (FREE, 1, 0)])
    cut = len(history.allocator.entries)
    history.do((ALLOC, 20 * MIB, 0))
    recording = replay_history(read_history(history.snapshot(cut))).course
    assert list(recording.reserved_bytes) == [50 * MIB] * 2
    found = tried(history, cut=cut)
    assert list(found.course.reserved_bytes) == [20 * MIB, 40 * MIB]
    assert list(found.course.allocated_bytes) == [5 * MIB, 25 * MIB]
    refused = tried(history, cut=cut, capacity=10 * MIB).refused
    assert refused is not None
    assert (refused.entry, refused.requested_bytes) == (BEFORE, 5 * MIB)


def test_a_request_that_was_refused_and_is_refused_again_does_not_end_the_program():
    history = recorded([(ALLOC, 30 * MIB, 0), (ALLOC, 90 * MIB, 0), (ALLOC, 12 * MIB, 0)], capacity_bytes=50 * MIB)
    found = tried(history, capacity=50 * MIB)
    assert found.refused is None
    assert not found.fits
    assert [refusal.requested_bytes for refusal in found.course.refusals] == [90 * MIB]
    assert found.course.allocated_bytes[-1] == 42 * MIB
    served = tried(history, capacity=200 * MIB)
    assert served.fits
    assert served.course.allocated_bytes[-1] == 42 * MIB
    assert served.course.peak.reserved_bytes == 120 * MIB


# ---- questions -------------------------------------------------------------------------------------------------------


def asked(history: OwnHistory, cut: int = 0, **question):
    return answer(read_history(history.snapshot(cut)), Question(**question))


def test_a_card_has_its_memory_without_the_context():
    found = asked(recorded([(ALLOC, 1, 0)]), gpu=T4)
    assert found.after is not None
    assert found.after.capacity.source is CapacitySource.GPU
    assert found.after.capacity.size_bytes == T4.memory_bytes - cuda_context_bytes(T4.compute_capability)
    assert found.after.config == AllocatorConfig()


def test_a_share_is_of_all_memory_of_the_card():
    # Half of 14.75 GiB: 7.375 GiB are allowed, so 7 GiB and then 1.
    history = recorded([(ALLOC, 7 * 1024 * MIB, 0), (ALLOC, 1024 * MIB, 0)])
    found = asked(history, gpu=T4, alloc_conf="per_process_memory_fraction:0.5")
    assert found.after is not None
    assert found.after.result.refused is not None
    assert found.after.result.refused.entry == 3
    assert asked(history, gpu=T4, alloc_conf="per_process_memory_fraction:0.6").after.result.fits


def test_settings_replace_the_recorded_ones_or_are_kept():
    history = recorded([(ALLOC, 1, 0)], alloc_conf="max_split_size_mb:24")
    assert asked(history, gpu=T4).after.config.max_split_bytes == 24 * MIB
    assert asked(history, alloc_conf=EXPANDABLE).after.config == AllocatorConfig(expandable_segments=True)
    suggested = asked(history).after.config
    assert (suggested.max_split_bytes, suggested.expandable_segments) == (24 * MIB, True)
    assert asked(recorded([(ALLOC, 1, 0)], alloc_conf=EXPANDABLE)).after is None
    with pytest.raises(UsageError):
        asked(history, alloc_conf="max_split_size_mb:1")


def test_a_card_that_was_full_is_known_to_a_range():
    history = recorded([(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (ALLOC, 40 * MIB, 0)], capacity_bytes=50 * MIB)
    capacity = asked(history).after.capacity
    assert capacity.source is CapacitySource.FULL
    assert (capacity.size_bytes, capacity.most_bytes) == (40 * MIB, 70 * MIB - 1)
    # Later 40 + 42 and 42 + 50 are refused, which says less.
    for step in ((FREE, 0, 0), (ALLOC, 41 * MIB, 0), (FREE, 0, 0), (ALLOC, 50 * MIB, 0)):
        history.do(step)
    capacity = asked(history).after.capacity
    assert (capacity.size_bytes, capacity.most_bytes) == (50 * MIB, 70 * MIB - 1)


def test_whether_it_fits_can_be_open():
    # 40 at most were held; with pages of 60 it needs 60, and 70 were refused.
    steps = [(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (ALLOC, 40 * MIB, 0)]
    history = recorded(steps, capacity_bytes=65 * MIB)
    after = asked(history, alloc_conf=f"{EXPANDABLE},large_segment_size_mb:60").after
    assert (after.result.fits, after.might_fit) == (False, True)
    after = asked(history, alloc_conf=f"{EXPANDABLE},large_segment_size_mb:90").after
    assert (after.result.fits, after.might_fit) == (False, False)


def test_without_a_sign_of_a_full_card_there_is_no_limit():
    capacity = asked(recorded([(ALLOC, 1, 0)])).after.capacity
    assert (capacity.source, capacity.size_bytes) == (CapacitySource.UNKNOWN, None)


def test_the_same_settings_are_tried_where_the_beginning_differs():
    history = recorded([(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (ALLOC, 1, 0), (ALLOC, 20 * MIB, 0)])
    assert asked(history).anew is None
    found = asked(history, cut=4)
    assert found.anew is not None
    assert found.anew.config == AllocatorConfig()
    assert found.comparison.course.peak.reserved_bytes == 32 * MIB
    assert found.anew.result.course.peak.reserved_bytes == 22 * MIB


def test_entries_that_contradict_each_other_are_not_tried():
    history = recorded([(ALLOC, 30 * MIB, 0)])
    snapshot = history.snapshot()
    snapshot["segments"] = []
    found = answer(read_history(snapshot), Question(gpu=T4))
    assert not found.comparison.is_consistent
    assert found.after is found.anew is None
