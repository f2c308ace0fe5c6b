"""What a worker is given, and what the parent tells whoever watches."""

from dataclasses import dataclass
from typing import Protocol

from profiler.domain.outcome import TrialRecord, Versions
from profiler.domain.trial import PlannedTrial


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """One trial for one worker process. Picklable, because it crosses a process border."""

    trial: PlannedTrial
    versions: Versions
    store_folder: str
    """Folder of the `RecordStore` the worker writes its record to."""
    stderr_path: str
    """File that takes the worker's stdout and stderr."""
    siblings: tuple[PlannedTrial, ...] = ()
    """Trials that the same simulated run answers (`run_key`): the worker stores a record for each."""
    snapshot: bool = False
    """Whether to write a memory snapshot beside the records."""
    breakdown: bool = False
    """Whether a measured trial runs once more with books on its tensors."""
    sample_period_s: float | None = None
    """From one sample of the GPU's driver to the next; None to take none."""
    gpu_uuid: str | None = None
    """The one GPU that the worker may see; None to leave the environment as it is."""
    heartbeat_path: str | None = None
    """File that the training touches as it gets on; None for no sign of life."""


class SweepObserver(Protocol):
    """Whoever watches a sweep: a progress bar, a log. Called in the parent, in the order things happen."""

    def started(self, trial: PlannedTrial) -> None:
        """A worker for `trial` has started."""

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """`trial` has its record.

        Without `started` before it, the record was there already: from an earlier sweep, or from another one that
        runs in the same folder.
        """
