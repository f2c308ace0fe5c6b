"""The kernel's counters of its out-of-memory killer."""

from pathlib import Path

_COUNTER = "oom_kill"


def oom_kills(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many processes the kernel has killed for lack of memory; None if it has no such counter.

    Counts our cgroup, or the whole machine if the cgroup has no counter.
    """
    for path in (*_of_our_cgroup(proc, cgroups), proc / "vmstat"):
        found = _read(path)
        if found is not None:
            return found
    return None


def _of_our_cgroup(proc: Path, cgroups: Path) -> list[Path]:
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        inside = group.lstrip("/")
        if not controllers:  # version 2
            found += [cgroups / inside / "memory.events", cgroups / "memory.events"]
        elif "memory" in controllers.split(","):
            # In a container the path is that of the host, and the group itself is mounted.
            found += [cgroups / "memory" / inside / "memory.oom_control", cgroups / "memory" / "memory.oom_control"]
    return found


def _read(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.split()[:1] == [_COUNTER]]
    return int(counts[0]) if counts else None
