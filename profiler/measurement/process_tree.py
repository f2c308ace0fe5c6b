"""Which processes are ours: this one and what it started."""

import os
from pathlib import Path


def process_tree(root: int | None = None) -> frozenset[int]:
    """The numbers of a process (this one, if none is named) and of its descendants; only itself where /proc is not."""
    found: set[int] = set()
    waiting = [os.getpid() if root is None else root]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += _children(pid)
    return frozenset(found)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:  # it ended meanwhile
            continue
    return found
