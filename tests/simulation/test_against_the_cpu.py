"""Autograd keeps the same bytes for backward in the simulation as on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from simulating import small_spec

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import Attention, Dtype
from profiler.simulation.session import Simulation
from profiler.training.models.model import build_config, build_model
from profiler.training.placement import Placement, RealDevice

IDS = torch.arange(48).reshape(2, 24)


def model_on(placement: Placement) -> Any:
    # Neither autocast nor a fused kernel: what is left is the same on every device.
    spec = small_spec(dtype=Dtype.FLOAT32, attn_implementation=Attention.EAGER)
    return build_model(spec, build_config(BUILTIN_MODELS["tiny"].config, name="tiny"), placement).train()


@contextmanager
def kept_for_backward(model: Any) -> Iterator[dict[int, int]]:
    """Bytes of each storage that autograd keeps, by address, without parameters and buffers."""
    own = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, int] = {}
    alive: list[torch.Tensor] = []  # so that no address is used twice

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield kept


def kept_on_the_cpu() -> int:
    model = model_on(RealDevice(device=torch.device("cpu")))
    with kept_for_backward(model) as kept:
        loss = model(input_ids=IDS, use_cache=False).logits.float().logsumexp(-1).sum()
    assert loss.isfinite()
    return sum(kept.values())


def kept_in_simulation() -> int:
    simulation = Simulation(KNOWN_GPUS["h100-80gb"])
    with simulation.running():
        simulation.recorder.enter(Phase.LOAD)
        model = model_on(simulation)
        simulation.recorder.attribute([*model.named_parameters(), *model.named_buffers()], Category.WEIGHTS)
        simulation.recorder.enter(Phase.FORWARD)
        loss = model(input_ids=IDS.to("meta"), use_cache=False).logits.float().logsumexp(-1).sum()
        trace = simulation.recorder.finished()
        del loss
    live: dict[int, int] = {}
    for event in trace.events:
        if event > 0:
            live[event - 1] = trace.sizes_bytes[event - 1]
        else:
            del live[-event - 1]
    loss_bytes = 4
    # The CPU has no cuBLAS.
    by_capability = (Category.WEIGHTS, Category.WORKSPACE)
    return sum(size for block, size in live.items() if trace.categories[block] not in by_capability) - loss_bytes


def test_autograd_keeps_the_same_bytes() -> None:
    assert kept_in_simulation() == pytest.approx(kept_on_the_cpu(), rel=0.001)
