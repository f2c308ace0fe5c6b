"""Graphics cards that can be simulated, and to which a larger card can be limited: one row per card."""

from collections.abc import Mapping
from dataclasses import replace

from profiler.domain.cards.card import Board, Chip, Gpu, Roofline
from profiler.domain.memory import MIB

__all__ = ["KNOWN_GPUS", "ROOFLINES", "Chip", "Gpu"]

_OOM = "'total capacity' in a torch out-of-memory message, "
_PROPERTIES = "torch.cuda.get_device_properties in public logs"


def _less(percent: int) -> str:
    return (
        f"nvidia-smi in public logs, less {percent} % that torch cannot use (ASSUMED; 0.4 to 1 % with HBM, else to 2 %)"
    )


_WITH_ECC = "44.43 GiB (DINGYANB/MTVCrafter#21); with error correction, which takes 3 GiB"
_UNIFIED = "119.68 GiB of memory that the CPU uses too (leptonai/gpud#1170)"

_H100_PEAKS = Roofline(
    half_flops_per_s=989.5e12,
    single_flops_per_s=67e12,
    memory_bytes_per_s=3.35e12,
    link_bytes_per_s=64e9,
    source=(
        "NVIDIA H100 data sheet, SXM5: 1,979 TFLOPS with sparsity, half of it dense; PCIe 5.0 x16, 128 GB/s both ways"
    ),
)
_A100_PEAKS = Roofline(
    half_flops_per_s=312e12,
    single_flops_per_s=19.5e12,
    memory_bytes_per_s=2.039e12,
    link_bytes_per_s=32e9,
    source="NVIDIA A100 data sheet, SXM4; PCIe 4.0 x16, 64 GB/s both ways",
)

