"""The CUDA context: memory of a process on a card in addition to its tensors."""

from profiler.domain.units import MIB

_CONTEXT_MIB = {
    (7, 0): 501,
    (7, 5): 135,
    (8, 0): 501,
    (8, 6): 257,
    (8, 9): 484,
    (9, 0): 676,
    (10, 0): 676,
    (12, 0): 595,
}


def cuda_context_bytes(compute_capability: tuple[int, int]) -> int:
    """Return the ASSUMED bytes of the CUDA context, including the kernels that a process has loaded.

    torch's out-of-memory messages state the memory of the process in use, the allocated memory, and the reserved but
    unallocated memory; the rest is the context. One message per card, from processes during training or inference
    (kernels are loaded at their first use):

    | capability | in use - allocated - reserved | where |
    |---|---|---|
    | 7.5 | 4.11 GiB - 3.72 GiB - 264.21 MiB, T4 | Zheng-Chong/CatVTON#133 |
    | 8.0 | 14.25 GiB - 12.87 GiB - 912.01 MiB, A100 40 GB | TianheWu/CoSeR#10 |
    | 8.6 | 9.43 GiB - 9.04 GiB - 142.12 MiB, 10 GB card | bcmi/libcom#54 |
    | 8.9 | 23.47 GiB - 23.01 GiB - 10.46 MiB, RTX 4090; 0.50 GiB on an L40 in QwenLM/Qwen3-VL#2097 | WorldGen#25 |
    | 9.0 | 91.91 GiB - 86.10 GiB - 5.15 GiB, H100 NVL | ali-vilab/VACE#56 |
    | 12.0 | 31.34 GiB - 30.74 GiB - 19.41 MiB, RTX 5090 | Wan-Video/Wan2.1#465 |

    The messages are rounded to 0.01 GiB or worse. The value of 8.9 is between its two messages. For 10.0 there was
    no message, so it has the value of 9.0, and 7.0 that of 8.0. Other messages of the same cards differ by 0.1 to
    0.3 GiB, by driver, libraries and torch, so this value must be shown as an assumption. An unknown capability has
    the value of the nearest lower one.
    """
    known = [capability for capability in _CONTEXT_MIB if capability <= compute_capability] or [min(_CONTEXT_MIB)]
    return _CONTEXT_MIB[max(known)] * MIB
