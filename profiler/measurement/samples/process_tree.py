"""Process tree: a process and its descendants.

Not through psutil, which reads a file for each process of the machine to find the children of one: with 93 processes it
takes 11 ms instead of 0.5 ms, in the sampling thread of a measured trial. tests/measurement compares the two.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path


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
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:  # it has ended
            continue
    return found
