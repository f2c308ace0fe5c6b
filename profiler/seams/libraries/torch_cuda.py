"""Seams of `torch.cuda` and `torch.accelerator`: what the simulated GPU answers for a script."""

from profiler.seams.seam import Absence, Exists, Seam

_CUDA_CALLS = "simulation/script/torch_cuda/cuda_calls.py"
_CUDA_MEMORY = "simulation/script/torch_cuda/cuda_memory.py"
_CUDA_STREAMS = "simulation/script/torch_cuda/cuda_streams.py"
_LEGACY = "simulation/script/torch_cuda/card_names.py"
_SHARED_COUNTERS = "measurement/counters/torch_cuda.py"


def _seam(owner: str, name: str, used_by: str | tuple[str, ...], why: str, absent_in: Absence = Absence.NEVER) -> Seam:
    files = (used_by,) if isinstance(used_by, str) else used_by
    return Seam(owner=owner, name=name, expected=Exists(), used_by=files, why=why, since="2.11", absent_in=absent_in)


_SHARED_COUNTERS_OF_C = (
    "_cuda_memoryStats", "_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats",
    "_accelerator_getDeviceStats", "_accelerator_resetPeakStats", "_accelerator_resetAccumulatedStats",
)  # fmt: skip

_CARD_CALLS = (
    "is_available", "is_initialized", "init", "device_count", "current_device", "set_device", "device", "device_of",
    "can_device_access_peer", "get_device_name", "get_device_properties", "get_arch_list", "get_gencode_flags",
    "is_bf16_supported", "is_tf32_supported", "ipc_collect", "cudart", "check_error", "current_blas_handle",
    "set_sync_debug_mode", "get_sync_debug_mode", "utilization", "memory_usage", "temperature",
    "power_draw", "clock_rate", "default_generators",
)  # fmt: skip
"""Names of `torch.cuda` that the simulated GPU answers."""

_RANDOM_CALLS = (
    "manual_seed", "manual_seed_all", "seed", "seed_all", "initial_seed", "get_rng_state", "get_rng_state_all",
    "set_rng_state", "set_rng_state_all",
)  # fmt: skip
"""Names of `torch.cuda` and `torch.cuda.random`."""

_NEWER_CARD_CALLS = ("device_memory_used", "GreenContext", "current_solver_handle")

_MEMORY_CALLS = (
    "list_gpu_processes", "caching_allocator_alloc", "caching_allocator_delete", "change_current_allocator",
    "CUDAPluggableAllocator",
)  # fmt: skip
"""Names of `torch.cuda` and `torch.cuda.memory`."""

_NEWER_MEMORY_CALLS = ("caching_allocator_enable", "caching_allocator_disabled", "MemPool", "use_mem_pool")

_STREAM_CLASSES = ("Stream", "Event", "ExternalStream")
_STREAM_CALLS = (
    "synchronize", "current_stream", "default_stream", "get_stream_from_external", "stream", "set_stream",
    "StreamContext",
)  # fmt: skip
_GRAPH_CALLS = ("CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle", "is_current_stream_capturing")

