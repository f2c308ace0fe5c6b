"""What a sweep needs of the store of its records, whatever that is: a folder, or a store that machines share."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from profiler.domain.machines.sweep_state import Holder, OtherMachines
from profiler.domain.runs.outcome import TrialRecord
from profiler.storage.stores.objects import Objects
from profiler.storage.stores.record_store import Held


class TrialStore(Protocol):
    """Records of one grid, and claims on its trials.

    Workers write to a folder of their machine (`path`). Releasing a claim makes their records visible to all.
    """

    def path(self, trial_id: str, /) -> Path:
        """Return where a worker of this machine writes a trial's record."""

    def write(self, record: TrialRecord, /) -> None:
        """Store a record in place of a worker. The trial is claimed."""

    def remove_partial(self, trial_id: str, /) -> None:
        """Remove temporary files of a trial. The trial is claimed."""

    def find(self, trial_id: str, /) -> TrialRecord | None:
        """Return the stored record of a trial, or None."""

    def find_many(self, trial_ids: Sequence[str], /) -> Iterator[tuple[str, TrialRecord | None]]:
        """Yield each trial with its stored record, or None."""

    def read_all(self) -> tuple[TrialRecord, ...]:
        """Return every stored record, by trial id."""

    def read_each(self) -> Iterator[TrialRecord]:
        """Yield every stored record, by trial id."""

    def is_news(self, trial_id: str, /) -> bool:
        """Return whether it is known, without a look, that another machine has stored a record meanwhile."""

    def take_part(self, trial_ids: Sequence[str], /, *, marks: Objects | None, runs_all: bool) -> None:
        """Take part in a round, in which each trial runs once on all machines, whatever its result.

        Args:
            trial_ids: The plan. Machines with the same one take part in the same round.
            marks: Where the round of an array of slots notes the trials that have ended; None for that of the plan.
            runs_all: Whether trials with an answer run too.
        """

    def end_round(self) -> None:
        """End the round of the plan for machines that start from now on."""

    def ended(self) -> frozenset[str]:
        """Return the trials that have ended in this round and do not run again in it."""

    def has_ended(self, trial_id: str, /) -> bool:
        """Return whether a trial has ended in this round and does not run again in it."""

    def has_snapshot(self, trial_id: str, /) -> bool:
        """Return whether the memory snapshot of a trial is stored."""

    def claim(self, trial_id: str, /, *, wait: bool) -> Held | None:
        """Claim a trial; return None if another process holds it. With `wait`, wait for it, at least for a while."""

    def other_machines(self) -> OtherMachines:
        """Return what other machines do with the trials, as far as it is known without a look."""

    def claimed(self) -> Mapping[str, Holder]:
        """Return the trials that machines have claimed now, with their holders, as far as that can be listed."""

    def gather(self) -> None:
        """Bring what the tables are assembled from into the folder of this machine."""

    def share(self) -> None:
        """Make tables and pages in the folder of this machine visible to all."""
