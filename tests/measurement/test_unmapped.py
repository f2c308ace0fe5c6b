"""Memory of vLLM that torch's counters include while it sleeps."""

import sys
from types import SimpleNamespace

import pytest
from scripted import Clock

from profiler.domain.memory import Phase
from profiler.measurement.phase_counters import PhaseCounters
from profiler.measurement.unmapped import Unmapped, unmapped_during, unmapped_now

AWAKE, ASLEEP, FREED = 100, 200, 300
"""Addresses of segments."""


def _segment(address: int, allocated: int, total: int) -> dict[str, int]:
    return {"address": address, "allocated_size": allocated, "total_size": total}


@pytest.fixture
def engine(monkeypatch):
    """An allocator of vLLM with one segment that is awake, one that sleeps, and one that was returned for good."""
    pool = SimpleNamespace(snapshot=lambda: [_segment(AWAKE, 10, 16), _segment(ASLEEP, 70, 80), _segment(FREED, 0, 4)])
    data = {AWAKE: SimpleNamespace(is_asleep=False), ASLEEP: SimpleNamespace(is_asleep=True)}
    instance = SimpleNamespace(pointer_to_data=data, allocator_and_pools={"weights": (pool, None)})
    module = SimpleNamespace(CuMemAllocator=SimpleNamespace(instance=instance))
    monkeypatch.setitem(sys.modules, "vllm.device_allocator.cumem", module)
    return instance


def test_nothing_is_unmapped_without_vllm(monkeypatch):
    monkeypatch.delitem(sys.modules, "vllm.device_allocator.cumem", raising=False)
    assert unmapped_now() == unmapped_during(Phase.FORWARD) == Unmapped()


def test_what_sleeps_is_gone_but_in_phases_in_which_it_wakes(engine):
    gone = Unmapped(allocated_bytes=70, reserved_bytes=84)
    assert unmapped_now() == unmapped_during(Phase.BACKWARD) == gone
    assert unmapped_during(Phase.ROLLOUT) == unmapped_during(Phase.LOAD) == Unmapped(reserved_bytes=4)


def test_the_counters_of_a_phase_lack_what_is_gone(engine):
    counters = SimpleNamespace(
        synchronize=lambda: None,
        reset=lambda: None,
        peak_allocated_bytes=lambda: 1_000,
        peak_reserved_bytes=lambda: 2_000,
    )
    observer = PhaseCounters(counters, clock=Clock(), unmapped=unmapped_during)
    for phase in (Phase.ROLLOUT, Phase.FORWARD):
        observer.enter(phase)
    observer.read()
    peaks = {one.phase: (one.peak_allocated_bytes, one.peak_reserved_bytes) for one in observer.step_peaks()}
    assert peaks == {Phase.ROLLOUT: (1_000, 1_996), Phase.FORWARD: (930, 1_916)}
