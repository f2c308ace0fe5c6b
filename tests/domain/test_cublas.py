"""Workspaces of cuBLAS, by card and by version of torch."""

from importlib.metadata import PackageNotFoundError

import pytest

from profiler.domain.cards import card
from profiler.domain.cards.card import cublas_workspace_bytes, cublaslt_workspace_bytes
from profiler.domain.memory import MIB


@pytest.mark.parametrize(
    ("capability", "version", "size"),
    [
        ((9, 0), "2.11.0", 32 * MIB),
        ((9, 0), "2.13.0", 32 * MIB),
        ((8, 0), "2.13.0", 2 * 4096 * 1024 + 8 * 16 * 1024),  # ":4096:2:16:8", in KiB
        ((7, 5), "2.13.0", 8_519_680),
        ((10, 0), "2.11.0", 8_519_680),
        ((10, 0), "2.12.0", 32 * MIB),
        ((11, 0), "2.13.0", 8_519_680),
        ((12, 0), "2.11.0+cu130", 8_519_680),
        ((12, 0), "2.13.1", 32 * MIB),
    ],
)
def test_workspace_by_card_and_version(capability: tuple[int, int], version: str, size: int) -> None:
    assert cublas_workspace_bytes(capability, version) == size


def test_the_workspace_of_biases_is_shared_since_torch_2_12() -> None:
    assert cublaslt_workspace_bytes("2.11.0") == MIB
    assert cublaslt_workspace_bytes("2.13.0") == 0


def test_without_torch_the_newest_known_version_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card, "find_spec", lambda _: None)
    assert_newest()


def test_a_folder_of_that_name_is_not_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_version(_: str) -> str:
        raise PackageNotFoundError

    monkeypatch.setattr("importlib.metadata.version", no_version)
    assert_newest()


def assert_newest() -> None:
    card.installed_torch_version.cache_clear()
    try:
        assert cublas_workspace_bytes((12, 0)) == 32 * MIB
    finally:
        card.installed_torch_version.cache_clear()
