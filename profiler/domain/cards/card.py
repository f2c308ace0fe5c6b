"""One graphics card: what follows from what it is made of, its CUDA context, NCCL, and cuBLAS's workspaces."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

from profiler.domain.cards.capabilities import large_workspace_since, nearest_lower
from profiler.domain.memory import KIB, MIB


def cuda_context_bytes(compute_capability: tuple[int, int]) -> int:
    """Return the ASSUMED bytes of the CUDA context, including the kernels that a process has loaded.

    That of 9.0 was measured in training on one card. For the others, torch's out-of-memory messages state the memory of
    the process in use, the allocated memory, and the reserved but unallocated memory; the rest is the context. Each row
    of `CAPABILITIES` names its source, from a process during training or inference (kernels are loaded at their first
    use).

    The messages are rounded to 0.01 GiB or worse. Other messages of the same cards differ by 0.1 to 0.3 GiB, by driver,
    libraries and torch, and the measured card had 22 to 76 MiB more where it decoded, so this value must be shown as an
    assumption. An unknown capability has the value of the nearest lower one.
    """
    return nearest_lower(compute_capability, lambda row: row.context_bytes)


def nccl_bytes(compute_capability: tuple[int, int], gpus: int) -> int:
    """Return the ASSUMED bytes that NCCL takes of each of `gpus` cards that train together; 0 for one.

    Rings and trees of one group, which is all that DDP, FSDP and ZeRO use. They were measured by others on one kind of
    card with NVLink, of which all others have the same here. No card of ours has measured them. Not included: an
    all-to-all, for which each of 8 H100 took 3.3 GB more (NVIDIA/nccl#1685), NVLink SHARP, and buffers of networks.

    By hand, 8 A100: 688 MiB. Memory does not grow with the number of GPUs but for some on a second node
    (NVIDIA/nccl#986).

    Args:
        compute_capability: (major, minor).
        gpus: The GPUs of the job.
    """
    if gpus == 1:
        return 0
    found = nearest_lower(compute_capability, lambda row: row.nccl)
    return found.of_two_bytes if gpus == 2 else found.of_more_bytes


def outside_torch_bytes(compute_capability: tuple[int, int], gpus: int = 1) -> int:
    """Return the ASSUMED bytes of a card that a process uses outside of torch's allocator: its context, and NCCL."""
    return cuda_context_bytes(compute_capability) + nccl_bytes(compute_capability, gpus)


_LARGE_BYTES = 32 * MIB
_SMALL_BYTES = 2 * 4096 * KIB + 8 * 16 * KIB
"""torch's default for all other cards, written ``:4096:2:16:8`` in KiB."""

_SHARED_SINCE = (2, 12)
"""The first torch in which cuBLASLt uses the workspace of cuBLAS."""

_CUBLASLT_BYTES = MIB

_NEWEST_KNOWN = "2.14"


def cublas_workspace_bytes(compute_capability: tuple[int, int], torch_version: str | None = None) -> int:
    """Return the bytes of one cuBLAS workspace: 32 MiB on Hopper and later cards, 8,519,680 B on earlier ones.

    Blackwell has the large workspace from torch 2.12 on (11.0 from 2.14 on). torch keeps one workspace per pair of
    handle and stream. Handles belong to threads: the thread that runs forward has one, the thread that runs backward
    another. Does not hold for torch after 2.13, which frees the workspace after each call.

    Sources: `parseChosenWorkspaceSize` in `aten/src/ATen/cuda/CublasHandlePool.cpp`; pytorch/pytorch#175344 (10.x and
    12.x, February 2026) and #189312 (11.x, July 2026). Seen in torch's CUDA builds 2.11 and 2.13 on an emulated driver.

    Args:
        compute_capability: (major, minor).
        torch_version: The installed version if None.
    """
    since = large_workspace_since(compute_capability)
    return _LARGE_BYTES if since is not None and _minor_version(torch_version) >= since else _SMALL_BYTES


def cublaslt_workspace_bytes(torch_version: str | None = None) -> int:
    """Return the bytes of the workspace of cuBLASLt, which adds biases: 1 MiB before torch 2.12, then 0 of its own.

    Sources: `getCUDABlasLtWorkspace` in `aten/src/ATen/cuda/CublasHandlePool.cpp`; pytorch/pytorch#175879 (one memory
    for both, March 2026). Seen as above.
    """
    return _CUBLASLT_BYTES if _minor_version(torch_version) < _SHARED_SINCE else 0


@cache
def installed_torch_version() -> str:
    """Return the version of the installed torch without importing it; the newest known one if there is none."""
    if find_spec("torch") is None:
        return _NEWEST_KNOWN
    from importlib.metadata import PackageNotFoundError, version  # 15 ms

    try:
        return version("torch")
    except PackageNotFoundError:
        return _NEWEST_KNOWN


def _minor_version(text: str | None) -> tuple[int, int]:
    major, minor = (installed_torch_version() if text is None else text).split(".")[:2]
    return int(major), int(minor)


_SAME_CARD_RATIO = 0.02
"""An H100 80GB reports 79.1 to 79.3 GiB. The total of NVML, part of which torch cannot use, is up to 1.7 % larger."""

CUDNN_ATTENTION = (9, 10)
"""Major compute capabilities with cuDNN's attention: torch with cuDNN 9.15 or later, as in its wheels for CUDA 13."""

_FLASH_ATTENTION_SINCE = (8, 0)
"""The lowest compute capability with FlashAttention kernels, in torch and in flash-attn 2.

Sources: `check_flash_attention_hardware_support` in `aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`; README of
flash-attn.
"""

_BFLOAT16_INTO_FLOAT32_SINCE = (8, 0)
"""The lowest compute capability on which torch multiplies bfloat16 into float32.

Source: `gemm_internal_cublas_bfloat16` with a float32 result in `aten/src/ATen/cuda/CUDABlas.cpp`.
"""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """The properties of a card that decide which kernels run and how much scratch they need."""

    compute_capability: tuple[int, int]
    """(major, minor)."""
    multiprocessors: int
    """Enabled streaming multiprocessors."""

    @property
    def threads_per_multiprocessor(self) -> int:
        """Most resident threads of one multiprocessor; for an unknown capability those of the nearest lower one."""
        return nearest_lower(self.compute_capability, lambda row: row.threads_per_multiprocessor)

    @property
    def has_flash_attention(self) -> bool:
        """Whether FlashAttention kernels run on the card."""
        return self.compute_capability >= _FLASH_ATTENTION_SINCE

    @property
    def has_cudnn_attention(self) -> bool:
        """Whether torch prefers cuDNN's attention on the card (`check_prefer_cudnn_attention` in `sdp_utils.cpp`)."""
        return self.compute_capability[0] in CUDNN_ATTENTION

    @property
    def multiplies_bfloat16_into_float32(self) -> bool:
        """Whether torch has products of bfloat16 matrices with a float32 result on the card."""
        return self.compute_capability >= _BFLOAT16_INTO_FLOAT32_SINCE


@dataclass(frozen=True, kw_only=True)
class Board:
    """What NVML and the properties of a card say beyond memory and chip; none of it decides an allocation."""

    nvml_mib: int
    """Total of NVML, as `nvidia-smi` prints it. A DGX Spark has none, because the CPU uses the same memory."""
    l2_kib: int
    bus_bits: int
    counts_errors: bool
    """Whether the card counts memory errors (ECC)."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What a card can do at most per second: the roofline under which no step can be faster.

    Products are dense; those of float32 run without TF32, which is torch's default.
    """

    half_flops_per_s: float
    """Floating-point operations per second in bfloat16 or float16, on tensor cores."""
    single_flops_per_s: float
    """The same in float32."""
    memory_bytes_per_s: float
    """Bandwidth of the card's memory."""
    link_bytes_per_s: float
    """Bandwidth between host and card, in one direction."""
    source: str


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One card."""

    name: str
    """Our name, as in `gpu=h100-80gb`."""
    title: str
    """The vendor's name."""
    memory_bytes: int
    """`torch.cuda.get_device_properties(0).total_memory`, which is less than the advertised capacity."""
    chip: Chip
    source: str
    """Source of `memory_bytes`."""
    board: Board | None = None
    """Of a known card, from the vendor's data sheet and `nvidia-smi` in public logs."""
    roofline: Roofline | None = None
    """None where its data sheet was not read."""
    other_names: tuple[str, ...] = ()
    """Names that people and price lists use, and that are no part of `name` or `title`."""
    is_rented: bool = True
    """False for a card of a laptop or a desk computer, which no price list of a cloud has."""

    @property
    def size_gb(self) -> int | None:
        """The advertised capacity in GB, as `name` ends; None for a card that was made of a size."""
        size = self.name.rpartition("-")[2].removesuffix("gb")
        return int(size) if size.isdecimal() else None

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return self.chip.compute_capability

    @property
    def usable_bytes(self) -> int:
        """What one process can take from the driver: all but its context (`cuda_context_bytes`, ASSUMED)."""
        return self.memory_bytes - cuda_context_bytes(self.compute_capability)

    def is_called(self, title: str, memory_bytes: int) -> bool:
        """Return whether a real card with this name and memory is this card; drivers report up to 1 % more or less."""
        return title == self.title and abs(memory_bytes - self.memory_bytes) <= _SAME_CARD_RATIO * self.memory_bytes

    @property
    def kernel_family(self) -> int:
        """The family of cards that mostly choose the same attention kernels, so that one simulated run may serve all.

        Named by its first generation: 9 and 10 ask cuDNN first, 8 and 12 use flash or memory-efficient attention, 7 has
        no flash attention. The run records the workspaces of each card of its family. A card that would choose another
        kernel, as 10 does for head sizes above 128, gets a run of its own.
        """
        major = self.compute_capability[0]
        return 9 if major in CUDNN_ATTENTION else min(major, 8)
