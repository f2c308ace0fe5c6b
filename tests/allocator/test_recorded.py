"""Histories that the model recorded of itself come out equal wherever they are cut; with one thing changed they do not.

Those of real cards are in `test_real_histories.py`.
"""

from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from own_histories import ALLOC, COMPLETE_FREE, EMPTY, FREE, REQUEST_FREE, recorded, steps
from test_card_replay import traces

from maintenance.campaign.recorded_history import essentials
from profiler.allocator import TraceBuilder, memory_snapshot, replay_on_card, replay_recorded
from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.domain.errors import UsageError
from profiler.domain.memory import Category, Phase

MIB = 1024 * 1024
TIB = 1024 * 1024 * MIB
EXPANDABLE = "expandable_segments:True"
CASES = st.sampled_from(
    [
        ("", None),
        ("", 60 * MIB),
        ("", 120 * MIB),
        ("max_split_size_mb:20", 90 * MIB),
        ("max_split_size_mb:24", None),
        ("max_split_size_mb:24", 90 * MIB),
        ("roundup_power2_divisions:4", None),
        (EXPANDABLE, None),
        # A limit of 105 MiB on a card whose addresses, 9/8 of its memory, never run out.
        (f"{EXPANDABLE},per_process_memory_fraction:0.0001", 1 * TIB),
    ]
)
"""(settings, capacity)."""


@given(traces(), CASES)
def test_our_own_histories_come_out_equal(trace, case):
    alloc_conf, capacity = case
    snapshot = memory_snapshot(trace, capacity_bytes=capacity, alloc_conf=alloc_conf)
    comparison = replay_recorded(snapshot)
    assert comparison.departure == ""
    assert comparison.is_equal
    assert comparison.first.segments == ()
    on_card = replay_on_card(trace, capacity_bytes=capacity, config=parse_alloc_conf(alloc_conf))
    assert comparison.peak_reserved_bytes == on_card.peak_reserved_bytes


@settings(max_examples=300)
@given(steps(), CASES, st.data())
def test_a_history_cut_anywhere_comes_out_equal(steps, case, data):
    alloc_conf, capacity = case
    history = recorded(steps, alloc_conf=alloc_conf, capacity_bytes=capacity)
    cut = data.draw(st.integers(0, len(history.allocator.entries)))
    comparison = replay_recorded(history.snapshot(cut))
    assert comparison.departure == ""
    assert comparison.is_equal
    if comparison.unverified_entries == 0:
        uncut = replay_recorded(history.snapshot()).course.reserved_bytes
        found = comparison.course.reserved_bytes
        for number, entry in enumerate(list(history.allocator.entries)[cut:], start=1):
            # An entry of the driver counts from the request on that it belongs to.
            assert found[number] == uncut[cut + number] or entry["action"].startswith("segment")
    peak = comparison.course.peak
    state = history.states.get(cut + peak.entry + 1)
    if state is not None:
        assert peak.segments == len(state)
        free = [size for _, _, blocks in state for size, in_use in blocks if not in_use]
        assert peak.largest_free_bytes == max(free, default=0)
        assert peak.free_bytes == sum(free)


@settings(max_examples=200)
@given(steps(), CASES, st.data())
def test_the_first_state_is_the_one_that_was(steps, case, data):
    """Segments, streams and blocks; sizes that a history leaves open aside."""
    alloc_conf, capacity = case
    history = recorded(steps, alloc_conf=alloc_conf, capacity_bytes=capacity)
    cut = data.draw(st.sampled_from(sorted(history.states)))
    first = replay_recorded(history.snapshot(cut)).first
    found = [
        (piece[0].address, segment.stream, [(block.size_bytes, block.state == "in use") for block in piece])
        for segment in first.segments
        for piece in mapped_pieces(segment)
    ]
    if not first.uncertain:
        assert found == history.states[cut]
    assert [(address, stream) for address, stream, _ in found] == [state[:2] for state in history.states[cut]]


def mapped_pieces(segment):
    """The stretches with memory, as a snapshot lists them."""
    pieces = [[]]
    for block in segment.blocks:
        if block.state == "unmapped":
            pieces.append([])
        else:
            pieces[-1].append(block)
    return [piece for piece in pieces if piece]


