"""`torch.cuda` for a script on the simulated GPU: the functions that ask for the card, and what has a file of its own.

Every public name of `torch.cuda`, of the modules in it that define one, and of `torch.accelerator` is answered, does
nothing, or is refused by name; a test goes over all of them.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from profiler.domain.cards.capabilities import shared_memory
from profiler.domain.cards.gpu import Gpu
from profiler.seams.libraries.torch_cuda import KERNEL_MAKERS, NCCL_CALLS, TUNING_CALLS, TUNING_QUESTIONS
from profiler.seams.patching import Patch, patched
from profiler.simulation.script.torch_cuda.card_names import (
    HostGenerator,
    UnknownReads,
    legacy_types,
    nothing,
    on_simulated,
    refused,
    refused_class,
)
from profiler.simulation.script.torch_cuda.cuda_memory import Counters, memory_calls, memory_info, runtime
from profiler.simulation.script.torch_cuda.cuda_streams import stream_calls
from profiler.simulation.tracing.recorder import Recorder

_WARP = 32
"""Threads of a warp, on every card."""

_CUDA_VERSION = "13.0"
"""Version of CUDA of torch's default build; libraries take a torch without one for a machine without a card."""

_BFLOAT16_SINCE = (8, 0)

_OF_EVERY_CARD = {
    "warp_size": _WARP,
    "max_threads_per_block": 1024,
    "regs_per_multiprocessor": 65_536,
    "shared_memory_per_block": 49_152,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "pci_bus_id": 1,
    "pci_device_id": 0,
    "pci_domain_id": 0,
    "uuid": "00000000-0000-0000-0000-000000000000",
}
"""Properties that all cards have alike; addresses are arbitrary."""

_SENSORS = ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate")
_HANDLES = ("current_blas_handle", "current_solver_handle")


@contextmanager
def cuda_calls(gpu: Gpu, counters: Counters, recorder: Recorder, reads: UnknownReads) -> Iterator[None]:
    """While active, `torch.cuda` is one simulated card."""
    functions = {**_of_the_card(gpu), **_of_random_numbers(), **_of_the_driver(gpu, counters, reads)}
    patches: list[Patch] = [(owner, name, call) for name, call in functions.items() for owner in _owners(name)]
    if torch.version.cuda is None:
        patches.append((torch.version, "cuda", _CUDA_VERSION))
    with patched(
        [
            *patches,
            *memory_calls(gpu, counters, recorder, reads),
            *stream_calls(reads),
            *legacy_types(),
            *_accelerator(),
            *_submodules(gpu, counters),
            *_other_patches(reads),
        ]
    ):
        yield


def _owners(name: str) -> set[ModuleType]:
    """Return `torch.cuda` and the module in it that defines `name`: transformers calls `torch.cuda.random` by name."""
    defined = sys.modules.get(getattr(getattr(torch.cuda, name, None), "__module__", ""), torch.cuda)
    return {torch.cuda, defined} if hasattr(defined, name) else {torch.cuda}


def _of_the_card(gpu: Gpu) -> dict[str, Any]:
    major, minor = gpu.compute_capability
    shared = shared_memory(gpu.compute_capability)
    properties = SimpleNamespace(
        name=gpu.title,
        gcnArchName=gpu.title,
        major=major,
        minor=minor,
        total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.chip.multiprocessors,
        max_threads_per_multi_processor=gpu.chip.threads_per_multiprocessor,
        shared_memory_per_multiprocessor=shared.per_multiprocessor_bytes,
        shared_memory_per_block_optin=shared.per_block_bytes,
        **_OF_EVERY_CARD,
    )

    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return including_emulation or gpu.compute_capability >= _BFLOAT16_SINCE

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "init": nothing,
        "_lazy_init": nothing,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing,
        "device": _TheCard,
        "device_of": _TheCard,
        "can_device_access_peer": lambda *_: False,
        "get_device_name": lambda *_: gpu.title,
        "get_device_capability": lambda *_: gpu.compute_capability,
        "get_device_properties": lambda *_: properties,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "get_gencode_flags": lambda: f"-gencode compute=compute_{major}{minor},code=sm_{major}{minor}",
        "is_bf16_supported": is_bf16_supported,
        "is_tf32_supported": lambda: gpu.compute_capability >= _BFLOAT16_SINCE,
    }


