"""Memory that CUDA and its libraries take beside tensors."""

import torch

from profiler.domain.context import cuda_context_bytes as cuda_context_bytes
from profiler.domain.units import MIB

_HOPPER = (9, 0)
_BLACKWELL_MAJORS = (10, 11, 12)


def cublas_workspace_bytes(
    compute_capability: tuple[int, int], torch_version: str = torch.__version__.split("+")[0]
) -> int:
    """Bytes of one cuBLAS workspace: 32 MiB on Hopper, from torch 2.12 also on Blackwell; 8,519,680 elsewhere.

    torch keeps one for each pair of handle and stream, through its caching allocator. Handles belong to threads: the
    thread that runs forward has one and the thread that runs backward another. cuBLASLt, which adds biases, uses the
    same memory from 2.12 on; in 2.11 it keeps 1 MiB a thread beside it, which is not counted here. Later than 2.13 it
    is taken and given back at each call.

    Sources: `parseChosenWorkspaceSize` and `getCUDABlasLtWorkspace` in `aten/src/ATen/cuda/CublasHandlePool.cpp`;
    pytorch/pytorch#175344 (Blackwell, February 2026), #175879 (one memory for both, March 2026). ASSUMED: both came too
    late for 2.11.
    """
    major, minor = (int(part) for part in torch_version.split(".")[:2])
    blackwell = compute_capability[0] in _BLACKWELL_MAJORS and (major, minor) >= (2, 12)
    return 32 * MIB if compute_capability == _HOPPER or blackwell else 8_519_680
