"""The CUDA context: memory of a process on a card in addition to its tensors."""

from profiler.domain.cards.capabilities import nearest_lower


def cuda_context_bytes(compute_capability: tuple[int, int]) -> int:
    """Return the ASSUMED bytes of the CUDA context, including the kernels that a process has loaded.

    torch's out-of-memory messages state the memory of the process in use, the allocated memory, and the reserved but
    unallocated memory; the rest is the context. Each row of `CAPABILITIES` quotes one message, from a process during
    training or inference (kernels are loaded at their first use).

    The messages are rounded to 0.01 GiB or worse. Other messages of the same cards differ by 0.1 to 0.3 GiB, by driver,
    libraries and torch, so this value must be shown as an assumption. An unknown capability has the value of the
    nearest lower one.
    """
    return nearest_lower(compute_capability, lambda row: row.context_bytes)
