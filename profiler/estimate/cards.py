"""Cards on the command line: a size in place of a name, and `gpu=any`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiler.domain.errors import Fault
from profiler.domain.gpu_names import find_gpu, name_card, sized_like

GPU, MEMORY, CAPABILITY = "gpu", "gpu_memory_gib", "compute_capability"

ANY = "any"
"""The value of `gpu` that asks for the verdict of every card."""


@dataclass(frozen=True, kw_only=True)
class AskedCards:
    """What a command says of cards."""

    gpu: str | None = None
    """A card of a stated size, as `gpu` names it; None if the command states no size."""
    faults: tuple[Fault, ...] = ()


def read_size(words: Mapping[str, str], gpus: Sequence[object]) -> AskedCards:
    """Return the card of `gpu_memory_gib` and `compute_capability` among the `words` of a command.

    Args:
        words: The texts of these keys.
        gpus: The values of `gpu`, of which there may be none if a size is given.
    """
    size, capability = words.get(MEMORY), words.get(CAPABILITY)
    if size is None:
        if capability is None:
            return AskedCards()
        return _fault(CAPABILITY, capability, f"needs {MEMORY}, because a named card has a capability of its own")
    if gpus:
        return _fault(MEMORY, size, "cannot be combined with gpu, which names a card")
    card = name_card(f"{size}GiB" + (f"@{capability}" if capability is not None else ""))
    if find_gpu(card.name) is None:
        key, found = (CAPABILITY, capability) if capability and name_card(f"{size}GiB").name else (MEMORY, size)
        problem = "must be a number such as 8.6, and at least 7.0" if key == CAPABILITY else "must be a number of GiB"
        return _fault(key, str(found), problem)
    return AskedCards(gpu=card.name)


def capability_note(gpu: str) -> str:
    """Return what is assumed of a card of which only the size is stated; empty for any other."""
    card = find_gpu(gpu)
    if card is None or card.source != "stated" or "@" in gpu:
        return ""
    like = sized_like(card.memory_bytes / 2**30)
    major, minor = card.compute_capability
    return f"compute_capability={major}.{minor} (of {like.name}, the nearest card)"


def _fault(key: str, found: str, problem: str) -> AskedCards:
    return AskedCards(faults=(Fault(key=key, found=found, problem=problem),))
