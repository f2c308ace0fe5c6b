"""Reader of torch's out-of-memory message. Its sizes are rounded to two digits, as torch prints them."""

import re
from dataclasses import dataclass

from profiler.domain.units import GIB, KIB, MIB

_SIZE = r"([\d.]+) (GiB|MiB|KiB|bytes)"
_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "bytes": 1}


@dataclass(frozen=True, kw_only=True)
class OomMessage:
    """The sizes in a message; None for those that it does not have."""

    requested_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None


def read_oom_message(message: str) -> OomMessage:
    """Read the sizes in torch's message.

    Source of the wording: `CUDACachingAllocator.cpp`, where torch.OutOfMemoryError is raised.
    """
    allocated = _size(message, rf"Of the allocated memory {_SIZE} is allocated by PyTorch")
    unused = _size(message, rf"{_SIZE} is reserved by PyTorch but unallocated")
    return OomMessage(
        requested_bytes=_size(message, rf"Tried to allocate {_SIZE}"),
        free_bytes=_size(message, rf"of which {_SIZE} is free"),
        allocated_bytes=allocated,
        reserved_bytes=None if allocated is None or unused is None else allocated + unused,
    )


def _size(message: str, pattern: str) -> int | None:
    found = re.search(pattern, message)
    return None if found is None else int(float(found[1]) * _UNITS[found[2]])
