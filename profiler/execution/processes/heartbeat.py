"""Heartbeat of a trial: a file that the training touches at each phase.

The training itself touches it, because a separate thread would continue while the training hangs.
"""

from pathlib import Path

from profiler.execution.trials.stamp import Stamp, stamp_of


def beat(path: Path) -> None:
    """Record progress. Called by the worker, in the thread that trains."""
    path.touch()


class Heartbeat:
    """The parent's view of a heartbeat: the time since the last change that the parent noticed.

    Times of the worker's clock are not used; only the time counts when the parent saw the file change.
    """

    def __init__(self, path: Path, *, now_s: float) -> None:
        self.path = path
        self._seen: Stamp = stamp_of(path)
        self._seen_at_s = now_s
        self._began = False

    def silent_s(self, now_s: float) -> float:
        """Return the seconds since the last change; 0 before the first one, because some workers have no heartbeat."""
        stamp = stamp_of(self.path)
        if stamp != self._seen:
            self._seen, self._seen_at_s, self._began = stamp, now_s, True
        return now_s - self._seen_at_s if self._began else 0.0
