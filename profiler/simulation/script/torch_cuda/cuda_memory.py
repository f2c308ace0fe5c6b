"""What `torch.cuda.memory` and `torch.accelerator` answer a script, by replaying the trace.

What `torch.cuda.memory` and `torch.accelerator` ask of torch's allocator, answered by a model of it.

torch's own Python functions stay: `memory_stats`, `memory_summary`, `max_memory_allocated`, `_dump_snapshot` and their
kind read the counters by a few functions of `torch._C`, which a build without CUDA lacks.
"""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch

from profiler.allocator import OutOfMemoryError, memory_snapshot, parse_alloc_conf
from profiler.allocator.model.blocks import Block
from profiler.allocator.model.counting import CountingAllocator
from profiler.allocator.traces.trace import TraceBuilder
from profiler.domain.cards.card import installed_torch_version
from profiler.domain.cards.gpu import Gpu
from profiler.seams.patching import Patch
from profiler.simulation.script.torch_cuda.card_names import UnknownReads, nothing, refused, refused_class
from profiler.simulation.tracing.recorder import Recorder


class Counters:
    """What `torch.cuda` counts of a trace that is still being written.

    On a card that is full the counters stay where they are: the script goes on, and the record says that it failed.
    """

    def __init__(self, trace: TraceBuilder, gpu: Gpu, *, alloc_conf: str) -> None:
        self._trace = trace
        self._gpu = gpu
        self._alloc_conf = alloc_conf
        config = parse_alloc_conf(alloc_conf, torch_version=installed_torch_version())
        self._allocator = CountingAllocator(
            capacity_bytes=gpu.usable_bytes, config=config, total_bytes=gpu.memory_bytes
        )
        self._blocks: dict[int, Block] = {}
        self._events = self._emptyings = 0
        """How many of each the allocator has seen."""
        self._is_full = False
        self._recorded: tuple[int, int | None] | None = None
        """First event of the history that the script records, and its largest number of entries."""

    def now(self) -> CountingAllocator:
        """Return the allocator in its present state."""
        trace = self._trace
        for emptied in trace.cache_emptied[self._emptyings :]:
            self._replay(emptied)
            self._allocator.empty_cache()
            self._emptyings += 1
        self._replay(len(trace.events))
        return self._allocator

    def reset_peaks(self) -> None:
        """Let peaks begin at the present level."""
        self.now().reset_peaks()

    def reset_accumulated(self) -> None:
        """Forget what was allocated and freed so far."""
        self.now().reset_accumulated()

    def record_history(self, enabled: str | bool | None, most_entries: int | None = None) -> None:
        """Record the entries of a memory snapshot from now on; `enabled=None` ends it."""
        self._recorded = (len(self._trace.events), most_entries) if enabled in ("all", True) else None

    def snapshot(self) -> dict[str, Any]:
        """Return the value of `torch.cuda.memory._snapshot()`: entries since the script began to record them."""
        gpu = self._gpu
        found = memory_snapshot(
            self._trace.finished(),
            capacity_bytes=gpu.usable_bytes,
            alloc_conf=self._alloc_conf,
            total_bytes=gpu.memory_bytes,
        )
        (entries,) = found["device_traces"]
        if self._recorded is None:
            return found | {"device_traces": [[]]}
        first, most = self._recorded
        kept = [entry for entry in entries if entry["time_us"] >= first]
        return found | {"device_traces": [kept if most is None else kept[-most:]]}

    def _replay(self, until: int) -> None:
        events, sizes, streams = self._trace.events, self._trace.sizes_bytes, self._trace.streams
        for index in range(self._events, until):
            block = abs(events[index]) - 1
            if self._is_full or not sizes[block]:
                continue
            if events[index] < 0:
                self._allocator.free(self._blocks.pop(block))
                continue
            try:
                self._blocks[block] = self._allocator.allocate(sizes[block], streams.get(block, 0))
            except OutOfMemoryError:
                self._is_full = True
        self._events = max(self._events, until)


_REFUSED_FUNCTIONS = (
    "caching_allocator_alloc", "caching_allocator_delete", "caching_allocator_disabled", "caching_allocator_enable",
    "use_mem_pool",
)  # fmt: skip
_LEVELS = ("allocated", "current", "freed", "peak")
_TIMES = ("avg", "count", "max", "min", "total")


