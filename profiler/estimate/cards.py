"""Cards on the command line: a size in place of a name, and `gpu=any`."""

from collections.abc import Sequence

from profiler.config.options.reading import FieldReader
from profiler.domain.cards.gpu_names import find_gpu, name_card, sized_like

GPU, MEMORY, CAPABILITY = "gpu", "gpu_memory_gib", "compute_capability"

ANY = "any"
"""The value of `gpu` that asks for the verdict of every card."""


def read_size(options: FieldReader, gpus: Sequence[object]) -> str | None:
    """Return the card of `gpu_memory_gib` and `compute_capability`, as `gpu` names it; None without a size.

    What is wrong with them becomes faults of `options`.

    Args:
        options: The keys of a command; the capability as it stands, because 8.10 is not a number.
        gpus: The values of `gpu`, of which there may be none if a size is given.
    """
    capability = options.value(CAPABILITY)
    if options.value(MEMORY) is None:
        if capability is not None and options.sound(CAPABILITY):
            options.fail(CAPABILITY, f"needs {MEMORY}, because a named card has a capability of its own")
        return None
    if gpus:
        options.fail(MEMORY, "cannot be combined with gpu, which names a card")
        return None
    if not options.sound(MEMORY):
        return None
    size = options.number(MEMORY)
    alone = name_card(f"{size:f}GiB")
    card = name_card(f"{size:f}GiB" + (f"@{capability}" if capability is not None else ""))
    if find_gpu(card.name) is not None:
        return card.name
    if find_gpu(alone.name) is None:
        options.fail(MEMORY, alone.problem)
    else:
        options.fail(CAPABILITY, "must be a number such as 8.6, and at least 7.0")
    return None


def capability_note(gpu: str) -> str:
    """Return what is assumed of a card of which only the size is stated; empty for any other."""
    card = find_gpu(gpu)
    if card is None or card.source != "stated" or "@" in gpu:
        return ""
    like = sized_like(card.memory_bytes / 2**30)
    major, minor = card.compute_capability
    return f"compute_capability={major}.{minor} (of {like.name}, the nearest card)"
