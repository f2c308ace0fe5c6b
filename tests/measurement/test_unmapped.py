"""Memory of vLLM that torch's counters include while it sleeps."""

import sys
from types import SimpleNamespace

import pytest
from scripted import Clock

from profiler.domain.memory import Phase
from profiler.measurement.counters.phase_counters import PhaseCounters, Unmapped, VllmMapping, unmapped_now

AWAKE, ASLEEP, FREED = 100, 200, 300
"""Addresses of segments."""


def _segment(address: int, allocated: int, total: int) -> dict[str, int]:
    return {"address": address, "allocated_size": allocated, "total_size": total}


class FakeAllocator:
    """vLLM's allocator with one segment that is awake, one that sleeps, and one that was returned for good."""

    __module__, __qualname__ = "vllm.device_allocator.cumem", "CuMemAllocator"  # as the seams name it

    def __init__(self):
        segments = [_segment(AWAKE, 10, 16), _segment(ASLEEP, 70, 80), _segment(FREED, 0, 4)]
        pool = SimpleNamespace(snapshot=lambda: segments)
        self.pointer_to_data = {AWAKE: SimpleNamespace(is_asleep=False), ASLEEP: SimpleNamespace(is_asleep=True)}
        self.allocator_and_pools = {"weights": (pool, None)}

    def wake_up(self, tags):
        self.pointer_to_data[ASLEEP].is_asleep = False
        return tags

    def sleep(self, offload_tags):
        for data in self.pointer_to_data.values():
            data.is_asleep = True


class FakeCounters:
    """Counters of torch, which go on counting what is unmapped: the peak starts at what is in use."""

    def __init__(self):
        self.in_use = 0
        self.peak = 0

    def use(self, size_bytes):
        self.in_use = size_bytes
        self.peak = max(self.peak, size_bytes)

    def synchronize(self):
        """Do nothing."""

    def reset(self):
        self.peak = self.in_use

    def peak_allocated_bytes(self):
        return self.peak

    def peak_reserved_bytes(self):
        return self.peak


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(FakeAllocator, "instance", FakeAllocator(), raising=False)
    module = SimpleNamespace(CuMemAllocator=FakeAllocator)
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.cumem", module)
    return FakeAllocator.instance


def test_nothing_is_unmapped_without_vllm(monkeypatch):
    monkeypatch.delitem(sys.modules, "vllm.device_allocator.cumem", raising=False)
    mapping = VllmMapping(changed=lambda: None)
    assert unmapped_now() == mapping.unmapped() == Unmapped()
    mapping.close()


def test_what_sleeps_or_was_returned_is_gone(engine):
    assert unmapped_now() == Unmapped(allocated_bytes=70, reserved_bytes=84)
    engine.wake_up(["weights"])
    assert unmapped_now() == Unmapped(reserved_bytes=4)


def test_a_phase_in_which_the_engine_wakes_has_the_peak_of_what_is_on_the_card(engine):
    """The trainer's cache of 300 is emptied before the engine wakes, so the two are never there together."""
    torch_counts, seen = FakeCounters(), []
    mapping = VllmMapping(changed=lambda: seen.append(observer.mapping_changed()))
    observer = PhaseCounters(torch_counts, clock=Clock(), unmapped=mapping.unmapped)
    torch_counts.use(384)  # 300 of the trainer, 84 that sleep or were returned
    observer.enter(Phase.ROLLOUT)
    torch_counts.use(184)
    assert engine.wake_up(["weights"]) == ["weights"]
    torch_counts.use(284)  # 200 of the trainer
    engine.sleep(())
    torch_counts.use(150)
    observer.enter(Phase.FORWARD)
    torch_counts.use(300)
    observer.read()
    peaks = {one.phase: one.peak_reserved_bytes for one in observer.step_peaks()}
    assert peaks == {Phase.ROLLOUT: 300, Phase.FORWARD: 200}
    assert len(seen) == 2
    mapping.close()
    engine.wake_up([])
    assert len(seen) == 2
