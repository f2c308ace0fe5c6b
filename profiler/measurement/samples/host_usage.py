"""Memory of the host: of a process with its descendants, and of the whole machine or container; and its cores.

Process tree: a process and its descendants.

Not through psutil, which reads a file for each process of the machine to find the children of one: with 93 processes it
takes 11 ms instead of 0.5 ms, in the sampling thread of a measured trial. tests/measurement compares the two.
"""

import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from profiler.domain.memory import KIB


def usable_cores() -> int:
    """Return how many cores this process may use: a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_tree(root: int | None = None) -> frozenset[int]:
    """Return the ids of a process (by default this one) and of its descendants; only its own id without /proc."""
    found: set[int] = set()
    waiting = [os.getpid() if root is None else root]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += _children(pid)
    return frozenset(found)


class RecentProcessTree:
    """`process_tree`, read at most once every `for_s` seconds: it reads one file per thread of each process."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        for_s: float = 1.0,
        tree: Callable[[], frozenset[int]] = process_tree,
    ) -> None:
        """`clock` is monotonic."""
        self._clock = clock
        self._for_s = for_s
        self._tree = tree
        self._found = tree()
        self._found_at_s = clock()

    def __call__(self) -> frozenset[int]:
        """Return the processes as they were at most `for_s` seconds ago."""
        now_s = self._clock()
        if now_s - self._found_at_s >= self._for_s:
            self._found, self._found_at_s = self._tree(), now_s
        return self._found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        # Not `Path.glob`: in Python 3.11 it raises where the process ends between its look at the folder and its list.
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208
    except OSError:  # it has ended
        return []
    for thread in threads:
        try:
            found += [int(word) for word in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
        except OSError:  # it has ended
            continue
    return found


def peak_pinned_bytes() -> int | None:
    """Return the most pinned memory that torch's allocator had of the host; None without a counter of it.

    There is none where this process has used no CUDA, where torch was built without it, and in an older torch. Each
    block counts as it was asked of CUDA: rounded up to a power of two. Not included: what other libraries pin
    themselves, as NCCL.
    """
    torch = sys.modules.get("torch")
    read = getattr(getattr(torch, "cuda", None), "host_memory_stats", None)
    if torch is None or read is None or not torch.cuda.is_initialized():
        return None
    try:
        found = read().get("allocated_bytes.peak")
    except AttributeError:  # torch was built without the counter
        return None
    return None if found is None else int(found)


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
    return resident_and_shared_bytes(pids, proc=proc)[0]


def resident_and_shared_bytes(pids: Iterable[int], *, proc: Path = Path("/proc")) -> tuple[int, int]:
    """Return the resident memory of processes, and the part of it that is of files or shared, each page per process."""
    resident, shared = 0, 0
    for pid in pids:
        try:
            pages = [int(word) for word in (proc / str(pid) / "statm").read_text().split()[1:3]]
            resident, shared = resident + pages[0] * mmap.PAGESIZE, shared + pages[1] * mmap.PAGESIZE
        except (OSError, ValueError, IndexError):  # it has ended
            continue
    return resident, shared


def host_memory(*, proc: Path = Path("/proc")) -> tuple[int | None, int | None]:
    """Return (used, total) of the host; None where the kernel does not report it."""
    try:
        lines = (proc / "meminfo").read_text().splitlines()
    except OSError:
        return None, None
    sizes = {name: int(rest.split()[0]) * KIB for name, _, rest in (line.partition(":") for line in lines) if rest}
    total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
    return (None if total is None or available is None else total - available), total
