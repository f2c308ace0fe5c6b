"""Operations that torch composes differently on CUDA."""

import pytest
import torch
from emulated.compared import CARDS, recorded, simulated
from emulated.scenarios import KERNELS

from profiler.domain.cards.gpu import KNOWN_GPUS
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


@pytest.mark.parametrize(("dtype", "bytes_per_score"), [(torch.float32, 5), (torch.float16, 5)])
def test_attention_by_products_drops_as_cuda_does(dtype: torch.dtype, bytes_per_score: int) -> None:
    """A mask of 1 B and another result of 4 B per score.

    torch 2.13's CUDA build on the emulated T4 keeps 5.75 B per score of 4 x 8 x 512 x 512 in float16 without dropout,
    10.75 B with it. Other devices keep noise of 4 B in place of the mask.
    """

    def kept(dropout: float) -> int:
        simulation = Simulation(KNOWN_GPUS["t4-16gb"])
        with simulation.running():
            simulation.recorder.enter(Phase.FORWARD)
            parts = [
                torch.empty((2, heads, 64, 32), dtype=dtype, device="meta", requires_grad=True) for heads in (4, 2, 2)
            ]
            output = torch.nn.functional.scaled_dot_product_attention(
                *parts, dropout_p=dropout, is_causal=True, enable_gqa=True
            )
            assert output.requires_grad
            trace = simulation.recorder.finished()
        live = [0] * len(trace.sizes_bytes)
        for event in trace.events:
            live[abs(event) - 1] = trace.sizes_bytes[abs(event) - 1] if event > 0 else 0
        return sum(live)

    assert kept(0.1) - kept(0.0) == 2 * 4 * 64 * 64 * bytes_per_score


def test_cpu_tensors_are_unchanged() -> None:
    values = torch.tensor([[0.0, 1.0]], dtype=torch.float16)
    expected = torch.softmax(values, dim=-1, dtype=torch.float32)
    with Simulation(KNOWN_GPUS["h100-80gb"]).running():
        assert torch.equal(torch.softmax(values, dim=-1, dtype=torch.float32), expected)
