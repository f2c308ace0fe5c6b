"""Whether the host's OOM killer was at work: the kernel's own counters."""

from pathlib import Path

_COUNTER = "oom_kill"


def oom_kills(*, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Processes that the kernel has killed for want of memory; None where it does not say.

    Those of our cgroup; of the whole machine if the cgroup has no counter.
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
            # In a container the group's path is the host's, and what is mounted is the group itself.
            found += [cgroups / "memory" / inside / "memory.oom_control", cgroups / "memory" / "memory.oom_control"]
    return found


def _read(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    counts = [line.split()[1] for line in lines if line.split()[:1] == [_COUNTER]]
    return int(counts[0]) if counts else None
