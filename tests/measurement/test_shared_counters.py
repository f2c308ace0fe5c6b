"""The profiler and the program that it watches each see the counters of torch as if they were alone."""

import pytest
import torch

from profiler.measurement.counters.torch_cuda import SharedCounters


class Allocator:
    """Counters of torch for two devices, by the functions of torch that all others end in."""

    def __init__(self):
        self.in_use, self.peak, self.retries = {0: 0, 1: 0}, {0: 0, 1: 0}, 0

    def use(self, size, device=0):
        self.in_use[device] = size
        self.peak[device] = max(self.peak[device], size)

    def stats(self, device):
        leaf = {"current": self.in_use[device], "peak": self.peak[device], "allocated": 5, "freed": 5}
        pools = {"all": leaf, "large_pool": dict(leaf)}
        return {
            "allocated_bytes": pools,
            "reserved_bytes_by_private_pools": {(0, 1): {"all": dict(leaf)}},
            "num_alloc_retries": self.retries,
            "num_ooms": 0,
        }

    def reset_peaks(self, device):
        self.peak[device] = self.in_use[device]

    def reset_sums(self, device):
        self.retries = 0


@pytest.fixture
def allocator(monkeypatch):
    card = Allocator()
    for name, function in {
        "_cuda_memoryStats": card.stats,
        "_accelerator_getDeviceStats": card.stats,
        "_cuda_resetPeakMemoryStats": card.reset_peaks,
        "_accelerator_resetPeakStats": card.reset_peaks,
        "_cuda_resetAccumulatedMemoryStats": card.reset_sums,
        "_accelerator_resetAccumulatedStats": card.reset_sums,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getAccelerator": lambda: torch.device("cuda"),
        "_accelerator_getDeviceIndex": lambda: 0,
    }.items():
        monkeypatch.setattr(torch._C, name, function, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda.memory, "_get_device_index", lambda device, optional=False: device or 0)
    return card


def peak_of(counters):
    return counters.read()["allocated_bytes"]["all"]["peak"]


PEAKS_OF_THE_PROGRAM = [
    lambda: torch.cuda.max_memory_allocated(),
    lambda: torch.cuda.memory_stats()["allocated_bytes.large_pool.peak"],
    lambda: torch.cuda.memory_stats()["reserved_bytes_by_private_pools.0_1.all.peak"],
    lambda: torch.cuda.memory.max_memory_allocated(0),
    lambda: torch.accelerator.max_memory_allocated(0),
]
RESETS_OF_THE_PROGRAM = [
    lambda: torch.cuda.reset_peak_memory_stats(),
    lambda: torch.cuda.memory.reset_peak_memory_stats(0),
    lambda: torch.cuda.reset_max_memory_allocated(0),
    lambda: torch.accelerator.reset_peak_memory_stats(0),
]


@pytest.mark.parametrize("peak", PEAKS_OF_THE_PROGRAM)
def test_a_reset_of_the_profiler_hides_no_peak_from_the_program(allocator, peak):
    counters = SharedCounters(0)
    with counters.shown_to_the_program():
        allocator.use(453)
        allocator.use(10)
        counters.reset()
        allocator.use(252)
        assert (peak_of(counters), peak()) == (252, 453)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("reset", RESETS_OF_THE_PROGRAM)
def test_a_reset_of_the_program_hides_no_peak_from_the_profiler(allocator, reset):
    counters = SharedCounters(0)
    with counters.shown_to_the_program():
        allocator.use(70)
        allocator.use(10)
        reset()
        assert (peak_of(counters), torch.cuda.max_memory_allocated()) == (70, 10)
        allocator.use(80)
        allocator.use(20)
        reset()
        assert (peak_of(counters), torch.cuda.max_memory_allocated()) == (80, 20)
        counters.reset()
        assert (peak_of(counters), torch.cuda.max_memory_allocated()) == (20, 20)


def test_peaks_from_before_the_program_is_watched_are_its_own(allocator):
    allocator.use(90)
    allocator.use(10)
    counters = SharedCounters(0)
    counters.reset()
    with counters.shown_to_the_program():
        assert torch.cuda.max_memory_allocated() == 90


def test_another_device_is_the_programs_alone(allocator):
    counters = SharedCounters(0)
    with counters.shown_to_the_program():
        allocator.use(90)
        allocator.use(60, device=1)
        counters.reset()
        assert torch.cuda.max_memory_allocated(1) == 60
        torch.cuda.reset_peak_memory_stats(1)
        assert torch.cuda.max_memory_allocated(0) == 90


@pytest.mark.parametrize(
    "reset", [torch.cuda.reset_accumulated_memory_stats, torch.accelerator.reset_accumulated_memory_stats]
)
def test_retries_from_before_a_reset_of_the_sums_count(allocator, reset):
    counters = SharedCounters(0)
    with counters.shown_to_the_program():
        for retries in (2, 3):
            allocator.retries = retries
            reset(0)
            assert torch.cuda.memory_stats()["num_alloc_retries"] == 0
        allocator.retries = 4
        assert counters.read()["num_alloc_retries"] == 2 + 3 + 4


def test_a_second_profiler_is_a_part_of_the_program(allocator):
    outer = SharedCounters(0)
    with outer.shown_to_the_program():
        inner = SharedCounters(0)
        with inner.shown_to_the_program():
            allocator.use(100)
            allocator.use(10)
            inner.reset()
            allocator.use(50)
            allocator.use(20)
            outer.reset()
            allocator.use(30)
            assert (peak_of(outer), peak_of(inner), torch.cuda.max_memory_allocated()) == (30, 50, 100)


def test_torchs_functions_are_its_own_again_afterwards(allocator):
    before = torch._C._cuda_memoryStats
    with SharedCounters(0).shown_to_the_program():
        assert torch._C._cuda_memoryStats is not before
    assert torch._C._cuda_memoryStats == before


def test_a_build_without_cuda_has_nothing_to_share(monkeypatch):
    monkeypatch.delattr(torch._C, "_cuda_memoryStats", raising=False)
    reads = torch._C._accelerator_getDeviceStats
    counters = SharedCounters(0)
    with counters.shown_to_the_program():
        assert torch._C._accelerator_getDeviceStats is reads
    assert counters.read() == {}