_CARDS = (
    Gpu(
        name="h100-80gb",
        title="NVIDIA H100 80GB HBM3",
        memory_bytes=81_009 * MIB,
        source=_OOM
        + "79.11 GiB (vllm-project/vllm#27508); the one that was measured has 79.18 (results/reference/h100)",
        chip=Chip(compute_capability=(9, 0), multiprocessors=132),
        board=Board(nvml_mib=81_559, l2_kib=51_200, bus_bits=5120, counts_errors=True),
        roofline=_H100_PEAKS,
        other_names=("h100-sxm", "h100-sxm5", "h100-hbm3"),
    ),
    Gpu(
        name="h200-141gb",
        title="NVIDIA H200",
        memory_bytes=143_155 * MIB,
        source=_OOM + "139.80 GiB (several public training logs)",
        chip=Chip(compute_capability=(9, 0), multiprocessors=132),
        board=Board(nvml_mib=143_771, l2_kib=61_440, bus_bits=6144, counts_errors=True),
    ),
    Gpu(
        name="b200-180gb",
        title="NVIDIA B200",
        memory_bytes=182_630 * MIB,
        source=_OOM + "178.35 GiB (several public training logs)",
        chip=Chip(compute_capability=(10, 0), multiprocessors=148),
        board=Board(nvml_mib=183_359, l2_kib=129_536, bus_bits=8192, counts_errors=True),
    ),
    Gpu(
        name="a100-40gb",
        title="NVIDIA A100-SXM4-40GB",
        memory_bytes=40_540 * MIB,
        source=_OOM + "39.59 GiB (raoyongming/DenseCLIP#52)",
        chip=Chip(compute_capability=(8, 0), multiprocessors=108),
        board=Board(nvml_mib=40_960, l2_kib=40_960, bus_bits=5120, counts_errors=True),
        roofline=replace(_A100_PEAKS, memory_bytes_per_s=1.555e12),
    ),
    Gpu(
        name="a100-80gb",
        title="NVIDIA A100-SXM4-80GB",
        memory_bytes=81_152 * MIB,
        source=_OOM + "79.25 GiB (levihsu/OOTDiffusion#235)",
        chip=Chip(compute_capability=(8, 0), multiprocessors=108),
        board=Board(nvml_mib=81_920, l2_kib=40_960, bus_bits=5120, counts_errors=True),
        roofline=_A100_PEAKS,
    ),
    Gpu(
        name="l40s-48gb",
        title="NVIDIA L40S",
        memory_bytes=45_486 * MIB,
        source=_OOM + "44.42 GiB (stepfun-ai/Step-Video-T2V#8)",
        chip=Chip(compute_capability=(8, 9), multiprocessors=142),
        board=Board(nvml_mib=46_068, l2_kib=98_304, bus_bits=384, counts_errors=True),
    ),
    Gpu(
        name="rtx-4090-24gb",
        title="NVIDIA GeForce RTX 4090",
        memory_bytes=24_207 * MIB,
        source=_OOM + "23.64 GiB (TMElyralab/MuseTalk#76)",
        chip=Chip(compute_capability=(8, 9), multiprocessors=128),
        board=Board(nvml_mib=24_564, l2_kib=73_728, bus_bits=384, counts_errors=False),
    ),
    Gpu(
        name="rtx-5090-32gb",
        title="NVIDIA GeForce RTX 5090",
        memory_bytes=32_113 * MIB,
        source=_OOM + "31.36 GiB (TrajectoryCrafter#20)",
        chip=Chip(compute_capability=(12, 0), multiprocessors=170),
        board=Board(nvml_mib=32_607, l2_kib=98_304, bus_bits=512, counts_errors=False),
    ),
    Gpu(
        name="t4-16gb",
        title="Tesla T4",
        memory_bytes=15_104 * MIB,
        source=_OOM + "14.75 GiB (hpcaitech/Open-Sora#697)",
        chip=Chip(compute_capability=(7, 5), multiprocessors=40),
        board=Board(nvml_mib=15_360, l2_kib=4096, bus_bits=256, counts_errors=True),
    ),
    Gpu(
        name="rtx-3080-laptop-16gb",
        title="NVIDIA GeForce RTX 3080 Laptop GPU",
        memory_bytes=16_108 * MIB,
        source=_OOM + "15.73 GiB (published row oxen-laptop-oom)",
        chip=Chip(compute_capability=(8, 6), multiprocessors=48),
        is_rented=False,
        board=Board(nvml_mib=16_384, l2_kib=4096, bus_bits=256, counts_errors=False),
    ),
    Gpu(
        name="rtx-3060-12gb",
        title="NVIDIA GeForce RTX 3060",
        memory_bytes=12_042 * MIB,
        source=_OOM + "11.76 GiB (TencentARC/PhotoMaker#47)",
        chip=Chip(compute_capability=(8, 6), multiprocessors=28),
        board=Board(nvml_mib=12_288, l2_kib=3072, bus_bits=192, counts_errors=False),
    ),
    Gpu(
        name="rtx-3090-24gb",
        title="NVIDIA GeForce RTX 3090",
        memory_bytes=24_248 * MIB,
        source=_OOM + "23.68 GiB (vllm-project/vllm#16343)",
        chip=Chip(compute_capability=(8, 6), multiprocessors=82),
        board=Board(nvml_mib=24_576, l2_kib=6144, bus_bits=384, counts_errors=False),
    ),
    Gpu(
        name="rtx-4060-ti-16gb",
        title="NVIDIA GeForce RTX 4060 Ti",
        memory_bytes=16_052 * MIB,
        source=f"16,380 MiB: {_less(2)}",
        chip=Chip(compute_capability=(8, 9), multiprocessors=34),
        board=Board(nvml_mib=16_380, l2_kib=32_768, bus_bits=128, counts_errors=False),
    ),
    Gpu(
        name="rtx-4070-12gb",
        title="NVIDIA GeForce RTX 4070",
        memory_bytes=12_036 * MIB,
        source=f"12,282 MiB: {_less(2)}",
        chip=Chip(compute_capability=(8, 9), multiprocessors=46),
        board=Board(nvml_mib=12_282, l2_kib=36_864, bus_bits=192, counts_errors=False),
    ),
    Gpu(
        name="rtx-4080-16gb",
        title="NVIDIA GeForce RTX 4080",
        memory_bytes=16_049 * MIB,
        source=_PROPERTIES,
        chip=Chip(compute_capability=(8, 9), multiprocessors=76),
        board=Board(nvml_mib=16_376, l2_kib=65_536, bus_bits=256, counts_errors=False),
    ),
    Gpu(
        name="rtx-5080-16gb",
        title="NVIDIA GeForce RTX 5080",
        memory_bytes=15_976 * MIB,
        source=f"16,303 MiB: {_less(2)}",
        chip=Chip(compute_capability=(12, 0), multiprocessors=84),
        board=Board(nvml_mib=16_303, l2_kib=65_536, bus_bits=256, counts_errors=False),
    ),
    Gpu(
        name="rtx-a6000-48gb",
        title="NVIDIA RTX A6000",
        memory_bytes=48_676 * MIB,
        source=_PROPERTIES,
        chip=Chip(compute_capability=(8, 6), multiprocessors=84),
        board=Board(nvml_mib=49_140, l2_kib=6144, bus_bits=384, counts_errors=False),
    ),
    Gpu(
        name="rtx-6000-ada-48gb",
        title="NVIDIA RTX 6000 Ada Generation",
        memory_bytes=45_496 * MIB,
        source=_OOM + _WITH_ECC,
        chip=Chip(compute_capability=(8, 9), multiprocessors=142),
        board=Board(nvml_mib=46_068, l2_kib=98_304, bus_bits=384, counts_errors=True),
    ),
    Gpu(
        name="rtx-pro-6000-96gb",
        title="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        memory_bytes=97_249 * MIB,
        source=_PROPERTIES,
        chip=Chip(compute_capability=(12, 0), multiprocessors=188),
        board=Board(nvml_mib=97_887, l2_kib=131_072, bus_bits=512, counts_errors=True),
        other_names=("rtx-pro-6000-blackwell",),
    ),
    Gpu(
        name="a10g-24gb",
        title="NVIDIA A10G",
        memory_bytes=22_587 * MIB,
        source=_PROPERTIES,
        chip=Chip(compute_capability=(8, 6), multiprocessors=80),
        board=Board(nvml_mib=23_028, l2_kib=6144, bus_bits=384, counts_errors=True),
    ),
    Gpu(
        name="a40-48gb",
        title="NVIDIA A40",
        memory_bytes=45_416 * MIB,
        source=_PROPERTIES,
        chip=Chip(compute_capability=(8, 6), multiprocessors=84),
        board=Board(nvml_mib=46_068, l2_kib=6144, bus_bits=384, counts_errors=True),
    ),
    Gpu(
        name="l4-24gb",
        title="NVIDIA L4",
        memory_bytes=22_573 * MIB,
        source=f"23,034 MiB: {_less(2)}",
        chip=Chip(compute_capability=(8, 9), multiprocessors=58),
        board=Board(nvml_mib=23_034, l2_kib=49_152, bus_bits=192, counts_errors=True),
    ),
    Gpu(
        name="l40-48gb",
        title="NVIDIA L40",
        memory_bytes=45_146 * MIB,
        source=f"46,068 MiB: {_less(2)}",
        chip=Chip(compute_capability=(8, 9), multiprocessors=142),
        board=Board(nvml_mib=46_068, l2_kib=98_304, bus_bits=384, counts_errors=True),
    ),
    Gpu(
        name="v100-16gb",
        title="Tesla V100-SXM2-16GB",
        memory_bytes=16_130 * MIB,
        source=_PROPERTIES,
        chip=Chip(compute_capability=(7, 0), multiprocessors=80),
        board=Board(nvml_mib=16_160, l2_kib=6144, bus_bits=4096, counts_errors=True),
    ),
    Gpu(
        name="v100-32gb",
        title="Tesla V100-SXM2-32GB",
        memory_bytes=32_502 * MIB,
        source=_OOM + "31.74 GiB (liucongg/ChatGLM-Finetuning#73)",
        chip=Chip(compute_capability=(7, 0), multiprocessors=80),
        board=Board(nvml_mib=32_768, l2_kib=6144, bus_bits=4096, counts_errors=True),
    ),
    Gpu(
        name="h100-pcie-80gb",
        title="NVIDIA H100 PCIe",
        memory_bytes=81_008 * MIB,
        source=_PROPERTIES,
        chip=Chip(compute_capability=(9, 0), multiprocessors=114),
        board=Board(nvml_mib=81_559, l2_kib=51_200, bus_bits=5120, counts_errors=True),
    ),
    Gpu(
        name="h100-nvl-94gb",
        title="NVIDIA H100 NVL",
        memory_bytes=94_871 * MIB,
        source=f"95,830 MiB: {_less(1)}",
        chip=Chip(compute_capability=(9, 0), multiprocessors=132),
        board=Board(nvml_mib=95_830, l2_kib=51_200, bus_bits=6016, counts_errors=True),
    ),
    Gpu(
        name="h20-96gb",
        title="NVIDIA H20",
        memory_bytes=97_285 * MIB,
        source=_PROPERTIES,
        chip=Chip(compute_capability=(9, 0), multiprocessors=78),
        board=Board(nvml_mib=97_871, l2_kib=61_440, bus_bits=6144, counts_errors=True),
    ),
    Gpu(
        name="gh200-96gb",
        title="NVIDIA GH200 480GB",
        memory_bytes=97_157 * MIB,
        source=_OOM + "94.88 GiB (Lightning-AI/litgpt#1892)",
        chip=Chip(compute_capability=(9, 0), multiprocessors=132),
        board=Board(nvml_mib=97_871, l2_kib=51_200, bus_bits=6144, counts_errors=True),
        other_names=("grace-hopper",),
    ),
    Gpu(
        name="b300-288gb",
        title="NVIDIA B300 SXM6 AC",
        memory_bytes=272_289 * MIB,
        source=f"275,040 MiB: {_less(1)}",
        chip=Chip(compute_capability=(10, 3), multiprocessors=148),
        board=Board(nvml_mib=275_040, l2_kib=129_536, bus_bits=8192, counts_errors=True),
    ),
    Gpu(
        name="dgx-spark-128gb",
        title="NVIDIA GB10",
        memory_bytes=122_548 * MIB,
        source=_UNIFIED,
        chip=Chip(compute_capability=(12, 1), multiprocessors=48),
        is_rented=False,
        board=Board(nvml_mib=122_548, l2_kib=24_576, bus_bits=256, counts_errors=False),
        other_names=("gb10", "spark"),
    ),
)
"""Multiprocessors and boards are those of the vendor's data sheets; totals of NVML are from public logs."""

KNOWN_GPUS: Mapping[str, Gpu] = {card.name: card for card in _CARDS}
"""By our name. Capacities are rounded to 0.01 GiB, as torch prints them, and differ slightly by driver."""

ROOFLINES: Mapping[str, Roofline] = {card.name: card.roofline for card in _CARDS if card.roofline is not None}
"""By our name of the card: those whose peaks are known."""
