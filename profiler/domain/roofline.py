"""What cards can do at most per second: the roofline under which no step can be faster."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """Peaks of one card. Products are dense; those of float32 run without TF32, which is torch's default."""

    half_flops_per_s: float
    """Floating-point operations per second in bfloat16 or float16, on tensor cores."""
    single_flops_per_s: float
    """The same in float32."""
    memory_bytes_per_s: float
    """Bandwidth of the card's memory."""
    link_bytes_per_s: float
    """Bandwidth between host and card, in one direction."""
    source: str


_H100 = "NVIDIA H100 data sheet, SXM5: 1,979 TFLOPS with sparsity, half of it dense; PCIe 5.0 x16, 128 GB/s both ways"
_A100 = "NVIDIA A100 data sheet, SXM4; PCIe 4.0 x16, 64 GB/s both ways"

ROOFLINES: Mapping[str, Roofline] = {
    "h100-80gb": Roofline(
        half_flops_per_s=989.5e12,
        single_flops_per_s=67e12,
        memory_bytes_per_s=3.35e12,
        link_bytes_per_s=64e9,
        source=_H100,
    ),
    "a100-40gb": Roofline(
        half_flops_per_s=312e12,
        single_flops_per_s=19.5e12,
        memory_bytes_per_s=1.555e12,
        link_bytes_per_s=32e9,
        source=_A100,
    ),
    "a100-80gb": Roofline(
        half_flops_per_s=312e12,
        single_flops_per_s=19.5e12,
        memory_bytes_per_s=2.039e12,
        link_bytes_per_s=32e9,
        source=_A100,
    ),
}
"""By our name of the card."""
