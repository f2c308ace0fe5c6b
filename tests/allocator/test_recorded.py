"""Recorded histories of the real allocator must come out equal, and a history with one thing changed must not.

Real ones are memory snapshots taken on a card, each from before the first allocation on, under `recorded/` as
``*.pickle.gz``. Their replay is skipped where there is none; the reader is tested on snapshots of our own.
"""

import gzip
import pickle
from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_card_replay import traces

from profiler.allocator import TraceBuilder, memory_snapshot, replay_on_card, replay_recorded
from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.domain.memory import Category, Phase

MIB = 1024 * 1024
RECORDED = sorted(Path(__file__).with_name("recorded").glob("*.pickle.gz"))
CONFIGS = ["", "expandable_segments:True", "max_split_size_mb:24", "roundup_power2_divisions:4"]


@pytest.mark.skipif(not RECORDED, reason="no history of a real card has been recorded yet (tests/allocator/recorded)")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name)
def test_real_histories_come_out_equal(path):
    comparison = replay_recorded(pickle.loads(gzip.decompress(path.read_bytes())))
    assert comparison.entries > 0
    assert comparison.departure == ""
    assert comparison.is_equal


@given(traces(), st.sampled_from(CONFIGS), st.one_of(st.none(), st.integers(20 * MIB, 200 * MIB)))
def test_our_own_histories_come_out_equal(trace, alloc_conf, capacity):
    snapshot = memory_snapshot(trace, capacity_bytes=capacity, alloc_conf=alloc_conf)
    comparison = replay_recorded(snapshot)
    assert comparison.departure == ""
    assert comparison.is_equal
    on_card = replay_on_card(trace, capacity_bytes=capacity, config=parse_alloc_conf(alloc_conf))
    assert comparison.peak_reserved_bytes == on_card.peak_reserved_bytes


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


def departure(change) -> str:
    snapshot = deepcopy(history())
    change(snapshot["device_traces"][0])
    comparison = replay_recorded(snapshot)
    assert not comparison.is_equal
    return comparison.departure


def test_another_segment_size_is_a_departure():
    assert "asked for segment_alloc of 20971520" in departure(lambda trace: trace[0].update(size=22 * MIB))


def test_another_place_in_the_segment_is_a_departure():
    def change(trace):
        trace[2]["addr"] += 512

    assert "the model's block is at" in departure(change)


def test_a_request_that_would_not_have_fitted_is_a_departure():
    assert "the model ran out of memory" in departure(lambda trace: trace[2].update(size=16 * MIB))


def test_a_segment_that_was_not_needed_is_a_departure():
    assert "the model did not need it" in departure(lambda trace: trace.insert(2, trace[0] | {"addr": 1 << 40}))


def test_a_segment_that_was_kept_is_a_departure():
    def change(trace):
        del trace[7]
        trace[7]["addr"] = 1 << 40
        trace[8]["addr"] = 1 << 40

    snapshot = deepcopy(history())
    change(snapshot["device_traces"][0])
    comparison = replay_recorded(snapshot)
    # The driver had memory after all: no flush, and more is held than the snapshot's segments say.
    assert comparison.departure == ""
    assert comparison.segments != comparison.recorded_segments
    assert not comparison.is_equal


def test_an_emptied_cache_is_followed():
    snapshot = history()
    trace = snapshot["device_traces"][0]
    del trace[8:10]
    snapshot["segments"] = snapshot["segments"][:1]
    assert replay_recorded(snapshot).is_equal


def test_a_history_that_began_late_is_not_equal():
    def change(trace):
        del trace[:3]

    snapshot = deepcopy(history())
    change(snapshot["device_traces"][0])
    snapshot["device_traces"][0].append(snapshot["device_traces"][0][3] | {"addr": 77})
    assert not replay_recorded(snapshot).is_equal


def test_several_streams_are_refused():
    snapshot = deepcopy(history())
    snapshot["device_traces"][0][1]["stream"] = 7
    with pytest.raises(ValueError, match="several streams"):
        replay_recorded(snapshot)
