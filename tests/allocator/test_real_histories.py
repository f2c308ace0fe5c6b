"""The model against memory histories of real cards: every block and every segment must be where it was."""

from typing import Any

import pytest
import real_histories

from profiler.allocator import replay_recorded
from profiler.domain.memory import MIB

ALL = real_histories.manifest()
PARTS = [about for about in ALL if about["entries"] < 12_000]
"""Short enough to be replayed several times."""

pytestmark = pytest.mark.skipif(not ALL, reason=real_histories.MISSING)


def ids(about: Any) -> str:
    return about["name"]


@pytest.mark.parametrize("about", ALL, ids=ids)
def test_a_real_history_comes_out_equal(about):
    snapshot = real_histories.snapshot_of(about)
    comparison = replay_recorded(snapshot)
    assert comparison.entries == about["entries"] > 0
    assert comparison.departure == ""
    assert comparison.is_equal
    assert comparison.unverified_entries == 0
    assert ("whole" in about["kinds"]) >= (not comparison.first.segments)
    held = sum(segment["total_size"] for segment in snapshot["segments"])
    assert comparison.course.reserved_bytes[-1] == held


@pytest.mark.parametrize("about", [about for about in ALL if len(about["kinds"]) == 1], ids=ids)
def test_the_reserved_peak_is_the_one_of_the_manifest(about):
    peak = replay_recorded(real_histories.snapshot_of(about)).peak_reserved_bytes
    assert peak == about["peak_reserved_mib"] * MIB


@pytest.mark.parametrize("about", PARTS, ids=ids)
def test_a_real_history_cut_anywhere_comes_out_equal(about):
    snapshot = real_histories.snapshot_of(about)
    trace = snapshot["device_traces"][0]
    for part in range(1, 4):
        cut = len(trace) * part // 4 + part
        comparison = replay_recorded(snapshot | {"device_traces": [trace[cut:]]})
        assert comparison.departure == ""
        assert comparison.is_equal


@pytest.mark.parametrize("about", ALL[:5], ids=ids)
def test_a_real_history_with_one_address_changed_does_not(about):
    snapshot = real_histories.snapshot_of(about)
    trace = snapshot["device_traces"][0]
    at = next(index for index, entry in enumerate(trace) if entry["action"] == "alloc")
    address = trace[at]["addr"]
    for entry in trace:
        if entry["addr"] == address and not entry["action"].startswith("segment"):
            entry["addr"] += 512
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            del block["address"]
    assert not replay_recorded(snapshot).is_equal
