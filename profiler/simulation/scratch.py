"""Memory that a kernel takes while it runs, and gives back."""

from collections.abc import Iterable

import torch

from profiler.domain.memory import Category
from profiler.simulation.recorder import Recorder


def hold(recorder: Recorder, sizes_bytes: Iterable[int], kernel: str) -> list[torch.Tensor]:
    """Blocks that `kernel` takes, in this order and all at once. They are given back when the list is gone."""
    with recorder.attributed(Category.WORKSPACE, kernel):
        blocks = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes_bytes]
        for block in blocks:
            # Within an operation the dispatch mode does not see what is made; outside it has seen it already.
            recorder.made(block)
    return blocks
