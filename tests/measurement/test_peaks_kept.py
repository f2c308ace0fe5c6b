"""A peak that a library hides by resetting torch's counters is measured all the same."""

import pytest
import torch

from profiler.measurement.torch_cuda import TorchCuda


@pytest.fixture
def counters(monkeypatch):
    """Scripted peaks of torch, which a reset brings down to what is in use."""
    found = {"allocated": 70, "reserved": 90}
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: found["allocated"])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: found["reserved"])
    monkeypatch.setattr(
        torch.cuda, "reset_peak_memory_stats", lambda device=None: found.update(allocated=10, reserved=20)
    )
    return found


def test_a_reset_by_a_library_loses_no_peak(counters):
    cuda, own = TorchCuda(), torch.cuda.reset_peak_memory_stats
    with cuda.peaks_kept():
        torch.cuda.reset_peak_memory_stats()
        assert counters["allocated"] == 10
        assert (cuda.peak_allocated_bytes(), cuda.peak_reserved_bytes()) == (70, 90)
        counters["allocated"] = 80
        torch.cuda.reset_peak_memory_stats(0)
        assert cuda.peak_allocated_bytes() == 80
    assert torch.cuda.reset_peak_memory_stats is own


def test_the_next_phase_begins_anew(counters):
    cuda = TorchCuda()
    with cuda.peaks_kept():
        torch.cuda.reset_peak_memory_stats()
        cuda.reset()
        assert (cuda.peak_allocated_bytes(), cuda.peak_reserved_bytes()) == (10, 20)
