"""Memory of CUDA and its libraries in the simulation."""

from pathlib import Path

import pytest
import torch
from emulated.compared import CARDS, recorded, simulated
from emulated.scenarios import PRODUCTS

from profiler.allocator.traces.trace import TraceBuilder
from profiler.analytical.timeline.instants import workspace
from profiler.domain.cards import card as cublas
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import MIB
from profiler.simulation.cuda.composites import CublasWorkspaces


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1", "2.13.0"])
@pytest.mark.parametrize("gpu", KNOWN_GPUS)
def test_the_simulation_and_the_estimate_have_the_same_workspaces(
    gpu: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cublas, "installed_torch_version", lambda: version)
    trace = TraceBuilder()
    CublasWorkspaces(trace, KNOWN_GPUS[gpu].chip).product()

    assert 2 * sum(trace.sizes_bytes) == workspace(gpu).size


def test_the_installed_torch_keeps_workspaces_by_handle_and_stream() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "cuda" / "CUDAContextLight.h"
    assert "cublas_handle_stream_to_workspace" in header.read_text()


def test_the_context_is_between_the_published_extremes() -> None:
    for card in KNOWN_GPUS.values():
        assert 0.12 <= cuda_context_bytes(card.compute_capability) / 2**30 <= 1.4
    # 14.25 GiB in use - 12.87 GiB allocated - 912.01 MiB reserved but unallocated: 501 MiB, rounded twice to 0.01 GiB.
    assert cuda_context_bytes((8, 0)) == 501 * MIB
    assert cuda_context_bytes((8, 7)) == cuda_context_bytes((8, 6))
    assert cuda_context_bytes((6, 1)) == cuda_context_bytes((7, 0))


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_first_product_of_each_thread_allocates_its_workspace(gpu: str, name: str) -> None:
    assert simulated(gpu, name, PRODUCTS[name]) == recorded(gpu, name)


def test_a_workspace_is_allocated_once_by_hand() -> None:
    # The result, the workspace of forward, that of backward between two gradients.
    first, again = (simulated("h100-80gb", name, PRODUCTS[name]) for name in ("linear", "linear again"))
    assert first.count(32 * MIB) == 2
    assert 32 * MIB not in again
    # The second time gradients are added to those of the first, and freed.
    assert [size for size in first if size != 32 * MIB] == [size for size in again if size > 0]


def test_a_workspace_has_another_size_on_other_cards() -> None:
    a100, h100 = KNOWN_GPUS["a100-80gb"].chip, KNOWN_GPUS["h100-80gb"].chip
    trace = TraceBuilder()
    workspaces = CublasWorkspaces(trace, a100, [h100])
    for _ in range(3):
        workspaces.product()
    assert list(trace.sizes_bytes) == [8_519_680]
    assert trace.sizes_by_capability == {0: {h100: 32 * MIB}}
