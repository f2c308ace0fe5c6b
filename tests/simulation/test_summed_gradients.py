"""Where autograd sums gradients in place: the simulation allocates in backward what the CPU allocates for real."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from measured_on_cpu import sizes_taken
from torch.utils._python_dispatch import TorchDispatchMode

from profiler.domain.memory import Phase
from profiler.simulation.device import SimulatedGpu
from profiler.simulation.recorder import Recorder
from profiler.simulation.summed_gradients import holders_of_a_sum

ROWS, WIDTH = 64, 96
BYTES = ROWS * WIDTH * 4
Graph = Callable[[torch.Tensor], torch.Tensor]


class AddsItself(torch.autograd.Function):
    """Its backward makes a sum of its own, which nothing but the engine's sums may turn into one in place."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].sin() + gradients[0]


def residual(x: torch.Tensor) -> torch.Tensor:
    # The gradient of a sum goes to both sides and is one tensor: the other side still holds it.
    y = x + x.sin()
    return y + y.exp()


def tied_head(weight: torch.Tensor) -> torch.Tensor:
    # What waits for the embedding's gradient is a transposed view of the product's: the sum is a third tensor.
    ids = torch.arange(8, device=weight.device)
    return torch.nn.functional.linear(torch.nn.functional.embedding(ids, weight).sin(), weight)


GRAPHS: dict[str, Graph] = {
    "used twice": lambda x: x.sin() * x.cos(),
    "used three times": lambda x: x.sin() * x.cos() * x.exp(),
    "residual": residual,
    "views": lambda x: x.view(-1).sin() * x.view(-1).cos(),
    "expanded": lambda x: x.sum(0, keepdim=True).expand(ROWS, WIDTH) * x.sum(),
    "weight used in two products": lambda x: (x @ x.t()).sin() @ x,
    "tied head": tied_head,
    "a sum of its own": lambda x: AddsItself.apply(x) * AddsItself.apply(x.sin()),
}


def loss(graph: Graph, x: torch.Tensor) -> torch.Tensor:
    # With a sine the gradient is a tensor of its own: of expanded ones the CPU's products make copies.
    return graph(x.exp()).sin().sum()


def tensors(sizes: list[int]) -> list[int]:
    """Without scalars: a number that stands in Python is on the host."""
    return sorted(size for size in sizes if size > 8)


def on_the_cpu(graph: Graph) -> list[int]:
    result = loss(graph, torch.ones(ROWS, WIDTH, requires_grad=True))
    with torch.profiler.profile(profile_memory=True, acc_events=False) as profile:
        result.backward()
    return tensors(sizes_taken(profile))


def simulated(graph: Graph) -> list[int]:
    recorder = Recorder()
    with SimulatedGpu(recorder, scratch={}):
        result = loss(graph, torch.ones(ROWS, WIDTH, requires_grad=True, device="meta"))
        recorder.enter(Phase.BACKWARD)
        before = len(recorder.trace.sizes_bytes)
        result.backward()
    return tensors(recorder.trace.sizes_bytes[before:])


@pytest.mark.parametrize("name", GRAPHS)
def test_backward_takes_what_it_takes_on_the_cpu(name: str) -> None:
    assert simulated(GRAPHS[name]) == on_the_cpu(GRAPHS[name])


def test_by_hand() -> None:
    # the gradient of the outer sine: cos, product; of the product: two; of sin: cos, product; of cos: sin, its
    # negative, product; their sum in place; of exp: product
    assert simulated(GRAPHS["used twice"]) == [BYTES] * 10


def test_under_a_mode_the_engine_never_adds_in_place() -> None:
    operations: list[str] = []

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operations.append(str(func))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True)
    result = (x.sin() * x.cos()).sum()
    with Seen():
        result.backward()
    # If this fails, the engine adds in place under a mode too, and `summed_gradients` is not needed any more.
    assert "aten.add.Tensor" in operations


def test_holders_are_found_by_trying() -> None:
    references, to_storage = holders_of_a_sum()
    assert references >= 1
    assert to_storage >= 1
