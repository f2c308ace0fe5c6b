"""A trial whose lock this sweep holds."""

from dataclasses import dataclass
from pathlib import Path

from profiler.domain.trials.trial import PlannedTrial
from profiler.execution.trials.stamp import Stamp, stamp_of
from profiler.storage.stores.record_store import Held


@dataclass(frozen=True, kw_only=True)
class LockedTrial:
    """A trial that only this sweep may run, until the lock is released."""

    trial: PlannedTrial
    lock: Held
    record_path: Path
    stamp_before: Stamp
    """Stamp of the record before the run."""

    @property
    def stderr_path(self) -> Path:
        """File that takes the worker's stdout and stderr."""
        return self.record_path.with_suffix(".stderr")

    @property
    def heartbeat_path(self) -> Path:
        """File that the training touches at each phase."""
        return self.record_path.with_suffix(".beat")

    @property
    def has_new_record(self) -> bool:
        """Whether the record has been written, or replaced, since the run began."""
        return stamp_of(self.record_path) != self.stamp_before


def locked_trial(trial: PlannedTrial, lock: Held, record_path: Path) -> LockedTrial:
    """Return the claim on a trial that is about to run."""
    return LockedTrial(trial=trial, lock=lock, record_path=record_path, stamp_before=stamp_of(record_path))
