"""Counters of the callback: one call of torch for all, and none before the program has used CUDA."""

import pytest
import torch

from profiler.domain.runs.other_runs import NamedCard
from profiler.measurement.counters.torch_cuda import CheapCuda

CARD = NamedCard(uuid="GPU-1", name="card", memory_bytes=80, compute_capability=(9, 0))
STATS = {
    "allocated_bytes": {"all": {"current": 1, "peak": 2}, "small_pool": {"current": 7, "peak": 7}},
    "reserved_bytes": {"all": {"current": 3, "peak": 4}},
    "inactive_split_bytes": {"all": {"current": 0, "peak": 5}},
    "num_alloc_retries": 6,
    "num_ooms": 8,
}


def counters(cuda):
    return (
        cuda.allocated_bytes(),
        cuda.peak_allocated_bytes(),
        cuda.reserved_bytes(),
        cuda.peak_reserved_bytes(),
        cuda.peak_inactive_split_bytes(),
        cuda.alloc_retries(),
        cuda.failed_allocations(),
    )


@pytest.fixture
def asked(monkeypatch):
    calls = []
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", lambda device: calls.append(device) or STATS, raising=False)
    return calls


def test_all_counters_come_from_one_call(asked, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: pytest.fail("it waits for the GPU"))
    cuda = CheapCuda(CARD, device=3)
    cuda.synchronize()
    assert counters(cuda) == (1, 2, 3, 4, 5, 6, 8)
    assert asked == [3]


def test_before_cuda_is_used_it_stays_untouched(asked, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    cuda = CheapCuda(CARD)
    cuda.synchronize()
    assert counters(cuda) == (0,) * 7
    assert asked == []
