"""The simulated GPU: its trace and its host values."""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from profiler.allocator.traces.replay import replay
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.simulation.device import op_cache, simulated_gpu
from profiler.simulation.device.op_cache import known_plans
from profiler.simulation.device.simulated_gpu import UnsupportedOperationError
from profiler.simulation.session import Simulation
from profiler.simulation.tracing.host_values import host_value


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    simulation = Simulation(KNOWN_GPUS["a100-40gb"])
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        yield simulation


def test_a_tensor_is_memory_until_its_storage_is_gone(simulation: Simulation) -> None:
    tensor = torch.empty(1000, device="meta")
    view = tensor[:10]
    del tensor
    again = torch.empty(1, device="meta")
    del view, again
    trace = simulation.recorder.finished()
    # Allocated, allocated, and freed in the order their last user went.
    assert trace.events == (1, 2, -1, -2)
    assert trace.sizes_bytes == (4000, 4)


def test_tensors_on_the_cpu_are_no_memory_and_have_values(simulation: Simulation) -> None:
    assert (torch.ones(3, device="cpu") * 2).tolist() == [2.0, 2.0, 2.0]
    assert simulation.recorder.finished().events == ()


def test_moving_to_the_gpu_allocates_and_keeps_the_value(simulation: Simulation) -> None:
    host = torch.tensor([[1, 0], [1, 1]])
    mask = host.to("meta").bool()
    host.zero_()  # the copy is a copy
    assert simulation.recorder.finished().sizes_bytes[0] == 4 * 8
    assert mask.sum().item() == 3
    assert bool(mask.all()) is False
    assert mask.any(dim=1).tolist() == [True, True]
    assert mask.cpu().tolist() == [[True, False], [True, True]]


def test_a_tensor_of_data_is_made_where_the_context_says(simulation: Simulation) -> None:
    """As the scale of Gemma's embedding, a buffer of its model."""
    with torch.device("meta"):
        scale = torch.tensor(45.25, dtype=torch.bfloat16)
        on_host = torch.tensor(1.0, device="cpu")
    assert simulation.recorder.finished().sizes_bytes == (2,)
    assert (scale.item(), on_host.item()) == (45.25, 1.0)


def test_indexing_by_a_mask_takes_the_positions_that_are_set(simulation: Simulation) -> None:
    hidden = torch.empty((2, 2, 8), device="meta", requires_grad=True)
    mask = torch.tensor([[True, False], [True, True]], device="meta")
    taken = hidden[mask]
    assert taken.shape == (3, 8)
    assert mask.nonzero().shape == (3, 2)
    taken.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.shape == (2, 2, 8)


def test_writing_into_a_view_updates_the_host_value(simulation: Simulation) -> None:
    labels = torch.tensor([[5, 6, 7]], device="meta")
    labels[:, :-1] = -100
    assert labels.tolist() == [[-100, -100, 7]]


def test_a_write_without_a_host_value_drops_the_host_value(simulation: Simulation) -> None:
    known = torch.zeros(2, dtype=torch.bool, device="meta")
    view = known[:1]
    known.logical_or_(torch.empty(2, dtype=torch.bool, device="meta"))
    assert known.nonzero().shape == (2, 1)  # nothing known: every position may be set
    assert view.nonzero().shape == (1, 1)


def test_angles_have_no_host_value_and_positions_have(simulation: Simulation) -> None:
    positions = torch.tensor([[0, 1, 2]], device="meta")
    angles = positions.float().cos()
    assert host_value(angles) is None
    assert host_value(torch.cat((angles, positions.float().sin()), dim=-1)) is None
    assert (positions + 1).tolist() == [[1, 2, 3]]


def test_a_number_without_a_host_value_is_a_placeholder(simulation: Simulation) -> None:
    loss = torch.empty((), device="meta")
    assert loss.item() == 1.0
    assert bool(torch.isnan(loss)) is False


def test_backward_frees_what_forward_kept(simulation: Simulation) -> None:
    weight = nn.Parameter(torch.empty((64, 64), device="meta"))
    output = torch.empty((128, 64), device="meta") @ weight
    output.sum().backward()
    del output
    gc.collect()
    trace = simulation.recorder.finished()
    live = {event - 1 for event in trace.events if event > 0} - {-event - 1 for event in trace.events if event < 0}
    of_tensors = [block for block in live if trace.categories[block] is not Category.WORKSPACE]
    assert [trace.sizes_bytes[block] for block in of_tensors] == [64 * 64 * 4, 64 * 64 * 4]  # the weight, its gradient


def test_a_context_attributes_its_allocations(simulation: Simulation) -> None:
    with simulation.attributed(Category.KV_CACHE):
        kept = torch.empty(128, device="meta")
    other = torch.empty(128, dtype=torch.int32, device="meta")
    peaks = replay(simulation.recorder.finished())
    assert peaks.breakdown == {Category.KV_CACHE: 512, Category.INPUTS: 512}
    del kept, other


def test_host_side_tensors_are_no_memory(simulation: Simulation) -> None:
    with simulation.host_side():
        skeleton = torch.empty(1000, device="meta")
    assert simulation.recorder.finished().events == ()
    del skeleton


def test_an_operation_without_a_shape_function_is_named(simulation: Simulation) -> None:
    library = torch.library.Library("simulated_gpu_test", "DEF")
    library.define("unknown(Tensor x) -> Tensor")
    library.impl("unknown", lambda x: x, "CPU")
    with pytest.raises(UnsupportedOperationError, match=r"simulated_gpu_test\.unknown"):
        torch.ops.simulated_gpu_test.unknown(torch.empty(1, device="meta"))


def _layer_trace() -> tuple[tuple[int, ...], tuple[int, ...]]:
    simulation = Simulation(KNOWN_GPUS["h100-80gb"])
    with simulation.running():
        simulation.recorder.enter(Phase.FORWARD)
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 32))
            for _ in range(3):
                rows = torch.empty(16, 32)
                with torch.autocast("meta", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(rows), torch.zeros(16, dtype=torch.int64))
                loss.backward()
                model.zero_grad()
                del loss
        trace = simulation.recorder.finished()
    return tuple(trace.events), tuple(trace.sizes_bytes)


def test_cached_operations_make_the_same_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    remembered = _layer_trace()
    monkeypatch.setattr(op_cache, "REMEMBER", False)
    assert _layer_trace() == remembered


def test_later_runs_take_the_plans_of_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    first, made = _layer_trace(), []
    monkeypatch.setattr(simulated_gpu, "make_plan", lambda *given: made.append(given))
    assert (_layer_trace(), made) == (first, [])


def test_plans_hold_for_what_runs_in_place_of_operations() -> None:
    plans = known_plans({1: max})
    assert known_plans({1: max}) is plans
    assert known_plans({1: min}) is not plans


def test_too_many_plans_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    known_plans({1: max})["an operation"] = None
    monkeypatch.setattr(op_cache, "_MOST_PLANS", 0)
    assert known_plans({1: max}) == {}


def test_the_default_type_decides_what_integers_become(simulation: Simulation) -> None:
    numbers = torch.ones(4, dtype=torch.int64, device="meta")
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.bfloat16):
            torch.set_default_dtype(dtype)
            assert (numbers / 2).dtype is dtype
    finally:
        torch.set_default_dtype(before)
