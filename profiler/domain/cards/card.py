"""One graphics card: what it is made of, and what follows from that."""

from dataclasses import dataclass

from profiler.domain.cards.capabilities import nearest_lower

_SAME_CARD_RATIO = 0.02
"""An H100 80GB reports 79.1 to 79.3 GiB. The total of NVML, part of which torch cannot use, is up to 1.7 % larger."""

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

    @property
    def size_gb(self) -> int | None:
        """The advertised capacity in GB, as `name` ends; None for a card that was made of a size."""
        size = self.name.rpartition("-")[2].removesuffix("gb")
        return int(size) if size.isdecimal() else None

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor)."""
        return self.chip.compute_capability

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
        return 9 if major in (9, 10) else min(major, 8)