@settings(max_examples=200)
@given(steps(), st.sampled_from(["", "max_split_size_mb:24", EXPANDABLE]))
def test_every_call_of_empty_cache_is_recognised_unless_new_memory_follows(steps, alloc_conf):
    """Without a limit nothing else gives memory back; a call that is not recognised counts as flush, so as retry."""
    history = recorded(steps, alloc_conf=alloc_conf)
    snapshot = history.snapshot()
    trace = snapshot["device_traces"][0]
    comparison = replay_recorded(snapshot)
    assert comparison.is_equal
    events = {next_event(trace, number): number for number in history.emptied}
    assert comparison.emptied <= set(events)
    missed = set(events) - comparison.emptied
    assert all(trace[events[event]]["action"] in ("segment_alloc", "segment_map") for event in missed)
    assert comparison.course.num_alloc_retries == len(missed)


def next_event(trace, number):
    """The first entry from `number` on that is not one of the driver."""
    while number < len(trace) and trace[number]["action"].startswith("segment"):
        number += 1
    return number


def history() -> dict:
    """On a card of 40 MiB: 5 and 6 share a segment of 20, 12 is flushed for 18."""
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    builder.allocate(5 * MIB, Category.WEIGHTS)
    builder.allocate(6 * MIB, Category.WEIGHTS)
    builder.free(builder.allocate(12 * MIB, Category.ACTIVATIONS))
    builder.allocate(18 * MIB, Category.ACTIVATIONS)
    return memory_snapshot(builder.finished(), capacity_bytes=40 * MIB)


def test_a_new_expandable_segment_on_a_full_card_is_where_it_was_recorded():
    builder = TraceBuilder()
    builder.enter(Phase.LOAD)
    builder.free(builder.allocate(5 * MIB, Category.ACTIVATIONS))
    # Of the other pool, so of another segment; its first page has room only when the first segment's are given back.
    builder.allocate(1, Category.OTHER)
    snapshot = memory_snapshot(builder.finished(), capacity_bytes=20 * MIB, alloc_conf="expandable_segments:True")
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert actions[-4:-1] == ["segment_unmap", "segment_map", "alloc"]
    assert replay_recorded(snapshot).is_equal


def test_the_history_is_what_it_says():
    snapshot = history()
    assert [entry["action"] for entry in snapshot["device_traces"][0]] == [
        "segment_alloc",
        "alloc",
        "alloc",
        "segment_alloc",
        "alloc",
        "free_requested",
        "free_completed",
        "segment_free",
        "segment_alloc",
        "alloc",
        "snapshot",
    ]
    comparison = replay_recorded(snapshot)
    assert comparison.is_equal
    assert comparison.recorded_peak_reserved_bytes == comparison.peak_reserved_bytes == 38 * MIB


def changed(change, original=history) -> dict:
    snapshot = deepcopy(original())
    change(snapshot["device_traces"][0], snapshot["segments"])
    return snapshot


def departure(change, original=history) -> str:
    comparison = replay_recorded(changed(change, original))
    assert not comparison.is_equal
    return comparison.departure


def test_another_segment_size_is_a_departure():
    def change(trace, segments):
        trace[0]["size"] += 2 * MIB
        segments[0]["blocks"][-1]["size"] += 2 * MIB

    assert "asked for segment_alloc of 20971520" in departure(change)


def test_another_place_in_the_segment_is_a_departure():
    def change(trace, segments):
        trace[2]["addr"] += 512
        segments[0]["blocks"][0]["size"] += 512
        segments[0]["blocks"][1]["address"] += 512
        segments[0]["blocks"][2]["address"] += 512
        segments[0]["blocks"][2]["size"] -= 512

    assert departure(change).startswith("entry 2, alloc of 6291456")
    assert "the model's block is at" in departure(change)


def test_a_request_that_would_not_have_fitted_is_a_departure():
    assert "the model ran out of memory" in departure(lambda trace, _: trace[2].update(size=16 * MIB))


def test_a_segment_that_was_not_needed_is_a_departure():
    def change(trace, segments):
        trace.insert(2, trace[0] | {"addr": 1 << 50})
        block = {"address": 1 << 50, "size": 20 * MIB, "requested_size": 0, "state": "inactive"}
        segments.append(segments[0] | {"address": 1 << 50, "blocks": [block]})

    assert "the model did not need it" in departure(change)


