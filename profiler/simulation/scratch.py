"""Memory that a kernel takes while it runs, and gives back."""

from collections.abc import Iterable, Mapping, Sequence

import torch

from profiler.allocator.trace import Capability
from profiler.domain.memory import Category
from profiler.simulation.recorder import Recorder


def hold(
    recorder: Recorder,
    sizes_bytes: Iterable[int],
    kernel: str,
    *,
    elsewhere: Mapping[Capability, Sequence[int]] | None = None,
) -> list[torch.Tensor]:
    """Blocks that `kernel` takes, in this order and all at once. They are given back when the list is gone.

    `elsewhere`: as many sizes for the other cards that the run is to answer for.
    """
    with recorder.attributed(Category.WORKSPACE, kernel):
        blocks = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes_bytes]
        for block in blocks:
            # Within an operation the dispatch mode does not see what is made; outside it has seen it already.
            recorder.made(block)
    for number, block in enumerate(blocks):
        others = {capability: sizes[number] for capability, sizes in (elsewhere or {}).items()}
        if any(size != block.nbytes for size in others.values()):
            recorder.differs(block, others)
    return blocks
