"""Emptying the allocator's cache on the simulated card."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from accelerate.utils import memory as accelerate_memory
from hypothesis import given
from hypothesis import strategies as some

from profiler.allocator import AllocatorConfig, replay_on_card
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import MIB, Phase
from profiler.simulation.cuda.offloading import emptied_cache
from profiler.simulation.session import Simulation
from profiler.simulation.tracing.recorder import Recorder

WAYS: dict[str, Callable[[], None]] = {
    "torch": lambda: torch.cuda.empty_cache(),
    "accelerate": lambda: accelerate_memory.clear_device_cache(),
    "accelerate's release_memory": lambda: accelerate_memory.release_memory(None),
}


@pytest.mark.parametrize("way", WAYS)
def test_each_call_is_recorded(way: str) -> None:
    simulation = Simulation(KNOWN_GPUS["h100-80gb"])
    with simulation.running():
        simulation.recorder.enter(Phase.LOAD)
        kept = torch.empty(1024, device="meta")
        torch.empty(1024, device="meta")
        WAYS[way]()
        torch.empty(1024, device="meta")
        del kept
    # One block, another one and its end come before.
    assert simulation.recorder.finished().cache_emptied == (3,)


def test_the_cache_is_released_to_the_card() -> None:
    def reserved_at_the_end(empties: bool) -> int:
        simulation = Simulation(KNOWN_GPUS["h100-80gb"])
        with simulation.running():
            simulation.recorder.enter(Phase.LOAD)
            torch.empty(100 * MIB, dtype=torch.uint8, device="meta")
            if empties:
                torch.cuda.empty_cache()
            simulation.recorder.enter(Phase.ROLLOUT)
            # Too large for what is in the cache.
            torch.empty(200 * MIB, dtype=torch.uint8, device="meta")
        trace = simulation.recorder.finished()
        return replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig()).peak_reserved_bytes

    assert reserved_at_the_end(empties=False) == 300 * MIB
    assert reserved_at_the_end(empties=True) == 200 * MIB


def test_accelerate_collects_garbage_on_request() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    gc.disable()
    try:
        with emptied_cache(Recorder()):
            gone = weakref.ref(Cycle())
            accelerate_memory.clear_device_cache()
            assert gone() is not None
            accelerate_memory.clear_device_cache(garbage_collection=True)
            assert gone() is None
    finally:
        gc.enable()


def test_torch_is_restored() -> None:
    before = torch.cuda.empty_cache, accelerate_memory.clear_device_cache
    with emptied_cache(Recorder()):
        assert torch.cuda.empty_cache is not before[0]
    assert (torch.cuda.empty_cache, accelerate_memory.clear_device_cache) == before


@given(some.lists(some.booleans(), max_size=20))
def test_every_call_has_the_place_among_the_events(empties: list[bool]) -> None:
    recorder = Recorder()
    recorder.enter(Phase.LOAD)
    with emptied_cache(recorder):
        for empty in empties:
            torch.cuda.empty_cache() if empty else recorder.temporary(512)
    expected = [2 * empties[:place].count(False) for place, empty in enumerate(empties) if empty]
    assert recorder.trace.cache_emptied == expected
