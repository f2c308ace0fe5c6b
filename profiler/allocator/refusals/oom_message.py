"""Reader of torch's out-of-memory message. Its sizes are rounded to two digits, as torch prints them.

Sources of the wordings: `CUDACachingAllocator.cpp`, where torch.OutOfMemoryError is raised, in torch 1.13 to 2.13
("capacty" in 2.1), and logs of torch 1.1 ("cached", which is what is reserved and not allocated) and 1.2 ("inactive").
"""

import re
from dataclasses import dataclass

from profiler.domain.units import GIB, KIB, MIB

_SIZE = r"(?<![0-9])(?<![0-9][.,])([0-9]{1,15}(?:\.[0-9]{1,6})?) (GiB|MiB|KiB|bytes)"
_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "bytes": 1}

_TOO_LARGE = "more than 1EB"
"""In place of a size: a request that torch does not pass on to the driver."""


@dataclass(frozen=True, kw_only=True)
class OomMessage:
    """The sizes in a message; None for those that it does not have."""

    requested_bytes: int | None = None
    """Size of the allocator's request to the driver."""
    requested_text: str = ""
    """The same as torch printed it, also where that is no size."""
    total_bytes: int | None = None
    """Memory of the card."""
    free_bytes: int | None = None
    in_use_bytes: int | None = None
    """Memory of this process, with that of CUDA. torch prints it only if NVML lists the process by the number that it
    has itself, which is not so in most containers."""
    processes_bytes: tuple[int, ...] = ()
    """Memory of each process that NVML lists by another number; one of them may be this one."""
    allowed_bytes: int | None = None
    """Limit that the program set itself."""
    private_bytes: int | None = None
    """Allocated in private pools, such as those of CUDA graphs."""
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None

    @property
    def unallocated_bytes(self) -> int | None:
        """Cached memory that no tensor uses."""
        if self.allocated_bytes is None or self.reserved_bytes is None:
            return None
        return max(0, self.reserved_bytes - self.allocated_bytes)


def read_oom_message(message: str) -> OomMessage:
    """Read the sizes in torch's message, in any of its wordings. A size that cannot be parsed is not read.

    White space does not count, so that a message may be broken over lines anywhere.
    """
    text = "".join(message.split())
    allocated = _size(text, rf"Of the allocated memory {_SIZE} is allocated by PyTorch", rf"{_SIZE} already allocated")
    tried = _search(rf"Tried to allocate {_SIZE}", text)
    is_too_large = _search(f"Tried to allocate {_TOO_LARGE}", text) is not None
    return OomMessage(
        requested_bytes=None if tried is None else _bytes(tried[1], tried[2]),
        requested_text=f"{tried[1]} {tried[2]}" if tried is not None else _TOO_LARGE if is_too_large else "",
        total_bytes=_size(text, rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity"),
        free_bytes=_size(text, rf"of which {_SIZE} is free", rf"; {_SIZE} free"),
        in_use_bytes=_size(text, rf"this process has {_SIZE} memory in use"),
        processes_bytes=tuple(_bytes(*match) for match in _PROCESS.findall(text)),
        allowed_bytes=_size(text, rf"{_SIZE} allowed;"),
        private_bytes=_size(text, rf"{_SIZE} allocated in private pools", rf"{_SIZE} cached in private pools"),
        allocated_bytes=allocated,
        reserved_bytes=_reserved(text, allocated),
    )


def _reserved(text: str, allocated: int | None) -> int | None:
    """Return what PyTorch took from the driver: as it is, or what is allocated and what is not."""
    whole = _size(text, rf"{_SIZE} reserved in total by PyTorch")
    unused = _size(text, rf"{_SIZE} is reserved by PyTorch but unallocated", rf"; {_SIZE} cached[;)]")
    if whole is not None or allocated is None or unused is None:
        return whole
    return allocated + unused + (_size(text, rf"; {_SIZE} inactive\)") or 0)


def _size(text: str, *patterns: str) -> int | None:
    """Return the size that the first pattern finds that is in a text without white space."""
    found = next((found for pattern in patterns if (found := _search(pattern, text)) is not None), None)
    return None if found is None else _bytes(found[1], found[2])


def _search(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern.replace(" ", ""), text)


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])


_PROCESS = re.compile(rf"Process \d+ has {_SIZE} memory in use".replace(" ", ""))
