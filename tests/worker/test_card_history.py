"""The history of torch's allocator as a trace, from readings that are made up: real ones need torch's CUDA build."""

import pytest
import torch

from profiler.worker.cuda.card_decoding import CardHistory, _longer


class History:
    """torch's history: what `entries` holds since it was last recorded."""

    def __init__(self, monkeypatch):
        self.entries, self.segments = [], []
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: self.entries.clear())
        monkeypatch.setattr(
            torch.cuda.memory,
            "_snapshot",
            lambda: {"segments": self.segments, "device_traces": [list(self.entries)]},
        )

    def happens(self, *entries):
        """Add entries: action and address, size and stream of an allocation."""
        names = ("action", "addr", "size", "stream")
        self.entries.extend(dict(zip(names, (*entry, 0, 0)[:4], strict=True)) for entry in entries)


@pytest.fixture
def history(monkeypatch):
    return History(monkeypatch)


def test_blocks_are_followed_from_those_in_use_at_the_start(history):
    blocks = [
        {"address": 100, "requested_size": 7, "state": "active_allocated"},
        {"address": 200, "requested_size": 9, "state": "inactive"},
    ]
    history.segments = [{"blocks": blocks}]
    card = CardHistory()
    card.start()
    history.happens(("alloc", 300, 5), ("free_requested", 100), ("free_completed", 100), ("segment_alloc", 400, 2))
    card.read()
    history.happens(("alloc", 100, 6))
    card.read()

    assert card.trace.sizes_bytes == [7, 5, 6]
    assert card.trace.events == [1, 2, -1, 3]
    assert card.blocks_in_use() == {300: 1, 100: 2}


def test_what_was_skipped_is_not_in_the_trace_and_tensors_that_moved_are_found(history):
    card = CardHistory()
    card.start()
    history.happens(("alloc", 300, 5))
    card.read()
    history.happens(("alloc", 500, 8), ("free_completed", 300))
    card.skip()
    card.move({300: (500, 9)})
    card.read()

    assert card.trace.events == [1]
    assert card.blocks_in_use() == {500: 9}


def test_streams_are_noted_since_blocks_of_several_are_not_interchangeable(history):
    card = CardHistory()
    card.start()
    history.happens(("alloc", 300, 5, 0), ("alloc", 400, 5, 7))
    card.read()
    assert card.streams == {0, 7}


def test_positions_go_on_counting_and_other_values_are_repeated():
    positions, ids = torch.tensor([[4, 5], [7, 8]]), torch.tensor([[9, 3], [3, 3]])

    assert _longer(positions, 1, 2).tolist() == [[4, 5, 6, 7], [7, 8, 9, 10]]
    assert _longer(ids, 1, 2).tolist() == [[9, 3, 3, 3], [3, 3, 3, 3]]
    assert _longer(torch.tensor([[False, True]]), 1, 1).tolist() == [[False, True, True]]
