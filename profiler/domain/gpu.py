"""Graphics cards that can be simulated, and to which a larger card can be limited."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.domain.capabilities import nearest_lower
from profiler.domain.units import MIB

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


def _card(name: str, title: str, memory_mib: int, chip: tuple[tuple[int, int], int], source: str) -> Gpu:
    """Return a card. `chip`: compute capability, and multiprocessors from the vendor's data sheet."""
    capability, multiprocessors = chip
    return Gpu(
        name=name,
        title=title,
        memory_bytes=memory_mib * MIB,
        chip=Chip(compute_capability=capability, multiprocessors=multiprocessors),
        source=source,
    )


_OOM = "'total capacity' in a torch out-of-memory message, "
_PROPERTIES = "torch.cuda.get_device_properties in public logs"


def _less(percent: int) -> str:
    return (
        f"nvidia-smi in public logs, less {percent} % that torch cannot use (ASSUMED; 0.4 to 1 % with HBM, else to 2 %)"
    )


_WITH_ECC = "44.43 GiB (DINGYANB/MTVCrafter#21); with error correction, which takes 3 GiB"
_UNIFIED = "119.68 GiB of memory that the CPU uses too (leptonai/gpud#1170)"

_CARDS = (
    _card("h100-80gb", "NVIDIA H100 80GB HBM3", 81_009, ((9, 0), 132), _OOM + "79.11 GiB (vllm-project/vllm#27508)"),
    _card("h200-141gb", "NVIDIA H200", 143_155, ((9, 0), 132), _OOM + "139.80 GiB (several public training logs)"),
    _card("b200-180gb", "NVIDIA B200", 182_630, ((10, 0), 148), _OOM + "178.35 GiB (several public training logs)"),
    _card("a100-40gb", "NVIDIA A100-SXM4-40GB", 40_540, ((8, 0), 108), _OOM + "39.59 GiB (raoyongming/DenseCLIP#52)"),
    _card("a100-80gb", "NVIDIA A100-SXM4-80GB", 81_152, ((8, 0), 108), _OOM + "79.25 GiB (levihsu/OOTDiffusion#235)"),
    _card("l40s-48gb", "NVIDIA L40S", 45_486, ((8, 9), 142), _OOM + "44.42 GiB (stepfun-ai/Step-Video-T2V#8)"),
    _card(
        "rtx-4090-24gb", "NVIDIA GeForce RTX 4090", 24_207, ((8, 9), 128), _OOM + "23.64 GiB (TMElyralab/MuseTalk#76)"
    ),
    _card(
        "rtx-5090-32gb", "NVIDIA GeForce RTX 5090", 32_113, ((12, 0), 170), _OOM + "31.36 GiB (TrajectoryCrafter#20)"
    ),
    _card("t4-16gb", "Tesla T4", 15_104, ((7, 5), 40), _OOM + "14.75 GiB (hpcaitech/Open-Sora#697)"),
    _card(
        "rtx-3080-laptop-16gb",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        16_108,
        ((8, 6), 48),
        _OOM + "15.73 GiB (published row oxen-laptop-oom)",
    ),
    _card(
        "rtx-3060-12gb", "NVIDIA GeForce RTX 3060", 12_042, ((8, 6), 28), _OOM + "11.76 GiB (TencentARC/PhotoMaker#47)"
    ),
    _card(
        "rtx-3090-24gb", "NVIDIA GeForce RTX 3090", 24_248, ((8, 6), 82), _OOM + "23.68 GiB (vllm-project/vllm#16343)"
    ),
    _card("rtx-4060-ti-16gb", "NVIDIA GeForce RTX 4060 Ti", 16_052, ((8, 9), 34), f"16,380 MiB: {_less(2)}"),
    _card("rtx-4070-12gb", "NVIDIA GeForce RTX 4070", 12_036, ((8, 9), 46), f"12,282 MiB: {_less(2)}"),
    _card("rtx-4080-16gb", "NVIDIA GeForce RTX 4080", 16_049, ((8, 9), 76), _PROPERTIES),
    _card("rtx-5080-16gb", "NVIDIA GeForce RTX 5080", 15_976, ((12, 0), 84), f"16,303 MiB: {_less(2)}"),
    _card("rtx-a6000-48gb", "NVIDIA RTX A6000", 48_676, ((8, 6), 84), _PROPERTIES),
    _card("rtx-6000-ada-48gb", "NVIDIA RTX 6000 Ada Generation", 45_496, ((8, 9), 142), _OOM + _WITH_ECC),
    _card("rtx-pro-6000-96gb", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97_249, ((12, 0), 188), _PROPERTIES),
    _card("a10g-24gb", "NVIDIA A10G", 22_587, ((8, 6), 80), _PROPERTIES),
    _card("a40-48gb", "NVIDIA A40", 45_416, ((8, 6), 84), _PROPERTIES),
    _card("l4-24gb", "NVIDIA L4", 22_573, ((8, 9), 58), f"23,034 MiB: {_less(2)}"),
    _card("l40-48gb", "NVIDIA L40", 45_146, ((8, 9), 142), f"46,068 MiB: {_less(2)}"),
    _card("v100-16gb", "Tesla V100-SXM2-16GB", 16_130, ((7, 0), 80), _PROPERTIES),
    _card(
        "v100-32gb", "Tesla V100-SXM2-32GB", 32_502, ((7, 0), 80), _OOM + "31.74 GiB (liucongg/ChatGLM-Finetuning#73)"
    ),
    _card("h100-pcie-80gb", "NVIDIA H100 PCIe", 81_008, ((9, 0), 114), _PROPERTIES),
    _card("h100-nvl-94gb", "NVIDIA H100 NVL", 94_871, ((9, 0), 132), f"95,830 MiB: {_less(1)}"),
    _card("h20-96gb", "NVIDIA H20", 97_285, ((9, 0), 78), _PROPERTIES),
    _card("gh200-96gb", "NVIDIA GH200 480GB", 97_157, ((9, 0), 132), _OOM + "94.88 GiB (Lightning-AI/litgpt#1892)"),
    _card("b300-288gb", "NVIDIA B300 SXM6 AC", 272_289, ((10, 3), 148), f"275,040 MiB: {_less(1)}"),
    _card("dgx-spark-128gb", "NVIDIA GB10", 122_548, ((12, 1), 48), _UNIFIED),
)

KNOWN_GPUS: Mapping[str, Gpu] = {card.name: card for card in _CARDS}
"""By our name. Capacities are rounded to 0.01 GiB, as torch prints them, and differ slightly by driver."""
