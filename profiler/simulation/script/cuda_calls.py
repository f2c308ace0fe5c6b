"""`torch.cuda` for a script on the simulated GPU: the functions that ask for the card, its memory and its streams."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from profiler.domain.context import cuda_context_bytes
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.gpu import Gpu
from profiler.seams.patching import Patch, patched
from profiler.simulation.script.counters import Counters
from profiler.simulation.script.unknown_reads import UnknownReads

_WARP = 32
"""Threads of a warp, on every card."""

_CUDA_VERSION = "13.0"
"""Version of CUDA of torch's default build; libraries take a torch without one for a machine without a card."""

_BFLOAT16_SINCE = (8, 0)


@contextmanager
def cuda_calls(gpu: Gpu, counters: Counters, reads: UnknownReads) -> Iterator[None]:
    """While active, `torch.cuda` is one simulated card."""
    functions = {**_of_the_card(gpu), **_of_memory(gpu, counters), **_of_order(reads), **_of_random_numbers()}
    accelerator: list[Patch] = [
        *((torch.accelerator, name, function) for name, function in _ACCELERATOR.items()),
        *((torch.accelerator, name, functions[name]) for name in _OF_BOTH),
    ]
    patches: list[Patch] = [(torch.cuda, name, function) for name, function in functions.items()]
    if torch.version.cuda is None:
        patches.append((torch.version, "cuda", _CUDA_VERSION))
    with patched([*patches, *accelerator, *_other_patches(reads)]):
        yield


def _of_the_card(gpu: Gpu) -> dict[str, Any]:
    major, minor = gpu.compute_capability
    properties = SimpleNamespace(
        name=gpu.title,
        major=major,
        minor=minor,
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.chip.multiprocessors,
        max_threads_per_multi_processor=gpu.chip.threads_per_multiprocessor,
        warp_size=_WARP,
        is_integrated=0,
        is_multi_gpu_board=0,
    )

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or gpu.compute_capability >= _BFLOAT16_SINCE

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": _nothing,
        "_lazy_init": _nothing,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": _nothing,
        "device": lambda *_: nullcontext(),
        "get_device_name": lambda *_: gpu.title,
        "get_device_capability": lambda *_: gpu.compute_capability,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "is_bf16_supported": is_bf16_supported,
        "is_tf32_supported": lambda: gpu.compute_capability >= _BFLOAT16_SINCE,
    }


def _of_memory(gpu: Gpu, counters: Counters) -> dict[str, Any]:
    context = cuda_context_bytes(gpu.compute_capability)

    def mem_get_info(*_: Any) -> tuple[int, int]:
        return gpu.memory_bytes - context - counters.now().peak_reserved_bytes, gpu.memory_bytes

    def memory_stats(*_: Any, **__: Any) -> dict[str, int]:
        now, peak = counters.now(), counters.peak()
        return {
            "allocated_bytes.all.current": now.peak_allocated_bytes,
            "allocated_bytes.all.peak": peak.peak_allocated_bytes,
            "reserved_bytes.all.current": now.peak_reserved_bytes,
            "reserved_bytes.all.peak": peak.peak_reserved_bytes,
        }

    return {
        "memory_allocated": lambda *_, **__: counters.now().peak_allocated_bytes,
        "memory_reserved": lambda *_, **__: counters.now().peak_reserved_bytes,
        "max_memory_allocated": lambda *_, **__: counters.peak().peak_allocated_bytes,
        "max_memory_reserved": lambda *_, **__: counters.peak().peak_reserved_bytes,
        "reset_peak_memory_stats": lambda *_, **__: counters.reset(),
        "reset_max_memory_allocated": lambda *_, **__: counters.reset(),
        "reset_accumulated_memory_stats": _nothing,
        "memory_stats": memory_stats,
        "memory_summary": lambda *_, **__: str(memory_stats()),
        "mem_get_info": mem_get_info,
        "ipc_collect": _nothing,
    }