def test_pages_at_another_place_are_a_departure():
    def original():
        return recorded([(ALLOC, 5 * MIB, 0), (ALLOC, 30 * MIB, 0)], alloc_conf=EXPANDABLE).snapshot()

    def change(trace, segments):
        # The second page lies apart from the first, and the block in it.
        trace[2]["addr"] = trace[3]["addr"] = 1 << 50
        blocks = segments[0]["blocks"]
        segments[0]["blocks"] = [blocks[0], {"size": 15 * MIB, "requested_size": 0, "state": "inactive"}]
        apart = [{"size": 20 * MIB, "requested_size": 20 * MIB, "state": "active_allocated"}]
        segments.append(segments[0] | {"address": 1 << 50, "blocks": apart})

    assert "pages mapped at 0x4000000000000, the model's at" in departure(change, original)


def test_other_blocks_at_the_end_are_not_equal():
    def change(_, segments):
        segments[0]["blocks"][1]["size"] += 512
        segments[0]["blocks"][2]["address"] += 512
        segments[0]["blocks"][2]["size"] -= 512

    comparison = replay_recorded(changed(change))
    assert comparison.departure == ""
    assert comparison.segments != comparison.recorded_segments
    assert not comparison.is_equal


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda trace, _: trace.pop(7), "entry 3, segment_alloc of 12582912"),
        (lambda trace, _: trace.insert(10, trace[9] | {"addr": 77}), "no block is in use there afterwards"),
        (lambda trace, _: trace.insert(10, trace[6] | {"addr": trace[9]["addr"]}), "the block is in use afterwards"),
        (lambda trace, _: trace.pop(5), "no block"),
        (lambda trace, _: trace.insert(2, trace.pop(0)), "a block is in use there before"),
        (lambda _, segments: segments.pop(), "no block is in use there afterwards"),
        (lambda trace, _: trace.insert(0, trace[6] | {"addr": 77}), "blocks in use outside of any segment: 1"),
        (
            lambda trace, _: trace.__setitem__(
                slice(0, 0), [trace[7] | {"addr": 1 << 50}, trace[7] | {"addr": (1 << 50) + MIB}]
            ),
            "two segments lie at 0x4000000100000 at once",
        ),
    ],
)
def test_entries_that_do_not_lead_to_the_last_state_are_named(change, problem):
    if problem == "no block":
        # A free that was only requested: the block is still in use at the end.
        assert replay_recorded(changed(change)).is_equal
    else:
        assert problem in departure(change)


def test_memory_that_is_mapped_twice_is_named():
    def original():
        return recorded([(ALLOC, 5 * MIB, 0)], alloc_conf=EXPANDABLE).snapshot()

    assert "these pages are not mapped afterwards" in departure(
        lambda trace, _: trace.insert(0, trace[0] | {"addr": 1 << 50}), original
    )
    assert "a block is in use there before" in departure(lambda trace, _: trace.insert(1, trace.pop(0)), original)


# ---- empty_cache -----------------------------------------------------------------------------------------------------

