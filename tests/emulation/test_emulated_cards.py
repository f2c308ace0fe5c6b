"""Cards as the emulated driver reads them."""

import pytest

from profiler.domain.cards.capabilities import CAPABILITIES
from profiler.domain.cards.card import cuda_context_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, Chip, Gpu
from profiler.emulation.card import card_description


def fields(gpu: Gpu) -> dict[str, str]:
    return dict(each.split("=", 1) for each in card_description(gpu).split(";"))


@pytest.mark.parametrize("gpu", KNOWN_GPUS.values(), ids=lambda gpu: gpu.name)
def test_every_card_is_described_by_its_own_numbers(gpu):
    found = fields(gpu)
    assert found["name"] == gpu.title
    assert int(found["memory_bytes"]) == gpu.memory_bytes
    assert (int(found["capability_major"]), int(found["capability_minor"])) == gpu.compute_capability
    assert int(found["multiprocessors"]) == gpu.chip.multiprocessors
    assert int(found["context_bytes"]) == cuda_context_bytes(gpu.compute_capability)
    assert gpu.compute_capability in {row.version for row in CAPABILITIES}
    assert gpu.board is not None
    # NVML counts the driver's own part as well: up to 2.1 % more.
    assert 1 <= int(found["nvml_memory_bytes"]) / gpu.memory_bytes < 1.021


@pytest.mark.parametrize(("name", "shared", "ecc"), [("h100-80gb", 232_448, "1"), ("rtx-4090-24gb", 101_376, "0")])
def test_shared_memory_of_a_block_and_counting_of_errors(name, shared, ecc):
    found = fields(KNOWN_GPUS[name])
    assert int(found["shared_per_block"]) == shared
    assert found["ecc"] == ecc


def test_an_unknown_card_has_the_shared_memory_of_the_nearest_lower_capability():
    chip = Chip(compute_capability=(8, 7), multiprocessors=16)
    found = fields(Gpu(name="other", title="Other; card", memory_bytes=8 * 2**30, chip=chip, source="none"))
    assert found["shared_per_multiprocessor"] == str(100 * 1024)
    assert found["name"] == "Other, card"
    assert found["nvml_memory_bytes"] == str(8 * 2**30)
