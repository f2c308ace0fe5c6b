"""Graphics cards that a simulation can pretend to have, and that a bigger card can be capped to."""

from collections.abc import Mapping
from dataclasses import dataclass

from profiler.domain.units import MIB


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One card as torch sees it."""

    name: str
    """Our name for it, as in `gpu=h100-80gb`."""
    title: str
    """The maker's name."""
    memory_bytes: int
    """What `torch.cuda.get_device_properties(0).total_memory` reports: less than the number on the box."""
    compute_capability: tuple[int, int]
    """(major, minor); decides which kernels run."""
    source: str
    """Where `memory_bytes` comes from."""

    @property
    def kernel_family(self) -> int:
        """Cards of one family choose the same attention kernels, so that one simulated run may serve them all.

        The generation that began it: 9 and 10 ask cuDNN first, 8 and 12 take flash or memory-efficient attention, 7
        has no flash. What workspaces differ within a family the run keeps for each card.
        """
        major = self.compute_capability[0]
        return 9 if major in (9, 10) else min(major, 8)


def _card(name: str, title: str, memory_mib: int, compute_capability: tuple[int, int], source: str) -> Gpu:
    return Gpu(
        name=name,
        title=title,
        memory_bytes=memory_mib * MIB,
        compute_capability=compute_capability,
        source=source,
    )


_OOM = "'total capacity' in a torch out-of-memory message, "

_CARDS = (
    _card("h100-80gb", "NVIDIA H100 80GB HBM3", 81_009, (9, 0), _OOM + "79.11 GiB (vllm-project/vllm#27508)"),
    _card("h200-141gb", "NVIDIA H200", 143_155, (9, 0), _OOM + "139.80 GiB (several public training logs)"),
    _card("b200-180gb", "NVIDIA B200", 182_630, (10, 0), _OOM + "178.35 GiB (several public training logs)"),
    _card("a100-40gb", "NVIDIA A100-SXM4-40GB", 40_540, (8, 0), _OOM + "39.59 GiB (raoyongming/DenseCLIP#52)"),
    _card("a100-80gb", "NVIDIA A100-SXM4-80GB", 81_152, (8, 0), _OOM + "79.25 GiB (levihsu/OOTDiffusion#235)"),
    _card("l40s-48gb", "NVIDIA L40S", 45_486, (8, 9), _OOM + "44.42 GiB (stepfun-ai/Step-Video-T2V#8)"),
    _card("rtx-4090-24gb", "NVIDIA GeForce RTX 4090", 24_207, (8, 9), _OOM + "23.64 GiB (TMElyralab/MuseTalk#76)"),
    _card("rtx-5090-32gb", "NVIDIA GeForce RTX 5090", 32_113, (12, 0), _OOM + "31.36 GiB (TrajectoryCrafter#20)"),
    _card("t4-16gb", "Tesla T4", 15_104, (7, 5), _OOM + "14.75 GiB (hpcaitech/Open-Sora#697)"),
    _card(
        "rtx-3080-laptop-16gb",
        "NVIDIA GeForce RTX 3080 Laptop GPU",
        16_108,
        (8, 6),
        _OOM + "15.73 GiB (published row oxen-laptop-oom)",
    ),
)

KNOWN_GPUS: Mapping[str, Gpu] = {card.name: card for card in _CARDS}
"""By our name. The figures are rounded as torch prints them (0.01 GiB) and differ a little by driver."""