def memory_calls(gpu: Gpu, counters: Counters, recorder: Recorder, reads: UnknownReads) -> list[Patch]:
    """Return the patches by which `counters` answers."""
    return [
        *((torch._C, name, function) for name, function in _counted(gpu, counters, recorder, reads).items()),
        *_of_both("list_gpu_processes", lambda *_: "GPU:0\nno processes are running"),
        *(patch for name in _REFUSED_FUNCTIONS for patch in _of_both(name, refused(f"torch.cuda.{name}"))),
        *_of_both("MemPool", refused_class("torch.cuda.MemPool")),
        # An allocator of the script's own is no allocator of torch, on an emulated card neither.
        *_of_both("CUDAPluggableAllocator", refused_class("torch.cuda.CUDAPluggableAllocator", hint="")),
        *_of_both("change_current_allocator", refused("torch.cuda.change_current_allocator", hint="")),
        (torch.cuda.memory, "is_initialized", lambda: True),
        (torch.cuda.memory, "_lazy_init", nothing),
        # Of any device: a tensor on the simulated card says that it is on `meta`.
        (torch.cuda.memory, "_get_device_index", lambda *_, **__: 0),
    ]


def runtime(gpu: Gpu, counters: Counters) -> SimpleNamespace:
    """Return the functions of the CUDA runtime that torch shows (`torch.cuda.cudart()`)."""
    return SimpleNamespace(
        cudaError=SimpleNamespace(success=0),
        cudaGetErrorString=lambda error: f"CUDA error {int(error)}",
        cudaMemGetInfo=lambda *_: memory_info(gpu, counters),
        cudaHostRegister=lambda *_: 0,
        cudaHostUnregister=lambda *_: 0,
        cudaProfilerStart=lambda: 0,
        cudaProfilerStop=lambda: 0,
        cudaStreamCreate=refused("cudaStreamCreate"),
        cudaStreamDestroy=refused("cudaStreamDestroy"),
    )


def memory_info(gpu: Gpu, counters: Counters) -> tuple[int, int]:
    """Return the free and all memory of the card."""
    return gpu.usable_bytes - counters.now().reserved_bytes, gpu.memory_bytes


def _counted(gpu: Gpu, counters: Counters, recorder: Recorder, reads: UnknownReads) -> Mapping[str, Any]:
    def stats(*_: Any) -> dict[str, Any]:
        return counters.now().torch_stats()

    def of_host() -> dict[str, Any]:
        reads.note("pinned memory of the host, which the script reads")
        return _NOTHING_PINNED

    def record(
        enabled: Any, _context: Any = None, _stacks: Any = None, most_entries: int | None = None, *_: Any
    ) -> None:
        counters.record_history(enabled, most_entries)

    def limit(fraction: float, *_: Any) -> None:
        if fraction < 1:
            refused("torch.cuda.set_per_process_memory_fraction")()

    def empty(*_: Any) -> None:
        recorder.trace.empty_cache()

    return {
        "_cuda_memoryStats": stats,
        "_accelerator_getDeviceStats": stats,
        "_cuda_resetPeakMemoryStats": lambda *_: counters.reset_peaks(),
        "_accelerator_resetPeakStats": lambda *_: counters.reset_peaks(),
        "_cuda_resetAccumulatedMemoryStats": lambda *_: counters.reset_accumulated(),
        "_accelerator_resetAccumulatedStats": lambda *_: counters.reset_accumulated(),
        "_cuda_emptyCache": empty,
        "_accelerator_emptyCache": empty,
        "_accelerator_emptyHostCache": nothing,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_getMemoryInfo": lambda *_: memory_info(gpu, counters),
        "_cuda_memorySnapshot": lambda *_: counters.snapshot(),
        "_cuda_record_memory_history": record,
        "_cuda_record_memory_history_legacy": lambda enabled, *_: counters.record_history(enabled),
        "_cuda_setMemoryFraction": limit,
        "_cuda_getMemoryFraction": lambda *_: 1.0,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_hostMemoryStats": of_host,
        "_cuda_resetPeakHostMemoryStats": nothing,
        "_cuda_resetAccumulatedHostMemoryStats": nothing,
    }


def _of_both(name: str, answer: Any) -> tuple[Patch, Patch]:
    return (torch.cuda, name, answer), (torch.cuda.memory, name, answer)


_NOTHING_PINNED = {
    **{
        name: dict.fromkeys(_LEVELS, 0)
        for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes")
    },
    **{name: dict.fromkeys(_TIMES, 0) for name in ("host_alloc_time", "host_free_time")},
    "num_host_alloc": 0,
    "num_host_free": 0,
}
"""`torch.cuda.host_memory_stats_as_nested_dict()` of a process that pinned nothing."""
