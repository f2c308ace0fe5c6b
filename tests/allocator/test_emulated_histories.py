"""The model against histories of torch's own allocator on an emulated driver (`emulated/README.md`)."""

from typing import Any

import pytest
from real_histories import EMULATED, manifest, snapshot_of

from profiler.allocator import replay_recorded
from profiler.allocator.histories.first_state import first_state
from profiler.allocator.histories.history import read_history
from profiler.allocator.histories.recorded_run import RecordedRun

ALL = manifest(EMULATED)


def ids(about: Any) -> str:
    return about["name"]


def test_there_are_three() -> None:
    assert [about["alloc_conf"] for about in ALL] == ["", "expandable_segments:True", ""]


@pytest.mark.parametrize("about", ALL, ids=ids)
def test_an_emulated_history_comes_out_equal(about: Any) -> None:
    comparison = replay_recorded(snapshot_of(about, EMULATED))
    assert comparison.entries == about["entries"] > 900
    assert comparison.departure == ""
    assert comparison.is_equal
    assert comparison.unverified_entries == 0
    assert comparison.peak_reserved_bytes == about["peak_reserved_bytes"]


def test_fsdp_gathers_and_reduces_on_streams_of_their_own() -> None:
    """Pools are kept per stream: the same entries on one stream are not what torch did."""
    snapshot = snapshot_of(ALL[2], EMULATED)
    assert read_history(snapshot).streams == (0, 1, 2)
    for entry in snapshot["device_traces"][0]:
        entry["stream"] = 0
    for segment in snapshot["segments"]:
        segment["stream"] = 0
    assert not replay_recorded(snapshot).is_equal


def test_torch_2_13_takes_the_block_of_the_older_segment() -> None:
    """The emulated driver hands out descending addresses, so the order of addresses is that of ages upside down."""
    history = read_history(snapshot_of(ALL[0], EMULATED))
    first = first_state(history, since=0, sizes_bytes={})
    by_address = RecordedRun(history, first, since=0, by_age=False)
    assert "the model's block is at" in by_address.feed()
    assert by_address.index == 21_110
    assert RecordedRun(history, first, since=0, by_age=True).feed() == ""
