"""Reader of torch's out-of-memory message. Its sizes are rounded to two digits, as torch prints them.

Source of the wordings: `CUDACachingAllocator.cpp`, where torch.OutOfMemoryError is raised, in torch 1.13 to 2.13.
"""

import re
from dataclasses import dataclass

from profiler.domain.units import GIB, KIB, MIB

_SIZE = r"([\d.]+) (GiB|MiB|KiB|bytes)"
_UNITS = {"GiB": GIB, "MiB": MIB, "KiB": KIB, "bytes": 1}

_SENTENCE = re.compile(r"(?:CUDA|HIP) out of memory\. Tried to allocate [^\n]*")
_PROCESS = re.compile(rf"Process \d+ has {_SIZE} memory in use")
_FRAME = re.compile(r'^\s*(?:\[\w+\]:)?\s*File "[^"\n]*", line \d+, in (\w+)', re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class OomMessage:
    """The sizes in a message; None for those that it does not have."""

    requested_bytes: int | None = None
    """Size of the allocator's request to the driver."""
    requested_text: str = ""
    """The same as torch printed it."""
    total_bytes: int | None = None
    """Memory of the card."""
    free_bytes: int | None = None
    in_use_bytes: int | None = None
    """Memory of this process, with that of CUDA."""
    others_bytes: int | None = None
    """Memory of other processes on the card."""
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


@dataclass(frozen=True, kw_only=True)
class OomReport:
    """The out-of-memory errors of a log."""

    message: OomMessage
    """The first one: later ones are often its consequence."""
    count: int
    """How many there are."""
    functions: tuple[str, ...]
    """Names of the functions of the traceback in front of the first one, the outermost first."""


def find_oom(log: str) -> OomReport | None:
    """Return the first out-of-memory message of a log; None if there is none with sizes."""
    found = list(_SENTENCE.finditer(log))
    if not found:
        return None
    before = log[: found[0].start()]
    traceback = before[max(0, before.rfind("Traceback (most recent call last)")) :]
    return OomReport(
        message=read_oom_message(found[0][0]), count=len(found), functions=tuple(_FRAME.findall(traceback))
    )


def read_oom_message(message: str) -> OomMessage:
    """Read the sizes in torch's message, in the wording of 2.1 and later or in that of 2.0 and earlier."""
    new = _size(message, rf"Of the allocated memory {_SIZE} is allocated by PyTorch")
    unused = _size(message, rf"{_SIZE} is reserved by PyTorch but unallocated")
    reserved = None if new is None or unused is None else new + unused
    tried = re.search(rf"Tried to allocate {_SIZE}", message)
    others = [_bytes(*match) for match in _PROCESS.findall(message)]
    return OomMessage(
        requested_bytes=None if tried is None else _bytes(tried[1], tried[2]),
        requested_text="" if tried is None else f"{tried[1]} {tried[2]}",
        # torch 2.1 spelled it "capacty".
        total_bytes=_size(message, rf"total capaci?ty of {_SIZE}", rf"{_SIZE} total capacity"),
        free_bytes=_size(message, rf"of which {_SIZE} is free", rf"; {_SIZE} free"),
        in_use_bytes=_size(message, rf"this process has {_SIZE} memory in use"),
        others_bytes=sum(others) if others else None,
        allowed_bytes=_size(message, rf"{_SIZE} allowed;"),
        private_bytes=_size(message, rf"{_SIZE} allocated in private pools", rf"{_SIZE} cached in private pools"),
        allocated_bytes=_size(message, rf"; {_SIZE} already allocated") if new is None else new,
        reserved_bytes=_size(message, rf"{_SIZE} reserved in total by PyTorch") if reserved is None else reserved,
    )


def _size(message: str, *patterns: str) -> int | None:
    """Return the size that the first pattern finds that is in the message."""
    for pattern in patterns:
        found = re.search(pattern, message)
        if found is not None:
            return _bytes(found[1], found[2])
    return None


def _bytes(number: str, unit: str) -> int:
    return int(float(number) * _UNITS[unit])