_LEGACY_KINDS = ("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "Bool", "BFloat16")
_LEGACY_TYPES = (
    *(f"{name}Tensor" for name in _LEGACY_KINDS),
    *(f"{name}Storage" for name in (*_LEGACY_KINDS, "ComplexFloat", "ComplexDouble")),
)

_MEMORY_OF_C = (
    "_cuda_emptyCache", "_accelerator_emptyCache", "_accelerator_emptyHostCache",
    "_accelerator_isAllocatorInitialized", "_accelerator_getMemoryInfo", "_cuda_memorySnapshot",
    "_cuda_record_memory_history", "_cuda_record_memory_history_legacy", "_cuda_setMemoryFraction",
    "_cuda_getMemoryFraction", "_cuda_getAllocatorBackend", "_cuda_hostMemoryStats", "_cuda_resetPeakHostMemoryStats",
    "_cuda_resetAccumulatedHostMemoryStats",
)  # fmt: skip
"""Functions of `torch._C` behind those about memory that only the simulated GPU answers."""

_DEVICES_OF_C = (
    "_accelerator_getDeviceIndex", "_accelerator_setDeviceIndex", "_accelerator_exchangeDevice",
    "_accelerator_maybeExchangeDevice",
)  # fmt: skip
_STREAMS_OF_C = ("_accelerator_getStream", "_accelerator_setStream", "_accelerator_synchronizeDevice")

NCCL_CALLS = ("all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter")
KERNEL_MAKERS = ("_create_jit_fn", "_create_multi_output_jit_fn")
TUNING_CALLS = (
    "enable", "tuning_enable", "record_untuned_enable", "tune_gemm_in_file", "mgpu_tune_gemm_in_file", "read_file",
    "set_max_tuning_duration", "get_max_tuning_duration", "set_max_tuning_iterations", "get_max_tuning_iterations",
    "set_filename", "get_filename", "get_results", "get_validators", "set_rotating_buffer_size",
    "get_rotating_buffer_size", "set_numerical_check_tolerances",
)  # fmt: skip
TUNING_QUESTIONS = ("is_enabled", "tuning_is_enabled", "record_untuned_is_enabled")


def _answered(owner: str, names: tuple[str, ...], file: str, absent_in: Absence = Absence.NEVER) -> tuple[Seam, ...]:
    """Return the seams of names that the simulated GPU answers or refuses."""
    return tuple(_seam(owner, name, file, "answered by the simulated GPU", absent_in) for name in names)


TORCH_CUDA: tuple[Seam, ...] = (
    *(
        _seam(
            "torch._C",
            name,
            (_SHARED_COUNTERS, _CUDA_MEMORY),
            "reads or resets the counters",
            Absence.SOME_BUILDS,
        )
        for name in _SHARED_COUNTERS_OF_C
    ),
    *_answered("torch.cuda", (*_CARD_CALLS, *_RANDOM_CALLS), _CUDA_CALLS),
    *_answered("torch.cuda.random", _RANDOM_CALLS, _CUDA_CALLS),
    *_answered("torch.cuda.green_contexts", ("GreenContext",), _CUDA_CALLS, Absence.SOME_BUILDS),
    *_answered("torch", ("Generator", "set_default_device"), _CUDA_CALLS),
    *_answered("torch.cuda", _NEWER_CARD_CALLS, _CUDA_CALLS, Absence.SOME_BUILDS),
    *_answered("torch.cuda", _LEGACY_TYPES, _LEGACY),
    *(
        seam
        for owner in ("torch.cuda", "torch.cuda.memory")
        for names, absent_in in ((_MEMORY_CALLS, Absence.NEVER), (_NEWER_MEMORY_CALLS, Absence.SOME_BUILDS))
        for seam in _answered(owner, names, _CUDA_MEMORY, absent_in)
    ),
    *_answered("torch.cuda.memory", ("is_initialized", "_lazy_init", "_get_device_index"), _CUDA_MEMORY),
    *_answered("torch.cuda", (*_STREAM_CLASSES, *_STREAM_CALLS, *_GRAPH_CALLS), _CUDA_STREAMS),
    *_answered("torch.cuda.streams", _STREAM_CLASSES, _CUDA_STREAMS),
    *_answered("torch.cuda.graphs", _GRAPH_CALLS, _CUDA_STREAMS),
    *_answered("torch._C", _MEMORY_OF_C, _CUDA_MEMORY, Absence.SOME_BUILDS),
    *_answered("torch._C", _DEVICES_OF_C, _CUDA_CALLS, Absence.SOME_BUILDS),
    *_answered("torch._C", _STREAMS_OF_C, _CUDA_STREAMS, Absence.SOME_BUILDS),
    *_answered("torch.accelerator", ("is_available", "device_count", "current_accelerator"), _CUDA_CALLS),
    *_answered("torch.accelerator", ("get_device_capability", "Graph"), _CUDA_CALLS, Absence.SOME_BUILDS),
    *_answered("torch.cuda.nvtx", ("_nvtx",), _CUDA_CALLS),
    *_answered("torch.cuda.profiler", ("cudart", "check_error"), _CUDA_CALLS),
    *_answered("torch.cuda.nccl", NCCL_CALLS, _CUDA_CALLS),
    *_answered("torch.cuda.jiterator", KERNEL_MAKERS, _CUDA_CALLS),
    *_answered("torch.cuda.tunable", (*TUNING_CALLS, *TUNING_QUESTIONS), _CUDA_CALLS, Absence.SOME_BUILDS),
)
