"""Memory of CUDA and its libraries."""

from pathlib import Path

import pytest
import torch
from emulated.compared import CARDS, recorded, simulated
from emulated.scenarios import PRODUCTS

from profiler.allocator.trace import TraceBuilder
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.units import MIB
from profiler.simulation.cuda.libraries import (
    CublasWorkspaces,
    cublas_workspace_bytes,
    cublaslt_workspace_bytes,
    cuda_context_bytes,
)


@pytest.mark.parametrize(
    ("capability", "version", "size"),
    [
        ((9, 0), "2.11.0", 32 * MIB),
        ((9, 0), "2.13.0", 32 * MIB),
        ((8, 0), "2.13.0", 2 * 4096 * 1024 + 8 * 16 * 1024),  # ":4096:2:16:8", in KiB
        ((10, 0), "2.11.0", 8_519_680),
        ((10, 0), "2.12.0", 32 * MIB),
        ((12, 0), "2.13.1", 32 * MIB),
    ],
)
def test_workspace_by_card_and_version(capability: tuple[int, int], version: str, size: int) -> None:
    assert cublas_workspace_bytes(capability, version) == size


def test_the_installed_torch_keeps_workspaces_by_handle_and_stream() -> None:
    header = Path(torch.__file__).parent / "include" / "ATen" / "cuda" / "CUDAContextLight.h"
    assert "cublas_handle_stream_to_workspace" in header.read_text()


def test_the_context_is_between_the_published_extremes() -> None:
    for card in KNOWN_GPUS.values():
        assert 0.12 <= cuda_context_bytes(card.compute_capability) / 2**30 <= 1.4
    # 14.25 GiB in use, of which 12.87 GiB allocated and 912.01 MiB reserved in addition: 501 MiB, to 0.01 GiB twice.
    assert cuda_context_bytes((8, 0)) == 501 * MIB
    assert cuda_context_bytes((8, 7)) == cuda_context_bytes((8, 6))
    assert cuda_context_bytes((7, 0)) == cuda_context_bytes((7, 5))


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_the_first_product_of_each_thread_takes_its_workspace(gpu: str, name: str) -> None:
    assert simulated(gpu, name, PRODUCTS[name]) == recorded(gpu, name)


def test_a_workspace_is_taken_once_by_hand() -> None:
    # Result, the forward's workspace, the backward's between two gradients.
    first, again = (simulated("h100-80gb", name, PRODUCTS[name]) for name in ("linear", "linear again"))
    assert first.count(32 * MIB) == 2
    assert 32 * MIB not in again
    # The second time gradients are added to those of the first, and given back.
    assert [size for size in first if size != 32 * MIB] == [size for size in again if size > 0]


def test_a_biass_workspace_is_its_own_before_torch_2_12() -> None:
    assert cublaslt_workspace_bytes("2.11.0") == MIB
    assert cublaslt_workspace_bytes("2.13.0") == 0


def test_a_workspace_has_another_size_on_other_cards() -> None:
    a100, h100 = KNOWN_GPUS["a100-80gb"].chip, KNOWN_GPUS["h100-80gb"].chip
    trace = TraceBuilder()
    workspaces = CublasWorkspaces(trace, a100, [h100])
    for _ in range(3):
        workspaces.product()
    assert list(trace.sizes_bytes) == [8_519_680]
    assert trace.sizes_by_capability == {0: {h100: 32 * MIB}}