EMPTIED = [(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (EMPTY, 0, 0), (ALLOC, 30 * MIB, 0)]


def test_segments_lost_before_a_request_that_a_cached_block_would_have_served_are_an_emptied_cache():
    history = recorded(EMPTIED)
    actions = [entry["action"] for entry in history.allocator.entries]
    assert actions[-3:] == ["segment_free", "segment_alloc", "alloc"]
    comparison = replay_recorded(history.snapshot())
    assert comparison.is_equal
    assert comparison.emptied == {len(actions) - 1}
    assert comparison.course.num_alloc_retries == 0


def test_a_flush_of_a_full_card_is_not():
    history = recorded([(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (ALLOC, 40 * MIB, 0)], capacity_bytes=50 * MIB)
    comparison = replay_recorded(history.snapshot())
    assert comparison.is_equal
    assert comparison.emptied == frozenset()
    assert comparison.course.num_alloc_retries == 1


def test_a_loss_before_new_memory_is_an_emptied_cache_where_more_was_held_at_another_time():
    # 30 go, 40 come, and 70 are held later: at 30 + 40 the card cannot have been full.
    steps = [(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (EMPTY, 0, 0), (ALLOC, 40 * MIB, 0), (ALLOC, 30 * MIB, 0)]
    comparison = replay_recorded(recorded(steps).snapshot())
    assert comparison.is_equal
    assert comparison.emptied == {6}
    # Without it, 40 is the most that was ever held: the card may have been full.
    assert replay_recorded(recorded(steps[:-1]).snapshot()).course.num_alloc_retries == 1


def test_a_part_that_is_given_back_for_a_request_is_no_emptied_cache():
    # Unsplittable blocks are given back first: 40 make room for 34, and 60 stay.
    steps = [(ALLOC, 60 * MIB, 0), (ALLOC, 40 * MIB, 0), (FREE, 0, 0), (FREE, 0, 0), (ALLOC, 30 * MIB, 0)]
    history = recorded(steps, alloc_conf="max_split_size_mb:32", capacity_bytes=120 * MIB)
    actions = [entry["action"] for entry in history.allocator.entries]
    assert actions[-3:] == ["segment_free", "segment_alloc", "alloc"]
    comparison = replay_recorded(history.snapshot())
    assert comparison.is_equal
    assert comparison.emptied == frozenset()
    assert [segment[1][0][0] for segment in comparison.segments] == [60 * MIB, 30 * MIB]


def test_a_flush_before_a_refusal_is_no_emptied_cache():
    steps = [(ALLOC, 30 * MIB, 0), (FREE, 0, 0), (ALLOC, 60 * MIB, 0)]
    history = recorded(steps, capacity_bytes=50 * MIB)
    assert [entry["action"] for entry in history.allocator.entries][-2:] == ["segment_free", "oom"]
    comparison = replay_recorded(history.snapshot())
    assert comparison.is_equal
    assert comparison.emptied == frozenset()
    assert comparison.course.num_alloc_retries == 1


def test_an_emptied_cache_at_the_end_is_followed():
    history = recorded([*EMPTIED, (FREE, 0, 0), (EMPTY, 0, 0)])
    comparison = replay_recorded(history.snapshot())
    assert comparison.is_equal
    assert len(history.allocator.entries) in comparison.emptied
    assert comparison.course.reserved_bytes[-1] == 0


def test_a_segment_that_is_kept_out_of_an_emptied_cache_is_a_departure():
    steps = [
        (ALLOC, 30 * MIB, 0),
        (ALLOC, 40 * MIB, 0),
        (FREE, 0, 0),
        (FREE, 0, 0),
        (EMPTY, 0, 0),
        (ALLOC, 30 * MIB, 0),
    ]

    def change(trace, segments):
        kept = next(entry for entry in trace if entry["action"] == "segment_free" and entry["size"] == 40 * MIB)
        trace.remove(kept)
        block = {"address": kept["addr"], "size": 40 * MIB, "requested_size": 0, "state": "inactive"}
        segments.append(segments[0] | {"address": kept["addr"], "blocks": [block]})

    assert "recorded, the model does segment_free" in departure(change, recorded(steps).snapshot)


# ---- the first state -------------------------------------------------------------------------------------------------


def test_a_history_that_begins_in_the_middle_begins_with_what_was_held():
    history = recorded([(ALLOC, 5 * MIB, 0), (ALLOC, 6 * MIB, 0), (FREE, 0, 0), (ALLOC, 4 * MIB, 0), (FREE, 0, 0)])
    comparison = replay_recorded(history.snapshot(cut=5))
    assert comparison.is_equal
    assert comparison.first.reserved_bytes == 20 * MIB
    (segment,) = comparison.first.segments
    assert [(block.size_bytes, block.state, block.requested_bytes) for block in segment.blocks] == [
        (5 * MIB, "free", 0),
        (6 * MIB, "in use", 6 * MIB),
        (9 * MIB, "free", 0),
    ]
    assert comparison.course.reserved_bytes[0] == 20 * MIB
    assert comparison.course.allocated_bytes[0] == 6 * MIB


def test_a_block_that_waits_for_its_stream_is_in_use():
    history = recorded([(ALLOC, 5 * MIB, 0), (REQUEST_FREE, 0, 0), (ALLOC, 5 * MIB, 0)])
    states = [block["state"] for block in history.allocator.segments()[0]["blocks"]]
    assert states == ["active_pending_free", "active_allocated", "inactive"]
    for cut in range(4):
        assert replay_recorded(history.snapshot(cut)).is_equal
    history.do((COMPLETE_FREE, 0, 0))
    # It begins between the request and the completion of the free.
    comparison = replay_recorded(history.snapshot(cut=3))
    assert comparison.is_equal
    assert comparison.course.allocated_bytes[0] == 5 * MIB


def test_streams_have_pools_of_their_own():
    history = recorded([(ALLOC, 5 * MIB, 1), (FREE, 0, 0), (ALLOC, 5 * MIB, 2), (ALLOC, 5 * MIB, 1)])
    snapshot = history.snapshot()
    assert [segment["stream"] for segment in snapshot["segments"]] == [1, 2]
    assert replay_recorded(snapshot).is_equal

    def change(trace, _):
        for entry in trace:
            entry["stream"] = 1

    assert departure(change, history.snapshot).startswith("entry 5, alloc")


# Of a segment of 20 MiB first 9.5 are taken and freed, then 9 of them, which keep the rest of 0.5; 10.5 behind them
# become free again. Nothing in the entries after that says whether the block in use is of 9 or of 9.5.
HALF = MIB // 2
KEPT_REST = [(ALLOC, 19 * HALF, 0), (ALLOC, 10 * MIB, 0), (FREE, 0, 0), (ALLOC, 9 * MIB, 0), (FREE, 0, 0)]


def kept_rest(*later) -> tuple[dict, int]:
    before = len(recorded(KEPT_REST).allocator.entries)
    history = recorded([*KEPT_REST, *later])
    return history.snapshot(before), before


def test_a_block_may_be_larger_than_its_request_shows():
    snapshot, _ = kept_rest((FREE, 0, 0))
    comparison = replay_recorded(snapshot)
    assert comparison.is_equal
    assert len(comparison.first.uncertain) == 1


def test_a_free_block_that_was_passed_over_was_too_small():
    # 11 would have fitted behind a block of 9: it is of more.
    snapshot, _ = kept_rest((ALLOC, 11 * MIB, 0), (FREE, 0, 0))
    comparison = replay_recorded(snapshot)
    assert comparison.is_equal
    assert comparison.first.segments[0].blocks[0].size_bytes == 9 * MIB + 512


def test_a_block_taken_from_behind_settles_the_size():
    snapshot, _ = kept_rest((ALLOC, 2 * MIB, 0), (FREE, 0, 0))
    comparison = replay_recorded(snapshot)
    assert comparison.is_equal
    assert comparison.first.uncertain == frozenset()
    assert comparison.first.segments[0].blocks[0].size_bytes == 19 * HALF


def test_the_block_behind_settles_the_size():
    before = len(recorded(KEPT_REST[:-1]).allocator.entries)
    history = recorded([*KEPT_REST[:-1], (FREE, 1, 0), (FREE, 0, 0)])
    comparison = replay_recorded(history.snapshot(before))
    assert comparison.is_equal
    assert comparison.first.uncertain == frozenset()
    assert [block.size_bytes for block in comparison.first.segments[0].blocks] == [19 * HALF, 21 * HALF]


def test_a_rest_of_1_mib_is_the_largest():
    # Of a free 10 only 9 are taken, with the rest of 1; in the 10 behind them there is no place for 512 bytes more.
    steps = [(ALLOC, 10 * MIB, 0), (ALLOC, 10 * MIB, 0), (FREE, 0, 0), (ALLOC, 9 * MIB, 0), (FREE, 0, 0)]
    steps = [(ALLOC, 20 * MIB, 0), (FREE, 0, 0), *steps]
    before = len(recorded(steps).allocator.entries)
    history = recorded([*steps, (ALLOC, 10 * MIB + 512, 0), (FREE, 0, 0)])
    comparison = replay_recorded(history.snapshot(before))
    assert comparison.is_equal
    assert comparison.first.segments[0].blocks[0].size_bytes == 10 * MIB


def test_a_block_larger_than_its_place_is_named():
    snapshot, _ = kept_rest((FREE, 0, 0))
    for entry in snapshot["device_traces"][0]:
        entry["size"] = 21 * MIB
    assert "a block of 22020096 bytes is in use where there are only 20971520" in replay_recorded(snapshot).departure


def test_a_size_beyond_the_largest_rest_is_no_explanation():
    snapshot, _ = kept_rest((ALLOC, 2 * MIB, 0), (FREE, 0, 0))
    # As if 2 MiB had not fitted into 10 and had got a segment of their own.
    trace = snapshot["device_traces"][0]
    trace[0]["addr"] = 1 << 50
    trace.insert(0, {"action": "segment_alloc", "addr": 1 << 50, "size": 20 * MIB, "stream": 0})
    segment = snapshot["segments"][0]
    blocks = [{"size": 2 * MIB, "requested_size": 2 * MIB, "state": "active_allocated"}]
    snapshot["segments"].append(
        segment | {"address": 1 << 50, "blocks": [*blocks, {"size": 18 * MIB, "state": "inactive"}]}
    )
    snapshot["segments"][0] = segment | {"blocks": [{"size": 20 * MIB, "state": "inactive"}]}
    assert "the model's block is at" in replay_recorded(snapshot).departure


def test_a_history_that_begins_inside_of_a_request_begins_after_it():
    # The segment of 24 was made for 23; a cached one of 24 would not be taken, because blocks of 24 are not split.
    history = recorded([(ALLOC, 47 * HALF, 0), (FREE, 0, 0), (ALLOC, 1, 0)], alloc_conf="max_split_size_mb:24")
    assert [entry["action"] for entry in history.allocator.entries][:2] == ["segment_alloc", "alloc"]
    comparison = replay_recorded(history.snapshot(cut=1))
    assert comparison.is_equal
    assert comparison.unverified_entries == 1
    assert comparison.course.reserved_bytes[0] == comparison.course.reserved_bytes[1] == 24 * MIB


def test_only_the_first_request_may_have_begun_earlier():
    def original():
        history = recorded([(ALLOC, 30 * MIB, 0), (ALLOC, 5 * MIB, 0), (ALLOC, 6 * MIB, 0)])
        return history.snapshot(cut=1)

    def change(trace, segments):
        # 6 lie 512 bytes further than they should.
        trace[3]["addr"] += 512
        blocks = segments[1]["blocks"]
        segments[1]["blocks"] = [{"size": blocks[0]["size"] + 512, "state": "active_allocated"}, *blocks[1:]]
        for block in segments[1]["blocks"][1:]:
            block["address"] += 512
        segments[1]["blocks"][-1]["size"] -= 512

    assert replay_recorded(original()).is_equal
    assert departure(change, original).startswith("entry 3, alloc of 6291456")


def test_a_first_request_that_begins_no_segment_did_not_begin_earlier():
    def original():
        return recorded([(ALLOC, 5 * MIB, 0), (ALLOC, 6 * MIB, 0)]).snapshot(cut=2)

    def change(trace, segments):
        trace[0]["addr"] += 512
        blocks = segments[0]["blocks"]
        segments[0]["blocks"] = [{"size": 5 * MIB + 512, "state": "active_allocated"}, *blocks[1:]]
        for block in segments[0]["blocks"][1:]:
            del block["address"]
        blocks[-1]["size"] -= 512

    assert replay_recorded(original()).is_equal
    # The block in front of it would be of 5 MiB and 512 bytes, if it had been requested so.
    assert replay_recorded(changed(change, original)).is_equal

    def move(trace, segments):
        trace[0]["addr"] += 2 * MIB
        segments[0]["blocks"] = [
            {"size": 5 * MIB, "state": "active_allocated"},
            {"size": 2 * MIB, "state": "inactive"},
            {"size": 6 * MIB, "state": "active_allocated"},
            {"size": 7 * MIB, "state": "inactive"},
        ]

    assert departure(move, original).startswith("entry 0, alloc of 6291456")


def test_a_history_without_entries_is_its_last_state():
    snapshot = recorded(EMPTIED).snapshot()
    comparison = replay_recorded(snapshot | {"device_traces": [[]]})
    assert comparison.is_equal
    assert comparison.first.reserved_bytes == comparison.peak_reserved_bytes == 30 * MIB


def test_blocks_that_overlap_are_named():
    before = [(ALLOC, 1000, 0), (ALLOC, 1000, 0)]
    history = recorded([*before, (FREE, 0, 0), (FREE, 0, 0)])
    snapshot = history.snapshot(cut=len(recorded(before).allocator.entries))
    for entry in snapshot["device_traces"][0][2:]:
        entry["addr"] -= 512
    assert "lies in another one, or reaches beyond its segment" in replay_recorded(snapshot).departure


def expandable(before, *after) -> dict:
    """The part `after` of a history with expandable segments."""
    cut = len(recorded(before, alloc_conf=EXPANDABLE).allocator.entries)
    return recorded([*before, *after], alloc_conf=EXPANDABLE).snapshot(cut)


HOLE_IN_FRONT = [(ALLOC, 30 * MIB, 0), (ALLOC, 20 * MIB, 0), (FREE, 0, 0), (EMPTY, 0, 0)]
"""20 without memory, 10 free, 20 in use, 10 free."""


def test_an_expandable_segment_begins_with_the_lowest_page_that_is_ever_mapped():
    snapshot = expandable(HOLE_IN_FRONT, (ALLOC, 25 * MIB, 0))
    # The hole has no memory at the beginning, so that only this entry shows it.
    assert snapshot["device_traces"][0][0]["action"] == "segment_map"
    comparison = replay_recorded(snapshot)
    assert comparison.is_equal
    first = comparison.first.segments[0].blocks
    assert [(block.size_bytes, block.state) for block in first[:3]] == [
        (20 * MIB, "unmapped"),
        (10 * MIB, "free"),
        (20 * MIB, "in use"),
    ]


def test_a_segment_that_shrinks_is_still_the_same():
    # 45 do not fit into the hole; their pages at the end go before the hole is filled.
    steps = [(ALLOC, 45 * MIB, 0), (FREE, 1, 0), (EMPTY, 0, 0), (ALLOC, 25 * MIB, 0)]
    snapshot = expandable(HOLE_IN_FRONT, *steps)
    actions = [entry["action"] for entry in snapshot["device_traces"][0]]
    assert actions.count("segment_map") == 2
    assert actions.count("segment_unmap") == 1
    comparison = replay_recorded(snapshot)
    assert comparison.is_equal
    assert comparison.first.segments[0].blocks[0].size_bytes == 20 * MIB


def test_pages_with_a_hole_between_them_are_of_one_segment():
    # 10 in use, 10 free, 20 without memory, 8 free, 12 in use; 38 fit into the hole and what is free around it.
    before = [(ALLOC, size * MIB, 0) for size in (10, 38, 12)]
    snapshot = expandable([*before, (FREE, 1, 0), (EMPTY, 0, 0)], (ALLOC, 36 * MIB, 0))
    comparison = replay_recorded(snapshot)
    assert comparison.is_equal
    (segment,) = comparison.first.segments
    assert [(block.size_bytes // MIB, block.state) for block in segment.blocks[:-1]] == [
        (10, "in use"), (10, "free"), (20, "unmapped"), (8, "free"), (12, "in use"),
    ]  # fmt: skip


def test_pages_of_another_stream_or_pool_are_of_another_segment():
    # Both come after the segment in question in time, and one of them in front of it in address.
    steps = [(ALLOC, 25 * MIB, 7), (ALLOC, 1, 0), (ALLOC, 45 * MIB, 0)]
    snapshot = expandable([(ALLOC, 30 * MIB, 0)], *steps)
    below = 1 << 46
    for entry in snapshot["device_traces"][0]:
        if entry["stream"] == 7 or entry["size"] in (1, 2 * MIB):
            entry["addr"] -= below
    for segment in snapshot["segments"]:
        if segment["stream"] == 7 or segment["segment_type"] == "small":
            segment["address"] -= below
            for block in segment["blocks"]:
                block["address"] -= below
    assert replay_recorded(snapshot).is_equal


def test_pages_of_a_later_segment_do_not_belong_to_the_first_one():
    # The first segment grows, then all of it is given back, and another one begins at lower addresses.
    steps = [(ALLOC, 50 * MIB, 0), (FREE, 0, 0), (FREE, 0, 0), (EMPTY, 0, 0), (ALLOC, 30 * MIB, 0)]
    snapshot = expandable([(ALLOC, 30 * MIB, 0)], *steps)
    below = 1 << 50
    for entry in snapshot["device_traces"][0][-2:]:
        entry["addr"] -= below
    snapshot["segments"][0]["address"] -= below
    for block in snapshot["segments"][0]["blocks"]:
        block["address"] -= below
    assert replay_recorded(snapshot).is_equal


TEN_SMALL_PAGES = [(ALLOC, MIB, 0)] * 20
"""As many bytes as one page of the large pool."""


def test_the_last_state_says_which_pool_pages_belong_to():
    assert replay_recorded(expandable(TEN_SMALL_PAGES, (ALLOC, MIB, 0))).is_equal
    assert replay_recorded(expandable([(ALLOC, 20 * MIB, 0)], (ALLOC, 5 * MIB, 0))).is_equal


def test_blocks_say_which_pool_pages_belong_to():
    steps = [(FREE, 3, 0), (ALLOC, MIB // 2, 0), *[(FREE, 0, 0)] * 20, (EMPTY, 0, 0)]
    snapshot = expandable(TEN_SMALL_PAGES, *steps)
    assert snapshot["segments"] == []
    assert replay_recorded(snapshot).is_equal
    steps = [(FREE, 0, 0), (ALLOC, 5 * MIB, 0), (FREE, 0, 0), (EMPTY, 0, 0)]
    assert replay_recorded(expandable([(ALLOC, 20 * MIB, 0)], *steps)).is_equal


def test_private_pools_are_refused():
    snapshot = recorded(EMPTIED).snapshot()
    private = snapshot["segments"][0] | {"address": 1 << 50, "segment_pool_id": (0, 1), "blocks": [{"size": 2 * MIB}]}
    snapshot["segments"].append(private)
    with pytest.raises(UsageError, match="1 of private pools"):
        replay_recorded(snapshot)


# ---- out of memory ---------------------------------------------------------------------------------------------------


def test_a_refused_request_says_what_there_was():
    steps = [(ALLOC, 5 * MIB, 0), (ALLOC, 6 * MIB, 0), (FREE, 0, 0), (ALLOC, 1, 3), (ALLOC, 30 * MIB, 0)]
    history = recorded(steps, capacity_bytes=40 * MIB)
    comparison = replay_recorded(history.snapshot())
    assert comparison.is_equal
    (refusal,) = comparison.course.refusals
    assert refusal.entry == len(history.allocator.entries) - 1
    assert refusal.requested_bytes == 30 * MIB
    assert refusal.driver_free_bytes == 18 * MIB
    assert (refusal.reserved_bytes, refusal.allocated_bytes) == (22 * MIB, 6 * MIB + 512)
    # 5 in front, 9 behind the block in use; the 2 MiB of the other stream's small pool do not count.
    assert refusal.largest_free_bytes == 9 * MIB


def test_a_request_that_the_model_could_serve_is_a_departure():
    def change(trace, _):
        trace.append({"action": "oom", "device_free": 0, "size": 5 * MIB, "stream": 0})

    assert "the model had memory" in departure(change)


def test_a_refusal_before_which_nothing_was_given_back_is_a_departure():
    def change(trace, _):
        trace.append({"action": "oom", "device_free": 0, "size": 60 * MIB, "stream": 0})

    def original():
        return recorded([(ALLOC, 30 * MIB, 0), (FREE, 0, 0)]).snapshot()

    assert "nothing recorded, the model does segment_free of 31457280" in departure(change, original)


def test_segments_at_the_peak_are_counted_after_some_were_given_back():
    history = recorded([*EMPTIED, (FREE, 0, 0), (EMPTY, 0, 0), (ALLOC, 12 * MIB, 0), (ALLOC, 40 * MIB, 0)])
    peak = replay_recorded(history.snapshot()).course.peak
    assert (peak.segments, peak.reserved_bytes) == (2, 52 * MIB)


def test_a_refused_segment_of_pages_is_where_it_is_mapped_later():
    # Addresses are reserved when 1 byte is refused, and mapped by the next request of the pool.
    steps = [(ALLOC, 39 * MIB, 0), (ALLOC, 1, 0), (FREE, 0, 0), (EMPTY, 0, 0), (ALLOC, 5 * MIB, 7), (ALLOC, 1, 0)]
    history = recorded(steps, alloc_conf=EXPANDABLE, capacity_bytes=41 * MIB)
    assert "oom" in [entry["action"] for entry in history.allocator.entries]
    assert replay_recorded(history.snapshot()).is_equal


def test_what_is_kept_of_a_snapshot_is_enough():
    history = recorded([(ALLOC, 5 * MIB, 3), *EMPTIED, (REQUEST_FREE, 0, 0)], alloc_conf=EXPANDABLE)
    snapshot = history.snapshot(cut=2)
    assert replay_recorded(essentials(snapshot)) == replay_recorded(snapshot)
    assert "frames" not in str(essentials(snapshot))
