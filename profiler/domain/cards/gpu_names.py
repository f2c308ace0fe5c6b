"""Cards by the names that people use for them, cards of a stated size, and cards that are refused by name."""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from profiler.domain.cards.gpu import KNOWN_GPUS, Chip, Gpu
from profiler.domain.memory import GIB

_SIZED = re.compile(r"(\d+(?:\.\d+)?) ?gib(?:@(\d+)\.(\d+))?", re.IGNORECASE)
"""``24GiB`` or ``24GiB@8.6``: memory, and compute capability."""

_IN_GB = re.compile(r"(\d+) ?gb?", re.IGNORECASE)

_FOREIGN = {
    "AMD": re.compile(r"(amd|instinct|radeon|mi-?\d{2,3}|rx-?\d{3,4}|gfx\d|strix|w7900|w6800)"),
    "Intel": re.compile(r"(intel|arc-|gaudi|max-1550|hpu|xpu)"),
    "Apple": re.compile(r"(apple|mps$|m[1-5]-(max|ultra|pro))"),
    "Google": re.compile(r"(tpu|v5e|v5p|v6e)"),
    "Huawei": re.compile(r"(huawei|ascend|910b|npu)"),
}
"""The makers of other accelerators, by how their names begin."""

_OTHER_NAMES = {other: gpu.name for gpu in KNOWN_GPUS.values() for other in gpu.other_names}

_WORDS_WITHOUT_MEANING = frozenset({"nvidia", "geforce", "tesla", "rtx", "gpu", "graphics"})

_LOWEST_CAPABILITY = (7, 0)
_LARGEST_GIB = 4096

_CLOSE = 0.75
"""Similarity from which one card is suggested, as `difflib` measures it; else those that share a word."""


@dataclass(frozen=True, kw_only=True)
class NamedCard:
    """The card that a text names, or why it names none."""

    name: str = ""
    """Our name of the card, or ``24GiB@8.6``; empty if there is none."""
    problem: str = ""
    hint: str = ""


def find_gpu(name: str | None) -> Gpu | None:
    """Return the card with our name, or of a stated size; None for any other name."""
    return KNOWN_GPUS.get(name or "") or _sized(name or "")


def gpu_named(name: str) -> Gpu:
    """Return the card of a specification, whose name has been checked.

    Raises:
        KeyError: There is no such card.
    """
    found = find_gpu(name)
    if found is None:
        raise KeyError(name)
    return found


def name_card(text: str) -> NamedCard:
    """Return the card that a user names."""
    plain = _plain(text)
    if plain in KNOWN_GPUS:
        return NamedCard(name=plain)
    if _SIZED.fullmatch(text.strip()):
        return _size_of(text.strip())
    for maker, pattern in _FOREIGN.items():
        if pattern.match(plain):
            return NamedCard(problem=f"is of {maker}, and only cards of NVIDIA are known", hint="See gpu=any.")
    if _IN_GB.fullmatch(text.strip()):
        return _gigabytes(text.strip())
    return _by_part(plain)


def name_known_card(text: str) -> NamedCard:
    """Return the card that a user names for a run, which takes none of a stated size."""
    card = name_card(text)
    if not card.name or card.name in KNOWN_GPUS:
        return card
    problem = "is a size, and only an estimate takes a card of any size"
    like = find_gpu(card.name)
    hint = f"Name a card, such as {sized_like(like.memory_bytes / GIB).name}." if like is not None else ""
    return NamedCard(problem=problem, hint=hint)


def sized_like(memory_gib: float) -> Gpu:
    """Return the known card whose memory is nearest; of two, the newer one."""
    size = memory_gib * GIB
    return min(KNOWN_GPUS.values(), key=lambda gpu: (abs(gpu.memory_bytes - size) // GIB, _older(gpu)))


def _older(gpu: Gpu) -> tuple[int, int]:
    major, minor = gpu.compute_capability
    return (-major, -minor)


@cache
def _sized(name: str) -> Gpu | None:
    match = _SIZED.fullmatch(name)
    if match is None:
        return None
    size = float(match[1])
    like = sized_like(size)
    capability = (int(match[2]), int(match[3])) if match[2] else like.compute_capability
    same = [gpu for gpu in KNOWN_GPUS.values() if gpu.compute_capability == capability] or [like]
    nearest_card = min(same, key=lambda gpu: abs(gpu.memory_bytes - size * GIB))
    return Gpu(
        name=name,
        title=name,
        memory_bytes=int(size * GIB),
        chip=Chip(compute_capability=capability, multiprocessors=nearest_card.chip.multiprocessors),
        source="stated",
    )


def _size_of(text: str) -> NamedCard:
    match = _SIZED.fullmatch(text)
    assert match is not None
    size = float(match[1])
    if not 1 <= size <= _LARGEST_GIB:
        return NamedCard(problem=f"must have from 1 to {_LARGEST_GIB} GiB")
    if match[2] and (int(match[2]), int(match[3])) < _LOWEST_CAPABILITY:
        return NamedCard(problem="must have a compute capability of at least 7.0, as torch 2.13 needs")
    tail = f"@{match[2]}.{match[3]}" if match[2] else ""
    return NamedCard(name=f"{size:g}GiB{tail}")


def _gigabytes(text: str) -> NamedCard:
    match = _IN_GB.fullmatch(text)
    assert match is not None
    size = int(match[1])
    cards = [name for name in KNOWN_GPUS if name.endswith(f"-{size}gb")]
    which = f"Cards of {size} GB: {', '.join(cards)}. " if cards else ""
    seen = f"{size * 0.98:.3g}GiB"
    return NamedCard(
        problem="names no card", hint=f"{which}For any other, give its memory as torch reports it: gpu={seen}."
    )


def _plain(text: str) -> str:
    return re.sub(r"[\s_]+", "-", text.strip().lower())


def _words(plain: str) -> list[str]:
    return [word for word in re.split(r"-+", plain) if word and word not in _WORDS_WITHOUT_MEANING]


def _by_part(plain: str) -> NamedCard:
    """Return the card of which `plain` is the vendor's name, or our name without its size."""
    if plain in _OTHER_NAMES:
        return NamedCard(name=_OTHER_NAMES[plain])
    asked = _words(plain)
    for card in KNOWN_GPUS.values():
        if asked == _words(_plain(card.title)):
            return NamedCard(name=card.name)
    for wanted in (asked, _words(_split(plain))):
        found = [name for name in KNOWN_GPUS if wanted and wanted in (_words(name), _words(name)[:-1])]
        if len(found) == 1:
            return NamedCard(name=found[0])
        if found:
            return NamedCard(problem=f"is one of several cards: {', '.join(found)}", hint="Name one of them.")
    return _unknown(plain, asked)


def _split(plain: str) -> str:
    """Return a name that is written in one word in parts: ``rtx4090`` and ``4060ti`` as in our names."""
    return re.sub(r"^(rtx|gtx)(?=\w)", r"\1-", re.sub(r"(?<=\d{4})(ti|super)\b", r"-\1", plain))


def _unknown(plain: str, asked: list[str]) -> NamedCard:
    known = f"must be one of {', '.join(KNOWN_GPUS)}, or a size such as 24GiB"
    related = [name for name in KNOWN_GPUS if asked and set(asked) & set(_words(name)[:-1])]
    closest = get_close_matches(plain, KNOWN_GPUS, n=1, cutoff=_CLOSE) or get_close_matches(plain, related, cutoff=0)
    listed = " or ".join(f"'{name}'" for name in closest)
    return NamedCard(problem=known, hint=f"Did you mean {listed}?" if listed else "")
