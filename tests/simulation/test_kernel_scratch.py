"""Scratch of CUDA kernels inside one operation, compared with bytes computed by hand."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from emulated.compared import CARDS, recorded, recorded_without_selections, simulated
from emulated.scenarios import KERNELS
from hypothesis import given
from hypothesis import strategies as some

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.simulation.cuda.scratch.kernel_scratch import KERNEL_SCRATCH, NO_SCRATCH
from profiler.simulation.session import Simulation


@pytest.fixture
def scratch() -> Iterator[Callable[[], list[int]]]:
    """Sizes of the workspace allocated so far; all of it is freed."""
    simulation = Simulation(KNOWN_GPUS["a100-40gb"])

    def sizes() -> list[int]:
        trace = simulation.recorder.finished()
        blocks = [index for index, category in enumerate(trace.categories) if category is Category.WORKSPACE]
        assert all(-(block + 1) in trace.events for block in blocks)
        return [trace.sizes_bytes[block] for block in blocks]

    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        yield sizes


def embedding_backward(tokens: int) -> None:
    weight = torch.nn.Parameter(torch.empty((512, 64), dtype=torch.bfloat16, device="meta"))
    ids = torch.zeros((1, tokens), dtype=torch.int64, device="meta")
    looked_up = torch.nn.functional.embedding(ids, weight)
    looked_up.backward(torch.empty_like(looked_up))


def test_embedding_backward_sorts_above_3072_tokens(scratch: Callable[[], list[int]]) -> None:
    embedding_backward(3072)
    assert scratch() == []
    embedding_backward(3073)
    listed, index = 3073 * 8, 8
    segments = 512  # the rows of the weight
    parts = 3073 // 10 + segments
    assert scratch() == [
        *(listed, listed),  # sorted indices, and where they were
        *(listed, 2 * listed),  # 0, 1, 2 ... and the sort
        *(listed, index, listed),  # which differ from their neighbour, the first two held to the end
        *(segments * 8, segments * 8, index, parts * 8, parts * 64 * 4),
    ]


def test_the_gradient_of_indexing_sorts_its_indices(scratch: Callable[[], list[int]]) -> None:
    hidden = torch.empty((2, 1000, 8), device="meta", requires_grad=True)
    mask = torch.ones((2, 1000), dtype=torch.bool, device="meta")
    taken = hidden[mask]
    before = scratch()
    taken.sum().backward()
    # The mask is what was kept, so its positions are looked up again: two indices of 8 bytes for each.
    assert scratch()[len(before) :] == [2000 * 2 * 8, *(4 * [2000 * 8]), 2 * 2000 * 8]


def test_writing_by_index_sorts_nothing(scratch: Callable[[], list[int]]) -> None:
    target = torch.empty(4000, device="meta")
    target[torch.arange(4000, device="meta")] = torch.empty(4000, device="meta")
    assert scratch() == []


def test_the_norm_for_clipping_gives_every_tensor_the_chunks_of_the_largest(scratch: Callable[[], list[int]]) -> None:
    # 200,000 values are 4 chunks of 65,536; 3 tensors of 4 float32.
    tensors = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in (200_000, 64, 64)]
    torch._foreach_norm(tensors)
    assert scratch() == [3 * 4 * 4]


def test_the_chunk_is_that_of_the_installed_torch() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "native" / "cuda" / "MultiTensorApply.cuh"
    assert "kChunkSize = 65536;" in header.read_text()


SORTED = [name for name in KERNELS if "4,000 tokens" in name]
SORTED_BYTES = 2 * 4000 * 8
"""The second copy of 4,000 indices and of their places."""


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("name", sorted(set(KERNELS) - set(SORTED)))
def test_a_kernel_allocates_what_torch_allocates(gpu: str, name: str) -> None:
    assert simulated(gpu, name, KERNELS[name]) == recorded(gpu, name)


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("name", SORTED)
def test_a_sorted_embedding_allocates_what_torch_allocates(gpu: str, name: str) -> None:
    """Except for the tables of CUB's sort, and its selections."""
    with_tables = recorded_without_selections(gpu, name)
    (place,) = [n for n, size in enumerate(with_tables) if SORTED_BYTES < size < SORTED_BYTES + 75_000 and n == 4]
    assert with_tables[place + 1] == -with_tables[place]
    with_tables[place], with_tables[place + 1] = SORTED_BYTES, -SORTED_BYTES
    assert simulated(gpu, name, KERNELS[name]) == with_tables


def test_the_gradient_of_a_softmax_holds_a_product_by_hand(scratch: Callable[[], list[int]]) -> None:
    scores = torch.empty((4, 100, 500), dtype=torch.bfloat16, device="meta", requires_grad=True)
    torch.softmax(scores, dim=-1).backward(torch.empty((4, 100, 500), dtype=torch.bfloat16, device="meta"))
    assert scratch() == [4 * 100 * 500 * 2]


@given(some.integers(1, 20_000), some.integers(1, 10_000), some.integers(1, 64))
def test_the_gradient_of_an_embedding_has_a_row_per_part(tokens: int, rows: int, width: int) -> None:
    gradient = torch.empty((tokens, width), dtype=torch.bfloat16, device="meta")
    ids = torch.empty((tokens,), dtype=torch.int64, device="meta")
    operation = torch.ops.aten.embedding_dense_backward.default
    found = KERNEL_SCRATCH[operation]((gradient, ids, rows, -1, False), {}, KNOWN_GPUS["a100-40gb"].chip)
    if tokens <= 3072:
        assert found == NO_SCRATCH
        return
    *_, places, partial_rows = found.launches[-1]
    # As many parts as full groups of ten, and one begun for each row that is looked up.
    assert partial_rows == places // 8 * width * 4
    assert tokens // 10 < places // 8 <= tokens // 10 + min(tokens, rows)
