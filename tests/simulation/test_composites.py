"""Operations that torch composes differently on CUDA."""

import pytest
import torch
from emulated.compared import CARDS, recorded, simulated
from emulated.scenarios import KERNELS

from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.memory import Phase
from profiler.simulation.session import Simulation

SCORES = 4 * 100 * 500


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize("name", [name for name in KERNELS if "softmax" in name])
def test_a_softmax_allocates_what_torch_allocates(gpu: str, name: str) -> None:
    assert simulated(gpu, name, KERNELS[name]) == recorded(gpu, name)


def made(dtype: torch.dtype, function: str) -> list[int]:
    simulation = Simulation(KNOWN_GPUS["h100-80gb"])
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        scores = torch.empty((4, 100, 500), dtype=dtype, device="meta")
        result = getattr(torch, function)(scores, dim=-1, dtype=torch.float32)
        assert result.dtype is torch.float32
        return list(simulation.recorder.finished().sizes_bytes[1:])


@pytest.mark.parametrize("function", ["softmax", "log_softmax"])
def test_only_float16_needs_no_copy_by_hand(function: str) -> None:
    assert made(torch.float16, function) == [SCORES * 4]
    assert made(torch.bfloat16, function) == [SCORES * 4, SCORES * 4]
    assert made(torch.float32, function) == [SCORES * 4]


@pytest.mark.parametrize(("p", "kept"), [(0.1, [1000, 2000]), (0.0, [])])
def test_dropout_keeps_one_byte_per_element(p: float, kept: list[int]) -> None:
    """The mask, which CUDA allocates before the result; other devices keep noise of the result's size."""
    simulation = Simulation(KNOWN_GPUS["h100-80gb"])
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        values = torch.empty(1000, dtype=torch.bfloat16, device="meta", requires_grad=True)
        dropped = torch.nn.functional.dropout(values, p)
        assert dropped.shape == values.shape
        assert list(simulation.recorder.finished().sizes_bytes[1:]) == kept


def test_cpu_tensors_are_unchanged() -> None:
    values = torch.tensor([[0.0, 1.0]], dtype=torch.float16)
    expected = torch.softmax(values, dim=-1, dtype=torch.float32)
    with Simulation(KNOWN_GPUS["h100-80gb"]).running():
        assert torch.equal(torch.softmax(values, dim=-1, dtype=torch.float32), expected)