class _TheCard:
    """The context of a device: there is one."""

    def __init__(self, device: Any) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _of_the_driver(gpu: Gpu, counters: Counters, reads: UnknownReads) -> dict[str, Any]:
    mode = [0]

    def sensor(*_: Any) -> int:
        reads.note("what sensors of the card measure, which the script reads")
        return 0

    def used(*_: Any) -> int:
        free, total = memory_info(gpu, counters)
        return total - free

    def set_mode(wanted: int | str) -> None:
        mode[0] = wanted if isinstance(wanted, int) else ("default", "warn", "error").index(wanted)

    return {
        "cudart": lambda: runtime(gpu, counters),
        "check_error": _check,
        "device_memory_used": used,
        "ipc_collect": nothing,
        "set_sync_debug_mode": set_mode,
        "get_sync_debug_mode": lambda: mode[0],
        "GreenContext": refused_class("torch.cuda.GreenContext", hint=""),
        **dict.fromkeys(_SENSORS, sensor),
        **{name: refused(f"torch.cuda.{name}") for name in _HANDLES},
    }


def _check(result: Any) -> None:
    if int(result) != 0:
        raise RuntimeError(f"CUDA error {int(result)}")


def _of_random_numbers() -> dict[str, Any]:
    """Return the functions of random numbers: on `meta` there are none, so the host's state takes their place."""
    return {
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "seed": nothing,
        "seed_all": nothing,
        "initial_seed": lambda: torch.initial_seed(),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state()],
        "set_rng_state": nothing,
        "set_rng_state_all": nothing,
        "default_generators": (torch.Generator(),),
    }


def _accelerator() -> list[Patch]:
    """Return the patches of `torch.accelerator`, the name of the card that does not say whose it is."""
    of_python: Mapping[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "get_device_capability": _as_on_a_card("Backend doesn't support getting device capabilities."),
        "Graph": _as_on_a_card("Graph is not supported on device type: cuda"),
    }
    of_c: Mapping[str, Any] = {
        "_accelerator_getDeviceIndex": lambda: 0,
        "_accelerator_setDeviceIndex": nothing,
        "_accelerator_exchangeDevice": lambda *_: 0,
        "_accelerator_maybeExchangeDevice": lambda *_: 0,
    }
    return [
        *((torch.accelerator, name, answer) for name, answer in of_python.items()),
        *((torch._C, name, answer) for name, answer in of_c.items()),
    ]


def _as_on_a_card(fault: str) -> Callable[..., Any]:
    """Return a function that fails as torch does for CUDA."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(fault)

    return fail


def _submodules(gpu: Gpu, counters: Counters) -> list[Patch]:
    """Return the patches of the modules in `torch.cuda`: markers and profilers do nothing, the rest is refused."""
    marker = SimpleNamespace(
        rangePushA=lambda *_: 0,
        rangePop=lambda: 0,
        rangeStartA=lambda *_: 0,
        rangeEnd=nothing,
        markA=nothing,
        deviceRangeStart=nothing,
        deviceRangeEnd=nothing,
    )
    return [
        (torch.cuda.nvtx, "_nvtx", marker),
        (torch.cuda.profiler, "cudart", lambda: runtime(gpu, counters)),
        (torch.cuda.profiler, "check_error", _check),
        *((torch.cuda.tunable, name, lambda: False) for name in TUNING_QUESTIONS),
        *((torch.cuda.jiterator, name, refused(f"torch.cuda.jiterator.{name}")) for name in KERNEL_MAKERS),
        *(
            (module, name, refused(f"{module.__name__}.{name}", hint=""))
            for module, names in ((torch.cuda.nccl, NCCL_CALLS), (torch.cuda.tunable, TUNING_CALLS))
            for name in names
        ),
    ]


def _other_patches(reads: UnknownReads) -> list[Patch]:
    autocast, scaled_step = torch.autocast, torch.amp.GradScaler.step
    default_device = torch.set_default_device

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
        (torch, "Generator", HostGenerator),
        (torch, "set_default_device", lambda device: default_device(on_simulated(device))),
        (torch.nn.Module, "compile", lambda module, *_, **__: compiled(module)),
        # Pinned memory is the host's. Data loaders ask for it in threads of their own.
        (torch.Tensor, "pin_memory", lambda tensor, *_: tensor),
        (torch.distributed, "init_process_group", refused("a process group")),
    ]
