"""Which processes are ours: this one and what it started."""

import os
import time
from collections.abc import Callable
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


class RecentProcessTree:
    """`process_tree`, asked anew at most once in `for_s` seconds: it reads a file for each thread of each process."""

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
        """The processes as they were at most `for_s` seconds ago."""
        now_s = self._clock()
        if now_s - self._found_at_s >= self._for_s:
            self._found, self._found_at_s = self._tree(), now_s
        return self._found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:  # it ended meanwhile
            continue
    return found
