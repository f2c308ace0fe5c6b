"""All counters of `torch.cuda.memory_stats`, against those of torch's CUDA build on an emulated card."""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from profiler.allocator import OutOfMemoryError, parse_alloc_conf
from profiler.allocator.model.counting import CountingAllocator
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS

TABLE = json.loads(gzip.decompress((Path(__file__).parent / "emulated" / "counters.json.gz").read_bytes()))
CARD = KNOWN_GPUS["t4-16gb"]


def _flat(stats: Mapping[str, Any], prefix: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in stats.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def test_there_are_recordings() -> None:
    assert {"", "expandable_segments:True", "max_split_size_mb:21"} == set(TABLE)


@pytest.mark.parametrize("settings", TABLE)
def test_every_counter_is_that_of_torch(settings: str) -> None:
    allocator = CountingAllocator(
        capacity_bytes=CARD.memory_bytes - cuda_context_bytes(CARD.compute_capability),
        config=parse_alloc_conf(settings),
    )
    blocks, counted = {}, 0
    for action, *values in TABLE[settings]:
        if action == "allocate":
            blocks[values[0]] = allocator.allocate(values[1])
        elif action == "free":
            allocator.free(blocks.pop(values[0]))
        elif action == "refused":
            with pytest.raises(OutOfMemoryError):
                allocator.allocate(values[0])
        elif action == "counts":
            counted += 1
            assert _flat(allocator.torch_stats()) == values[0]
        else:
            getattr(allocator, action)()
    assert counted == 9
