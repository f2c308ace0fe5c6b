"""What one slot of an array runs: a sweep of the whole plan, in a process that a scheduler has started."""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from profiler.domain.machines.slurm import SlurmGpus
from profiler.domain.runs.outcome import Versions

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission


@dataclass(kw_only=True)
class SlotJob:
    """The job of a slot. submitit pickles it, calls it on a node, and requeues it at its time limit."""

    target: str
    """Dotted name of a function that takes this job: ``"package.module:function"``."""
    words: tuple[str, ...]
    """The command line of the sweep on a node."""
    versions: Versions
    """What a node must have installed."""
    trial_versions: Versions
    """What the Python of the trials must have installed there; `python` may name another one."""
    folder: str
    """Where slots write their reports."""
    gpus: SlurmGpus | None
    """The GPUs of the slot."""
    finished: int = 0
    """How many trials it has run since it was started."""
    problem: str = ""
    """Why it is not requeued."""

    def __call__(self) -> None:
        """Run the slot."""
        self.finished = 0
        module, _, name = self.target.partition(":")
        getattr(import_module(module), name)(self)

    def checkpoint(self) -> "DelayedSubmission | None":
        """Return what to run after the time limit; None if no trial fits within it."""
        from submitit.helpers import DelayedSubmission

        if not self.finished:
            self.problem = "The time limit of the slot ended before its first trial. Raise slurm_time."
            return None
        return DelayedSubmission(self)
