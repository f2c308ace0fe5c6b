"""torch's CUDA calls, as far as they can be tested without a GPU: they exist and receive the right arguments."""

import inspect
from types import SimpleNamespace

import pytest
import torch

from profiler.domain.memory import GIB
from profiler.measurement.counters.phase_counters import CudaDevice
from profiler.measurement.counters.torch_cuda import TorchCuda


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (torch.cuda.get_device_properties, (0,)),
        (torch.cuda.get_device_capability, (0,)),
        (torch.cuda.mem_get_info, (0,)),
        (torch.cuda.set_per_process_memory_fraction, (0.5, 0)),
        (torch.cuda.synchronize, (0,)),
        (torch.cuda.memory._snapshot, (0,)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_torch_has_what_is_called(function, arguments):
    inspect.signature(function).bind(*arguments)


def test_the_history_takes_the_arguments_it_is_given():
    record = inspect.signature(torch.cuda.memory._record_memory_history_impl)
    record.bind(context="alloc", max_entries=5, stacks="python")


def test_the_allocators_settings_go_to_torch(monkeypatch):
    given = []
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", given.append)
    TorchCuda().set_allocator_settings("expandable_segments:True")
    assert given == ["expandable_segments:True"]


def test_every_method_of_the_protocol_is_there():
    wanted = {name for name in dir(CudaDevice) if not name.startswith("_")}
    assert wanted <= set(dir(TorchCuda))
    for name in wanted:
        assert inspect.signature(getattr(TorchCuda, name)) == inspect.signature(getattr(CudaDevice, name))


@pytest.fixture
def card(monkeypatch):
    """Scripted values of torch for a card, and the calls it received."""
    calls: dict[str, object] = {}
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=140 * GIB, uuid="1111-22")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.setdefault("emptied", True))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda fraction, device: calls.setdefault("fraction", fraction)
    )
    stats = {"inactive_split_bytes": {"all": {"peak": 7}}, "num_alloc_retries": 2, "num_ooms": 1}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", lambda device: stats, raising=False)
    return calls


def test_what_torch_says_of_the_card(card):
    cuda = TorchCuda()
    assert (cuda.name(), cuda.uuid(), cuda.total_bytes()) == ("NVIDIA H200", "GPU-1111-22", 140 * GIB)
    assert cuda.free_bytes() == 100 * GIB
    assert (cuda.peak_inactive_split_bytes(), cuda.alloc_retries(), cuda.failed_allocations()) == (7, 2, 1)
    cuda.limit_allocator(35 * GIB)
    assert card["fraction"] == 0.25


@pytest.mark.parametrize("refused", [True, False])
def test_whether_the_card_gives_so_much_is_tried(card, monkeypatch, refused):
    asked: list[object] = []

    def empty(size_bytes, *, dtype, device):
        asked.append((size_bytes, dtype, device))
        if refused:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch, "empty", empty)
    assert TorchCuda().can_allocate(5) is not refused
    assert asked == [(5, torch.uint8, torch.device("cuda", 0))]
    assert ("emptied" in card) is not refused


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_what_is_out_of_memory(error, ran_out):
    assert TorchCuda().is_out_of_memory(error) is ran_out


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_BAD_PARAM"), False),
        (ValueError("CUDNN_STATUS_INTERNAL_ERROR"), False),
    ],
)
def test_what_a_library_says_without_a_handle(error, lacks):
    assert TorchCuda().has_no_handle(error) is lacks


def test_torchs_observer_of_refusals_is_used_where_there_is_one(monkeypatch):
    attached: list[object] = []
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attached.append, raising=False)
    heard: list[tuple[int, int]] = []
    TorchCuda().when_out_of_memory(lambda requested, free: heard.append((requested, free)))
    (observer,) = attached
    observer(0, 5 * GIB, 140 * GIB, 3 * GIB)
    assert heard == [(5 * GIB, 3 * GIB)]


def test_a_build_without_one_does_without(monkeypatch):
    monkeypatch.delattr(torch._C, "_cuda_attach_out_of_memory_observer", raising=False)
    TorchCuda().when_out_of_memory(lambda requested, free: None)
