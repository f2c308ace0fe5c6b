"""What a sweep needs of the store of its records, whatever that is, and its rounds.

Rounds of a sweep: in one round, a trial that ends without an answer runs once, however many machines take part.

A round begins with the first machine that starts a plan in a shared store. Machines that start later take part in it,
also those that were killed. It ends when a machine has come to the end of the plan, or when its user or an error stops
it. The next machine that starts then begins a round, in which trials without an answer run again.
"""

import hashlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from profiler.domain.machines.engines import Holder, OtherMachines
from profiler.domain.runs.outcome import Status, TrialRecord
from profiler.storage.files.atomic import StorageError
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


ROUNDS = "rounds/"
MARKS = "ended/"

_IS_OVER = ".over"


@dataclass(frozen=True, kw_only=True)
class Marks:
    """The trials that have ended in one round: one object per trial."""

    objects: Objects
    impatient: Objects
    """The same objects, where each operation is tried once."""
    prefix: str = MARKS
    is_for_all: bool = False
    """Whether trials with an answer are marked too, because they would run again otherwise."""

    def ended(self, *, patiently: bool = True) -> frozenset[str]:
        """Return the trials that are marked."""
        listed = (self.objects if patiently else self.impatient).list(self.prefix)
        return frozenset(name.removeprefix(self.prefix) for name in listed)

    def has(self, trial_id: str) -> bool:
        """Return whether a trial is marked."""
        return self.objects.read(self.prefix + trial_id) is not None

    def add(self, record: TrialRecord) -> None:
        """Mark the trial of a published record, if it has to be."""
        status = record.outcome.status
        # A broken GPU is not the trial's fault: it runs on another one.
        if status is not Status.DEVICE_FAULT and (self.is_for_all or not status.answered):
            self.objects.write(self.prefix + record.trial_id, status.encode())


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round that this process takes part in."""

    objects: Objects = field(compare=False)
    name: str

    @property
    def marks(self) -> str:
        """The beginning of the names of its marks."""
        return f"{MARKS}{self.name}/"

    def end(self) -> None:
        """End the round for machines that start from now on. If the store cannot be reached, it goes on."""
        with suppress(StorageError, OSError):
            self.objects.write(f"{ROUNDS}{self.name}{_IS_OVER}", b"over")


def take_part(objects: Objects, trial_ids: Sequence[str]) -> Round:
    """Return the round of a plan that has not ended, or begin one.

    Raises:
        StorageError: The store cannot be reached for too long.
    """
    plan = hashlib.sha256("\n".join(sorted(trial_ids)).encode()).hexdigest()[:12]
    names = objects.list(f"{ROUNDS}{plan}.")
    latest = max(map(_number, names), default=0)
    is_over = f"{ROUNDS}{_name(plan, latest)}{_IS_OVER}" in names
    if latest and not is_over:
        return Round(objects=objects, name=_name(plan, latest))
    found = Round(objects=objects, name=_name(plan, latest + 1))
    # If another machine is faster, this one takes part in its round.
    objects.create(f"{ROUNDS}{found.name}", secrets.token_bytes(8))
    # Machines of the latest round may still run.
    earlier = [name for name in names if _number(name) < latest]
    marks = [mark for number in set(map(_number, earlier)) for mark in objects.list(f"{MARKS}{_name(plan, number)}/")]
    for name in (*marks, *earlier):
        objects.remove(name)
    return found


def _name(plan: str, number: int) -> str:
    return f"{plan}.{number:06d}"


def _number(name: str) -> int:
    """Return the number of the round of an object; 0 if it is of something else."""
    number = name.removesuffix(_IS_OVER).rpartition(".")[2]
    return int(number) if number.isdecimal() else 0
