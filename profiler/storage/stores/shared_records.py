"""Records of one grid in a store that several machines share: one object per record.

Workers write files to a folder of their machine, as on one machine. When a trial is released, its files become objects,
the record last, and the files are removed: what is still in the folder is not yet in the store.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath

from profiler.domain.machines.engines import Holder, OtherMachines
from profiler.domain.runs.outcome import TrialRecord
from profiler.storage.files.atomic import StorageError, write_atomically
from profiler.storage.files.foreign_files import read_bytes
from profiler.storage.files.trial_files import RANKS, RECORDS, snapshot_path, trial_file
from profiler.storage.records.record_folder import TRIALS
from profiler.storage.records.versioned import DamagedRecordError
from profiler.storage.stores.leases import Lease, Leases
from profiler.storage.stores.objects import MOST_BYTES, Objects
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.stores.trial_store import Marks, Round, take_part
from profiler.storage.tables.run_tables import samples_path

_OF_A_RANK = (".json", ".parquet", ".pickle")
"""Suffixes of what a rank of a trial on several GPUs leaves: record, samples, snapshot."""

_AT_ONCE = 500
"""Records that are read and parsed together."""

_WAIT_S = 1.0
"""How long one wait for a claim takes."""

_REPORT_FILES = ("*.parquet", "report.*", "*.csv", "*.tex", "figures/*")

_LISTING_SHARE = 0.1
"""Largest part of the time that lists of all records take."""


@dataclass(frozen=True, kw_only=True)
class LeasedTrial:
    """A trial that only this process may run, on all machines."""

    lease: Lease
    release_lease: Callable[[Lease], None]

    def release(self) -> None:
        """Publish the files of the trial, and give it back."""
        self.release_lease(self.lease)


class SharedRecords:
    """Records of one grid, as objects ``records/<trial>.json``, with claims by leases."""

    def __init__(
        self,
        objects: Objects,
        *,
        impatient: Objects,
        folder: Path,
        address: str,
        lease_s: float,
        notify: Callable[[str], None],
    ) -> None:
        """Read nothing yet.

        Args:
            objects: The store, tried again for a while.
            impatient: The same store, where each operation is tried once.
            folder: Folder of this machine, where workers write.
            address: Address of the grid, for sentences.
            lease_s: Time after which the claim of a machine that has ended runs out.
            notify: Receives a sentence for each object that is left out.
        """
        self._objects = objects
        self._impatient = impatient
        self._folder = folder
        self._local = RecordStore(folder, notify=notify)
        self._address = address
        self._notify = notify
        self._leases = Leases(objects=objects, impatient=impatient, lease_s=lease_s, also_renew=self._look_for_news)
        self._at_first: frozenset[str] | None = None
        self._news: frozenset[str] = frozenset()
        self._next_list_s = 0.0
        self._round: Round | None = None
        self._marks: Marks | None = None

    def take_part(self, trial_ids: Sequence[str], *, marks: Objects | None, runs_all: bool) -> None:
        """Take part in the round of a plan, or in that of `marks`."""
        if marks is None:
            self._round = take_part(self._objects, trial_ids)
            own = Marks(objects=self._objects, impatient=self._impatient, prefix=self._round.marks)
        else:
            own = Marks(objects=marks, impatient=marks)
        self._marks = replace(own, is_for_all=runs_all)

    def end_round(self) -> None:
        """End the round for machines that start from now on, and remove what killed processes have left."""
        with suppress(StorageError, OSError):
            self._leases.remove_abandoned(self._settled())
        if self._round is not None:
            self._round.end()

    def ended(self) -> frozenset[str]:
        """Return the trials that have ended in this round and do not run again in it."""
        return self._marks.ended() if self._marks is not None else frozenset()

    def has_ended(self, trial_id: str) -> bool:
        """Return whether a trial has ended in this round and does not run again in it."""
        return self._marks is not None and self._marks.has(trial_id)

    def path(self, trial_id: str) -> Path:
        """Return where a worker of this machine writes a trial's record."""
        return self._local.path(trial_id)

    def write(self, record: TrialRecord) -> None:
        """Store a record, which is published when its trial is released."""
        self._local.write(record)

    def remove_partial(self, trial_id: str) -> None:
        """Remove temporary files of this trial on this machine."""
        self._local.remove_partial(trial_id)

    def find(self, trial_id: str) -> TrialRecord | None:
        """Return the record of a trial: that of this machine, or else the published one."""
        own = self._local.find(trial_id)
        if own is not None:
            return own
        content = self._objects.read(_name(trial_id))
        return None if content is None else self._parsed(_name(trial_id), content)

    def find_many(self, trial_ids: Sequence[str]) -> Iterator[tuple[str, TrialRecord | None]]:
        """Yield each trial with its published record, or None; read many at a time."""
        stored = self._listed()
        self._at_first = self._at_first or stored
        yield from ((trial_id, None) for trial_id in trial_ids if trial_id not in stored)
        wanted = [trial_id for trial_id in trial_ids if trial_id in stored]
        yield from zip(wanted, self._records(wanted), strict=True)

    def read_all(self) -> tuple[TrialRecord, ...]:
        """Return every valid published record, by trial id."""
        return tuple(self.read_each())

    def read_each(self) -> Iterator[TrialRecord]:
        """Yield what `read_all` returns, one after the other."""
        return (record for record in self._records(sorted(self._listed())) if record is not None)

    def is_news(self, trial_id: str) -> bool:
        """Return whether another machine has stored a record since the first look, as far as is known."""
        return trial_id in self._news

    def has_snapshot(self, trial_id: str) -> bool:
        """Return whether the memory snapshot of a trial is published."""
        return bool(self._objects.list(f"snapshots/{trial_id}."))

    def claim(self, trial_id: str, *, wait: bool) -> LeasedTrial | None:
        """Claim a trial on all machines; return None if another process holds it, after a while if `wait`."""
        lease = self._leases.take(trial_id)
        if lease is not None:
            return LeasedTrial(lease=lease, release_lease=self._release)
        if wait:
            time.sleep(_WAIT_S)
        return None

    def other_machines(self) -> OtherMachines:
        """Return what other machines do, as far as the last lists of records and claims show it."""
        return replace(self._leases.other_machines(), done=self._news)

    def claimed(self) -> Mapping[str, Holder]:
        """Return the trials that any machine has claimed now, with their holders."""
        return self._leases.holders()

    def gather(self) -> None:
        """Bring published samples and records of ranks into the folder, and remove its tables: the records have all."""
        for table in self._folder.glob("*.parquet"):
            table.unlink()
        names = filter(_is_gathered, [*self._objects.list("samples/"), *self._objects.list(f"{RANKS}/")])
        listed = [name for name in names if not (self._folder / name).exists()]
        for some in _portions(listed):
            for name, content in self._objects.read_many(some).items():
                write_atomically(self._folder / name, content)

    def share(self) -> None:
        """Publish the tables and pages of the folder."""
        for pattern in _REPORT_FILES:
            for path in sorted(self._folder.glob(pattern)):
                name = path.relative_to(self._folder).as_posix()
                self._objects.write(name, read_bytes(path, most_bytes=MOST_BYTES))

    def read_object(self, name: str) -> bytes | None:
        """Return the content of any published object; None if there is none."""
        return self._objects.read(name)

    def _release(self, lease: Lease) -> None:
        """Publish what is in the folder of a trial, if the trial still is this process's, and give it back."""
        record = self._local.path(lease.trial_id)
        if record.exists():
            files = self._files(lease.trial_id)
            if self._leases.is_held(lease):
                for path, name in files.items():
                    self._objects.write(name, read_bytes(path, most_bytes=MOST_BYTES))
                self._mark(lease.trial_id)
            else:
                self._notify(
                    f"Trial {lease.trial_id} was taken over by another machine, because this one could not reach "
                    f"{self._address} for too long; its result here is left out."
                )
            for path in reversed(list(files)):
                path.unlink(missing_ok=True)
        self._leases.end(lease)

    def _mark(self, trial_id: str) -> None:
        """Mark a trial, after its record: a machine that ends in between lets it run once more."""
        record = self._local.find(trial_id)
        if self._marks is not None and record is not None:
            self._marks.add(record)

    def _files(self, trial_id: str) -> Mapping[Path, str]:
        """Return the files of a trial and the names of their objects; the record, which marks it as done, is last."""
        paths = (
            *sorted(path for path in self._folder.glob(f"{RANKS}/*/*/{trial_id}.*") if path.suffix in _OF_A_RANK),
            samples_path(self._folder, trial_id),
            snapshot_path(self._folder, trial_id),
            self._local.path(trial_id),
        )
        return {path: path.relative_to(self._folder).as_posix() for path in paths if path.exists()}

    def _settled(self) -> frozenset[str]:
        """Return the trials that have a record or have ended in this round; ask once, because nothing depends on it."""
        ended = self._marks.ended(patiently=False) if self._marks is not None else frozenset()
        return _trial_ids(self._impatient.list(f"{RECORDS}/")) | ended

    def _listed(self) -> frozenset[str]:
        return _trial_ids(self._objects.list(f"{RECORDS}/"))

    def _records(self, trial_ids: Sequence[str]) -> Iterator[TrialRecord | None]:
        for some in _portions(trial_ids):
            contents = self._objects.read_many([_name(trial_id) for trial_id in some])
            for trial_id in some:
                content = contents.get(_name(trial_id))
                yield None if content is None else self._parsed(_name(trial_id), content)

    def _parsed(self, name: str, content: bytes) -> TrialRecord | None:
        try:
            return TRIALS.parse_named(content, PurePosixPath(name))
        except DamagedRecordError as error:
            self._notify(f"{self._address}/{name} is not a valid record ({error}), so its trial counts as not run.")
            return None

    def _look_for_news(self) -> None:
        """List what other machines have stored meanwhile, if that does not take too much of the time."""
        started_s = time.monotonic()
        if started_s < self._next_list_s:
            return
        stored = _trial_ids(self._impatient.list(f"{RECORDS}/")) if self._at_first is not None else frozenset()
        ended = self._marks.ended(patiently=False) if self._marks is not None else frozenset()
        self._news = (stored - (self._at_first or frozenset())) | ended
        now_s = time.monotonic()
        self._next_list_s = now_s + (now_s - started_s) / _LISTING_SHARE


def _name(trial_id: str) -> str:
    return f"{RECORDS}/{trial_id}.json"


def _is_gathered(name: str) -> bool:
    """Return whether an object is samples, or the record of a rank; snapshots are large, and no table needs them."""
    file = trial_file(name)
    return file is not None and file.suffix in _OF_A_RANK[:2]


def _trial_ids(names: Iterable[str]) -> frozenset[str]:
    files = map(trial_file, names)
    return frozenset(file.trial_id for file in files if file and file.suffix == ".json" and file.rank is None)


def _portions(names: Sequence[str]) -> Iterator[list[str]]:
    left = iter(names)
    while some := list(islice(left, _AT_ONCE)):
        yield some
