"""The records of one grid in a folder of one machine, which is checked before anything starts."""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Protocol

from profiler.domain.errors import Fault, ProfilerError, UsageError
from profiler.domain.machines.engines import Holder, OtherMachines
from profiler.domain.runs.outcome import TrialRecord
from profiler.storage.files.atomic import StorageError
from profiler.storage.files.foreign_files import Kind, kind_of, read_bytes, reason
from profiler.storage.files.trial_files import RANKS, RECORDS, is_trial_id, snapshot_path, take_lock, to_stderr
from profiler.storage.records.record_folder import TRIALS, RecordFolder
from profiler.storage.records.versioned import NewerSchemaError
from profiler.storage.stores.objects import Objects


def rank_folder(folder: Path, rank: int) -> Path:
    """Return the folder of what one rank of a trial on several GPUs leaves, in the folder of a grid."""
    return folder / RANKS / str(rank)


class Held(Protocol):
    """A trial that only this process may run, until it is released."""

    def release(self) -> None:
        """Let other processes run it. What a worker stored for it can be seen by all of them first."""


class RecordStore(RecordFolder[TrialRecord]):
    """Records of one grid, in `<folder>/records/`.

    A record that is truncated, edited or of an unsupported schema is set aside and counts as absent.
    """

    def __init__(self, folder: Path, *, notify: Callable[[str], None] = to_stderr) -> None:
        """`notify` receives a sentence for each file that is set aside."""
        super().__init__(folder, TRIALS, notify=notify)

    def find_many(self, trial_ids: Sequence[str]) -> Iterator[tuple[str, TrialRecord | None]]:
        """Yield each trial with its stored record, or None, as `find` does."""
        return ((trial_id, self.find(trial_id)) for trial_id in trial_ids)

    def is_news(self, _trial_id: str) -> bool:
        """Return whether it is known, without a look, that another machine has stored a record meanwhile."""
        return False

    def take_part(self, _trial_ids: Sequence[str], *, marks: Objects | None, runs_all: bool) -> None:
        """Do nothing: one machine runs each trial once."""

    def end_round(self) -> None:
        """Do nothing: one machine has no rounds."""

    def ended(self) -> frozenset[str]:
        """Return nothing: one machine has no rounds."""
        return frozenset()

    def has_ended(self, _trial_id: str) -> bool:
        """Return False: one machine has no rounds."""
        return False

    def has_snapshot(self, trial_id: str) -> bool:
        """Return whether the memory snapshot of a trial is stored."""
        return snapshot_path(self._folder, trial_id).exists()

    def claim(self, trial_id: str, *, wait: bool) -> Held | None:
        """Claim a trial; return None if another process holds it, unless `wait`.

        Raises:
            LockError: The file of the lock cannot be opened, or its file system has no locks.
        """
        return take_lock(self.path(trial_id).with_suffix(".lock"), wait=wait)

    def other_machines(self) -> OtherMachines:
        """Return what other machines do: nothing that a folder shows."""
        return OtherMachines()

    def claimed(self) -> Mapping[str, Holder]:
        """Return nothing: locks of a folder are not listed."""
        return {}

    def gather(self) -> None:
        """Bring what the tables are assembled from into the folder; it is there."""

    def share(self) -> None:
        """Make tables and pages of the folder visible to all; they are."""

    def faults(self) -> list[Fault]:
        """Return why this program cannot use the folder: records that cannot be opened, or of a later version.

        Changes nothing.
        """
        newer: list[tuple[Path, int]] = []
        for path in self._files():
            try:
                content = read_bytes(path, most_bytes=TRIALS.most_bytes)
                if _may_be_newer(content):
                    TRIALS.parse(content)
            except FileNotFoundError:  # another sweep has set it aside
                continue
            except OSError as error:
                reason = f"it cannot be read ({error.strerror or error})"
                return [
                    Fault(key="record", found=str(path), problem=reason, hint="Check its permissions and the disk.")
                ]
            except NewerSchemaError as error:
                newer.append((path, error.version))
            except (ValueError, RecursionError, ProfilerError):
                continue
        if not newer:
            return []
        return [TRIALS.newer_fault(newer[0][0], newer[0][1], others=len(newer) - 1)]

    def _files(self) -> Iterator[Path]:
        return (path for path in super()._files() if path.is_file())

    def _unreadable(self, path: Path, error: OSError) -> None:
        raise StorageError(f"{path}: could not be read ({error.strerror or error}).") from error

    def _damaged(self, path: Path, problem: str) -> None:
        # A file with another name is a record only if its content says so.
        if is_trial_id(path.stem):
            self._set_aside(path, problem)

    def _set_aside(self, path: Path, reason: str) -> None:
        # Kept, so that the user can examine it.
        folder = path.parent / "set_aside"
        try:
            folder.mkdir(exist_ok=True)
            target = next(each for n in count() if not (each := folder / f"{path.stem}.{n}.json").exists())
            path.replace(target)
        except FileNotFoundError:  # another sweep has set it aside
            return
        except OSError as error:
            raise StorageError(f"{path}: could not be set aside ({error.strerror or error}).") from error
        self._notify(
            f"Set aside as {target}: {path.name} is not a valid record ({reason}), so its trial counts as not run."
        )


_VERSION = re.compile(rb'"schema_version"\s*:\s*([0-9]+)')


def _may_be_newer(file: bytes) -> bool:
    """Return whether a file states a schema version above this program's, wherever it states one."""
    return any(len(found) > 9 or int(found) > TRIALS.version for found in _VERSION.findall(file))


RESULTS_DIR = "results_dir"
HINT = f"Choose another folder with {RESULTS_DIR}=PATH, for example on a local disk."


def folder_faults(folder: Path) -> list[Fault]:
    """Return what prevents it: records or tables of a newer version, or unreadable ones. Changes nothing."""
    if not folder.is_dir():
        return []
    faults = RecordStore(folder).faults()
    if any(folder.glob("*.parquet")):
        from profiler.storage.tables.table_files import open_tables  # imports pyarrow, not needed without tables

        try:
            open_tables(folder, required=False)
        except UsageError as error:
            faults.extend(error.faults)
    return faults


def writable_faults(folder: Path) -> list[Fault]:
    """Return the faults of `folder` that can be found without creating it."""
    for each in (folder, folder / RECORDS):
        ancestor = each
        try:
            while (kind := kind_of(ancestor)) is Kind.MISSING and ancestor != ancestor.parent:
                ancestor = ancestor.parent
        except OSError as error:
            return [not_writable(folder, reason(error))]
        if kind is not Kind.FOLDER:
            return [not_writable(folder, f"{ancestor} is not a folder")]
        if not os.access(ancestor, os.W_OK | os.X_OK):
            return [not_writable(folder, f"{ancestor} is not writable")]
    return []


def not_writable(folder: Path, why: str) -> Fault:
    """Return the fault of a folder in which results cannot be written."""
    return Fault(
        key=RESULTS_DIR, found=str(folder.parent), problem=f"results cannot be written there ({why})", hint=HINT
    )
