"""Whose the memory of a card was at an out-of-memory error: this program's, or that of other processes.

torch calls a process "this process" only if NVML lists it by the number that it has itself. In a container it has
another one, so that its own memory is printed as that of "Process 6123". The sums of the message say more than
numbers of processes do: what is in use on the card is that of all processes, and this program has at least what its
allocator took from the driver.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from profiler.allocator.refusals.oom_message import OomMessage
from profiler.domain.units import GIB, MIB

ROUNDING_BYTES = 24 * MIB
"""How far sums of sizes with two digits in GiB can be apart: half of the last digit, four times."""

OUTSIDE_BYTES = 3 * GIB
"""Most memory that a program is taken to have outside of PyTorch's allocator (our choice): a CUDA context has at most
0.7 GiB (`domain/cards/context.py`), buffers of NCCL and of libraries come on top. As much may be in use by what NVML
does not list as a process that computes: a desktop, the driver."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Memory of a card that is not this program's, as bounds."""

    least_others_bytes: int
    most_others_bytes: int
    """Equal to the least if the message decides it."""
    others: int | None
    """How many other processes the message lists; None if it does not tell them from this program."""
    is_named: bool
    """Whether torch itself names the memory of this program."""


def shares(message: OomMessage) -> Shares | None:
    """Return whose the memory of the card was; None if the message does not have the sums.

    By hand, 79.10 GiB of which 1.43 are free, 75.86 reserved, and "Process 6123 has 77.66 GiB": another process next to
    a program of 75.86 would not fit, so 6123 is the program.
    """
    total, free, reserved = message.total_bytes, message.free_bytes, message.reserved_bytes
    if total is None or free is None or reserved is None or free > total:
        return None
    in_use = total - free
    listed = [size for size in message.processes_bytes if 0 < size <= total]
    own = message.in_use_bytes
    if own is not None and _is_possible(own, total=total, reserved=min(reserved, in_use)):
        least = max(sum(listed), in_use - own - OUTSIDE_BYTES)
        return _shares(least, max(least, in_use - own), others=len(listed) or None, is_named=True)
    return _unnamed(in_use, reserved, listed)


def _unnamed(in_use: int, reserved: int, listed: Sequence[int]) -> Shares:
    """Return the shares where torch does not name this program.

    Args:
        in_use: Memory of all processes on the card.
        reserved: What this program's allocator took from the driver.
        listed: Memory of the processes that the message lists.
    """
    whole = max(in_use, sum(listed))
    # This program is one of the listed processes, or what none of them has.
    unlisted = [whole - sum(listed)] if listed else []
    possible = [size for size in (*listed, *unlisted) if size + ROUNDING_BYTES >= reserved]
    likely = [size for size in possible if size <= reserved + OUTSIDE_BYTES] or possible
    if not likely:
        return _shares(whole - reserved - OUTSIDE_BYTES, whole - reserved, others=None)
    is_listed = sum(listed) + reserved > whole + ROUNDING_BYTES
    count = len(listed) - 1 if is_listed else None if any(size in listed for size in likely) else len(listed)
    return _shares(whole - max(likely), whole - min(likely), others=count)


def _is_possible(own: int, *, total: int, reserved: int) -> bool:
    """Return whether a program can have `own` bytes. Under Windows and WSL, NVML says 2**64 - 1, or nothing."""
    return 0 < own <= total and own + ROUNDING_BYTES >= reserved


def _shares(least: int, most: int, *, others: int | None, is_named: bool = False) -> Shares:
    """Return bounds, where what rounding may explain is nothing."""
    bounds = [size if size > ROUNDING_BYTES else 0 for size in (least, most)]
    return Shares(least_others_bytes=bounds[0], most_others_bytes=bounds[1], others=others, is_named=is_named)
