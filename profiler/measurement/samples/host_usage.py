"""Memory of the host: of some processes, and of the whole machine or the container."""

import mmap
import sys
from collections.abc import Iterable
from pathlib import Path

from profiler.domain.units import KIB


def peak_resident_bytes() -> int | None:
    """Return the peak of this process's resident memory; None on Windows, where Python has no counter of it.

    Linux counts it in KiB, macOS in bytes. psutil has only the present value.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes(pids: Iterable[int], *, proc: Path = Path("/proc")) -> int:
    """Return the resident memory of processes, in which pages that they share count once for each of them."""
    total = 0
    for pid in pids:
        try:
            total += int((proc / str(pid) / "statm").read_text().split()[1]) * mmap.PAGESIZE
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    return total


def host_memory(*, proc: Path = Path("/proc")) -> tuple[int | None, int | None]:
    """Return (used, total) of the host; None where the kernel does not report it."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return None, None
    sizes = {name: int(rest.split()[0]) * KIB for name, _, rest in (line.partition(":") for line in lines) if rest}
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    return (None if total is None or available is None else total - available), total