def _of_order(reads: UnknownReads) -> dict[str, Any]:
    """Return the functions of streams and events: the simulated GPU has one stream and no time."""

    class Stream(_Stream):
        """A stream that the script makes. A class, as torch's own is: libraries write `torch.cuda.Stream | None`."""

        def __init__(self, *_: Any, **__: Any) -> None:
            reads.note("what several streams change: all work of the script is on one")

    class Event(_Event):
        """An event that the script makes."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(reads)

    return {
        "synchronize": _nothing,
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda *_: _Stream(),
        "default_stream": lambda *_: _Stream(),
        "stream": lambda *_: nullcontext(),
        "set_stream": _nothing,
        "is_current_stream_capturing": lambda: False,
        "CUDAGraph": _refused_class("CUDA graphs"),
        "graph": _refused_class("CUDA graphs"),
    }


def _of_random_numbers() -> dict[str, Any]:
    """Return the functions of random numbers: on `meta` there are none, so the host's state takes their place."""
    return {
        "manual_seed": _nothing,
        "manual_seed_all": _nothing,
        "seed": _nothing,
        "seed_all": _nothing,
        "initial_seed": lambda: torch.initial_seed(),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": _nothing,
        "set_rng_state_all": _nothing,
    }


def _other_patches(reads: UnknownReads) -> list[Patch]:
    autocast, scaled_step = torch.autocast, torch.amp.GradScaler.step

    def step(scaler: Any, *arguments: Any, **named: Any) -> Any:
        if scaler.is_enabled():
            reads.note("whether gradients are finite: no step of a GradScaler is skipped")
        return scaled_step(scaler, *arguments, **named)

    def on_card(device_type: Any, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None) -> Any:
        if str(device_type).partition(":")[0] != "cuda":
            return autocast(device_type, dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
        return autocast("meta", dtype=dtype or torch.float16, enabled=enabled, cache_enabled=cache_enabled)

    def of_cuda(enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True) -> Any:
        return autocast("meta", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)

    def compiled(model: Any = None, **_: Any) -> Any:
        reads.note("what torch.compile changes: the script runs without it")
        return (lambda function: function) if model is None else model

    return [
        (torch, "autocast", on_card),
        (torch.amp, "autocast", on_card),
        (torch.cuda.amp, "autocast", of_cuda),
        (torch.amp.GradScaler, "step", step),
        (torch, "compile", compiled),
        (torch.nn.Module, "compile", lambda module, *_, **__: compiled(module)),
        # Pinned memory is the host's. Data loaders ask for it in threads of their own.
        (torch.Tensor, "pin_memory", lambda tensor, *_: tensor),
        (torch.distributed, "init_process_group", _refused("a process group")),
    ]


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


_ACCELERATOR: Mapping[str, Any] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_accelerator": lambda *_, **__: torch.device("cuda"),
    "current_device_index": lambda: 0,
    "set_device_index": _nothing,
}
"""Functions of `torch.accelerator`, the name of the card that does not say whose it is."""


_OF_BOTH = (
    "synchronize", "current_stream", "memory_allocated", "memory_reserved", "max_memory_allocated",
    "max_memory_reserved", "reset_peak_memory_stats", "memory_stats",
)  # fmt: skip
"""Functions that `torch.cuda` and `torch.accelerator` have alike."""


class _Stream:
    """The only stream."""

    cuda_stream = 0

    def is_capturing(self) -> bool:
        """Return False: graphs are refused."""
        return False

    def synchronize(self) -> None:
        """Do nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing."""

    def wait_event(self, event: Any) -> None:
        """Do nothing."""

    def record_event(self, event: Any = None) -> Any:
        """Return the event."""
        return event

    def query(self) -> bool:
        """Return True: everything is done."""
        return True

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Event:
    """An event. Reading a time from it is noted."""

    def __init__(self, reads: UnknownReads) -> None:
        self._reads = reads

    def record(self, *_: Any) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def wait(self, *_: Any) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return True: everything is done."""
        return True

    def elapsed_time(self, _end: Any) -> float:
        """Return one millisecond: the simulated GPU has no time."""
        self._reads.note("times that the script reads from the card")
        return 1.0


def _refused_class(what: str) -> type:
    """Return a class, as torch has one, that cannot be made."""
    return type("Refused", (), {"__init__": _refused(what)})


def _refused(what: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedTrialError(f"{what} of the script cannot be simulated; backend=emulated runs it")

    return refuse
