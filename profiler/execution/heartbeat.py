"""Signs of life of a trial: a file that the training itself touches at each of its phases.

Not a thread's: a thread goes on beating while the training hangs.
"""

from pathlib import Path

from profiler.execution.stamp import Stamp, stamp_of


def beat(path: Path) -> None:
    """The trial gets on. Called by the worker, from the thread that trains."""
    path.touch()


class Heartbeat:
    """The parent's look at it: how long since the last sign that was noticed.

    No clock of the worker's is compared with ours; what counts is when we saw the file change.
    """

    def __init__(self, path: Path, *, now_s: float) -> None:
        self.path = path
        self._seen: Stamp = stamp_of(path)
        self._seen_at_s = now_s
        self._began = False

    def silent_s(self, now_s: float) -> float:
        """Seconds since a change was noticed; 0 before the first beat, since not every worker beats."""
        stamp = stamp_of(self.path)
        if stamp != self._seen:
            self._seen, self._seen_at_s, self._began = stamp, now_s, True
        return now_s - self._seen_at_s if self._began else 0.0
