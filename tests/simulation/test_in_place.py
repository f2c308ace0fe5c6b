"""In-place operations of autograd: the simulation allocates in backward what the CPU allocates."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from emulated import compared
from emulated.scenarios import ATTENTION, KERNELS
from measured_on_cpu import sizes_taken
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Phase
from profiler.simulation.device.simulated_gpu import SimulatedGpu
from profiler.simulation.tracing.backward import IN_PLACE, holders_of_a_sum
from profiler.simulation.tracing.recorder import Recorder

ROWS, WIDTH = 64, 96
BYTES = ROWS * WIDTH * 4
Graph = Callable[[torch.Tensor], torch.Tensor]


class AddsItself(torch.autograd.Function):
    """Its backward makes a sum, which must not become one in place: only the engine's own sums do."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].sin() + gradients[0]


class AddsToItsGradient(torch.autograd.Function):
    """Its backward adds to the gradient that it receives, which the engine alone holds as well."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] + gradients[0].sin()


def hooked(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    y.register_hook(lambda gradient: gradient + gradient.sin())
    return y * x


def checkpointed(x: torch.Tensor, *, use_reentrant: bool) -> torch.Tensor:
    """Recomputes in backward; the reentrant way starts an engine of its own there, with sums of its own."""

    def block(y: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = y.sin() + y.cos()
        return y.sin() * y.cos() * scale

    # The state of the generator would be a tensor on the host.
    return checkpoint(block, x, use_reentrant=use_reentrant, preserve_rng_state=False) * x


def residual(x: torch.Tensor) -> torch.Tensor:
    # The gradient of a sum goes to both sides and is one tensor: the other side still holds it.
    y = x + x.sin()
    return y + y.exp()


def tied_head(weight: torch.Tensor) -> torch.Tensor:
    # The first gradient is a transposed view of the product's, so the sum is a third tensor.
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
    "a sum with its gradient": lambda x: AddsToItsGradient.apply(x.cos()) * x.sin(),
    "a hook that adds": hooked,
    "checkpointing": lambda x: checkpointed(x, use_reentrant=False),
    "reentrant checkpointing": lambda x: checkpointed(x, use_reentrant=True),
    "a sum of its own": lambda x: AddsItself.apply(x) * AddsItself.apply(x.sin()),
}


def positions(x: torch.Tensor, rows: int = ROWS) -> torch.Tensor:
    return torch.arange(rows * 8, device=x.device).view(rows, 8) % WIDTH


FORMULAS: dict[str, Graph] = {
    "gather": lambda x: x.gather(1, positions(x)),
    "take_along_dim": lambda x: x.take_along_dim(positions(x), 1),
    "index_select": lambda x: x.index_select(0, positions(x, 1)[0]),
    "repeat_interleave": lambda x: x.repeat_interleave(3, dim=0),
    "index": lambda x: x[positions(x, 1)[0]],
    "take": lambda x: x.take(positions(x)),
    "trace": lambda x: x.trace(),
    "cummax": lambda x: x.cummax(0)[0],
    "cummin": lambda x: x.cummin(1)[0],
    "max": lambda x: x.max(0)[0],
    "min": lambda x: x.min(1)[0],
    "median": lambda x: x.median(1)[0],
    "nanmedian": lambda x: x.nanmedian(1)[0],
    "topk": lambda x: x.topk(5)[0],
    "sort": lambda x: x.sort()[0],
    "kthvalue": lambda x: x.kthvalue(5)[0],
    "mode": lambda x: x.mode()[0],
    "binary cross-entropy": lambda x: torch.nn.functional.binary_cross_entropy_with_logits(x, x.detach()),
    "with weights": lambda x: torch.nn.functional.binary_cross_entropy_with_logits(
        x, x.detach(), pos_weight=x.detach()
    ),
    "clamp": lambda x: x.clamp(x.detach() - 1, x.detach() + 1),
    "clamp between trained bounds": lambda x: x.clamp(x.sin() - 2, x.sin() + 1),
    "variance and mean": lambda x: sum(torch.var_mean(x, dim=0)),
    "stable sort": lambda x: x.sort(stable=True)[0],
    "atan2": lambda x: x.atan2(x.detach()),
}
"""A graph with each formula of `IN_PLACE`."""


def loss(graph: Graph, x: torch.Tensor) -> torch.Tensor:
    # With a sine the gradient is a tensor of its own: of expanded ones the CPU's products make copies.
    return graph(x.exp()).sin().sum()


def tensors(sizes: list[int]) -> list[int]:
    """Without scalars: numbers of Python are on the host."""
    return sorted(size for size in sizes if size > 8)


def on_the_cpu(graph: Graph) -> list[int]:
    result = loss(graph, torch.ones(ROWS, WIDTH, requires_grad=True))
    with torch.profiler.profile(profile_memory=True, acc_events=False) as profile:
        result.backward()
    return tensors(sizes_taken(profile))


def simulated(graph: Graph, device: type[SimulatedGpu] = SimulatedGpu) -> list[int]:
    recorder = Recorder()
    with device(recorder, scratch={}):
        result = loss(graph, torch.ones(ROWS, WIDTH, requires_grad=True, device="meta"))
        recorder.enter(Phase.BACKWARD)
        before = len(recorder.trace.sizes_bytes)
        result.backward()
    return tensors(recorder.trace.sizes_bytes[before:])


@pytest.mark.parametrize("name", GRAPHS)
def test_backward_takes_what_it_takes_on_the_cpu(name: str) -> None:
    assert simulated(GRAPHS[name]) == on_the_cpu(GRAPHS[name])


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_writes_in_place_what_it_does_on_the_cpu(name: str) -> None:
    assert simulated(FORMULAS[name]) == on_the_cpu(FORMULAS[name])


def test_a_mask_selects_in_place() -> None:
    """The selection is known on the CPU only, so the operations are compared and not the bytes."""
    operations: list[str] = []

    class Seen(SimulatedGpu):
        def run(self, func: Any, args: Any, kwargs: Any) -> Any:
            operations.append(str(func))
            return super().run(func, args, kwargs)

    x = torch.ones(ROWS, WIDTH, requires_grad=True, device="meta")
    with torch.fx.experimental._config.patch(meta_nonzero_assume_all_nonzero=True), Seen(Recorder(), scratch={}):
        x.exp().masked_select(x > 0).sum().backward()
    assert "aten.masked_scatter_.default" in operations
    assert "aten.masked_scatter.default" not in operations


def test_a_users_own_backward_keeps_its_operation() -> None:
    """An autograd function that asks for `scatter_add` in Python gets a second tensor, as on a card."""

    class Scatters(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(positions(tensor))
            return tensor.gather(1, positions(tensor))

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            zeros = gradients[0].new_zeros((ROWS, WIDTH))
            return zeros.scatter_add(1, ctx.saved_tensors[0], gradients[0])

    def graph(x: torch.Tensor) -> torch.Tensor:
        return Scatters.apply(x)

    assert simulated(graph) == on_the_cpu(graph)


def test_every_listed_operation_is_still_asked_for_under_a_mode() -> None:
    """If this fails, torch has changed a formula, and its row of `IN_PLACE` can go."""
    asked: set[Any] = set()

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            node = torch._C._current_autograd_node()
            if func in IN_PLACE and node is not None and node.name() in IN_PLACE[func][1]:
                asked.add((func, node.name()))
            return func(*args, **(kwargs or {}))

    masked: Graph = lambda x: x.masked_select(x > 0)  # noqa: E731
    for graph in (*FORMULAS.values(), masked):
        result = graph(torch.ones(ROWS, WIDTH, requires_grad=True).exp()).sum()
        with Seen():
            result.backward()
    assert {func for func, _ in asked} == set(IN_PLACE)
    assert {node for _, node in asked} >= set().union(*(nodes for _, nodes in IN_PLACE.values()))


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
    # If this fails, the engine adds in place under a mode too, and `_sums_in_place` is not needed any more.
    assert "aten.add.Tensor" in operations


def test_holders_are_measured() -> None:
    references, to_storage = holders_of_a_sum()
    assert references >= 1
    assert to_storage >= 1


def test_counts_that_say_nothing_refuse_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_storage_Use_Count", lambda _: 1)
    holders_of_a_sum.cache_clear()
    try:
        with pytest.raises(UnsupportedTrialError, match="_storage_Use_Count of torch"):
            SimulatedGpu(Recorder())
    finally:
        holders_of_a_sum.cache_clear()


@pytest.mark.parametrize("name", GRAPHS)
def test_frames_of_other_modules_change_nothing(name: str) -> None:
    """Between the engine and the simulation there may be any Python, here a handler of this file."""

    class Deeper(SimulatedGpu):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return super().__torch_dispatch__(func, types, args, kwargs)

    assert simulated(GRAPHS[name], device=Deeper) == simulated(GRAPHS[name])


@pytest.mark.parametrize("name", ["gather", "used twice"])
def test_cuda_writes_in_place_what_the_simulation_does(name: str) -> None:
    assert compared.simulated("h100-80gb", name, KERNELS[name]) == compared.recorded("h100-80gb", name)


def test_a_mask_is_added_to_the_scores_of_attention_in_place() -> None:
    name, scores = "attention, untrained, masked, grouped", 2 * 4 * 100 * 100 * 4
    found = compared.simulated("a100-80gb", name, ATTENTION[name])
    assert found == compared.recorded("a100-80gb", name)
    # The scores and their softmax in float32; a sum of its own would be a third.
    assert found.count(scores) == 2
