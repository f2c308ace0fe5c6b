"""The model against whole histories of the campaign's real card, and what cuDNN took there (`measured/README.md`)."""

from collections import Counter
from typing import Any

import pytest
from real_histories import MEASURED, manifest, snapshot_of

from profiler.allocator import replay_recorded

ALL = manifest(MEASURED)


def test_there_are_two() -> None:
    assert [about["name"] for about in ALL] == ["qwen2.5-0.5b-full", "qwen2.5-0.5b-lora"]


@pytest.mark.parametrize("about", ALL, ids=lambda about: about["name"])
def test_a_history_of_the_card_comes_out_equal(about: Any) -> None:
    comparison = replay_recorded(snapshot_of(about, MEASURED))
    assert comparison.entries == about["entries"] > 100_000
    assert comparison.departure == ""
    assert comparison.is_equal
    assert comparison.first.segments == ()
    assert comparison.unverified_entries == 0
    assert comparison.peak_reserved_bytes == about["peak_reserved_bytes"]


@pytest.mark.parametrize("about", ALL, ids=lambda about: about["name"])
def test_workspaces_of_cudnn_are_those_that_evidence_quotes(about: Any) -> None:
    """Per call: seed and offset, the output, the log-sum-exp where backward follows, and the workspace."""
    sizes = [entry["size"] for entry in snapshot_of(about, MEASURED)["device_traces"][0] if entry["action"] == "alloc"]
    after_seeds = [sizes[at + 2 : at + 5] for at in range(len(sizes) - 4) if sizes[at : at + 2] == [8, 8]]
    output_bytes, logsumexp_bytes = 4 * 14 * 1042 * 64 * 2, 4 * 14 * 1042 * 4
    assert after_seeds.count([output_bytes, logsumexp_bytes, 256]) == 384
    assert sum(blocks[0] == 28_672 and blocks[1] == 473_216 for blocks in after_seeds) == 48  # one query per row
    modelled = 4 * 14 * 1042 * (64 + 1) * 4
    counted = Counter(sizes)
    assert (counted[modelled], counted[modelled + 256]) == (0, 192)
