"""Records: one JSON file per trial, written atomically and protected by a checksum."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path, PurePath
from typing import Protocol, cast

from profiler.config.trials.identity import spec_from_mapping, spec_to_mapping
from profiler.domain.errors import Fault, ProfilerError, UsageError
from profiler.domain.outcome import TrialRecord
from profiler.domain.plain_text import plain
from profiler.domain.sweep_state import Holder, OtherMachines
from profiler.domain.trial import TrialSpec
from profiler.domain.units import GIB
from profiler.storage.atomic import StorageError, remove_partial, write_atomically
from profiler.storage.foreign_files import read_bytes
from profiler.storage.lock import take_lock
from profiler.storage.memory_snapshot import snapshot_path
from profiler.storage.objects import Objects
from profiler.storage.outcome_fields import flat_values
from profiler.storage.trial_files import RANKS, RECORDS, is_trial_id
from profiler.storage.typed_json import JSON, to_json
from profiler.storage.versioned import NewerSchemaError, RecordFormat

RECORD_SCHEMA_VERSION = 7
"""Raise it with every field that is added, and if stored records would be read with another meaning.

3 added the details of a measurement, 4 the memory that a full card cannot release, 5 the context in each step's phases,
6 the versions of CUDA and of the emulation, and the state of values, 7 the versions of DeepSpeed and vLLM. Earlier
records are read without them."""


_MOST_BYTES = 1 * GIB
"""Largest record: that of 500,000 steps. Larger files are no records."""

FORMAT = RecordFormat(
    kind=TrialRecord,
    version_key="schema_version",
    version=RECORD_SCHEMA_VERSION,
    oldest=2,
    most_bytes=_MOST_BYTES,
    readers=((TrialSpec, spec_from_mapping),),
)


class NewerRecordError(UsageError):
    """A record was written by a later version of this program; it must not be changed."""


def _to_stderr(line: str) -> None:
    with suppress(OSError):
        sys.stderr.write(f"{plain(line)}\n")


def rank_folder(folder: Path, rank: int) -> Path:
    """Return the folder of what one rank of a trial on several GPUs leaves, in the folder of a grid."""
    return folder / RANKS / str(rank)


class DamagedRecordError(ValueError):
    """A file or an object is not the record of the trial after which it is named; the text says why."""


def parse_record(content: bytes, path: PurePath) -> TrialRecord:
    """Return the record that `path` has as its content.

    Raises:
        DamagedRecordError: It is not a record, or that of another trial.
        NewerRecordError: A later version of this program wrote it.
    """
    try:
        record = FORMAT.parse(content)
    except NewerSchemaError as error:
        raise NewerRecordError([FORMAT.newer_fault(path, error.version)]) from error
    except (ValueError, RecursionError, ProfilerError) as error:
        raise DamagedRecordError((str(error).splitlines() or [type(error).__name__])[0].rstrip(".")) from error
    if record.trial_id != path.stem:
        raise DamagedRecordError(f"it is the record of trial {record.trial_id}")
    return record


def record_content(record: TrialRecord) -> bytes:
    """Return the content of the file of a record."""
    return FORMAT.content(_record_to_json(record))


class Held(Protocol):
    """A trial that only this process may run, until it is released."""

    def release(self) -> None:
        """Let other processes run it. What a worker stored for it can be seen by all of them first."""


class RecordStore:
    """Records of one grid, in `<folder>/records/`."""

    def __init__(self, folder: Path, *, notify: Callable[[str], None] = _to_stderr) -> None:
        """`notify` receives a sentence for each file that is set aside."""
        self._records = folder / RECORDS
        self._notify = notify

    def path(self, trial_id: str) -> Path:
        """Return the path of this trial's record, whether it exists or not."""
        return self._records / f"{trial_id}.json"

    def write(self, record: TrialRecord) -> None:
        """Store a record, replacing an earlier one of the same trial.

        Raises:
            StorageError: Writing failed; nothing partial is left.
        """
        write_atomically(self.path(record.trial_id), record_content(record))

    def remove_partial(self, trial_id: str) -> None:
        """Remove temporary files of this trial: record, samples, snapshot. The caller holds the trial's lock."""
        remove_partial(self._records.parent, trial_id)

    def find(self, trial_id: str) -> TrialRecord | None:
        """Return the stored record of a trial, or None.

        A record that is truncated, edited or of an unsupported schema is set aside and counts as absent.

        Raises:
            NewerRecordError: A later version of this program wrote it.
            StorageError: The file exists and cannot be opened.
        """
        return self._read(self.path(trial_id), is_record=True)

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
        return snapshot_path(self._records.parent, trial_id).exists()

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

    def read_all(self) -> tuple[TrialRecord, ...]:
        """Return every valid record, by trial id; set the others aside. Files that are not records stay in place.

        Raises:
            NewerRecordError: A later version of this program wrote one of them.
            StorageError: A file exists and cannot be opened.
        """
        return tuple(self.read_each())

    def read_each(self) -> Iterator[TrialRecord]:
        """Yield what `read_all` returns, one after the other."""
        # A file with another name is a record only if its content says so.
        found = (self._read(path, is_record=is_trial_id(path.stem)) for path in self._files())
        return (record for record in found if record is not None)

    def faults(self) -> list[Fault]:
        """Return why this program cannot use the folder: records that cannot be opened, or of a later version.

        Changes nothing.
        """
        newer: list[tuple[Path, int]] = []
        for path in self._files():
            try:
                content = read_bytes(path, most_bytes=_MOST_BYTES)
                if _may_be_newer(content):
                    FORMAT.parse(content)
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
        return [FORMAT.newer_fault(newer[0][0], newer[0][1], others=len(newer) - 1)]

    def _files(self) -> Iterator[Path]:
        names = sorted(path.stem for path in self._records.glob("*.json"))
        paths = (self.path(name) for name in names)
        return (path for path in paths if path.is_file())

    def _read(self, path: Path, *, is_record: bool) -> TrialRecord | None:
        content = _content(path)
        if content is None:
            return None
        try:
            return parse_record(content, path)
        except DamagedRecordError as error:
            if is_record:
                self._set_aside(path, str(error))
            return None

    def _set_aside(self, path: Path, reason: str) -> None:
        # Kept, so that the user can examine it.
        folder = self._records / "set_aside"
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


def _content(path: Path) -> bytes | None:
    try:
        return read_bytes(path, most_bytes=_MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: could not be read ({error.strerror or error}).") from error


def _record_to_json(record: TrialRecord) -> dict[str, JSON]:
    # `config` owns the JSON form of the specification, because the trial's id is a hash of it.
    return {
        "trial_id": record.trial_id,
        "grid": record.grid,
        "label": record.label,
        "spec": cast("JSON", spec_to_mapping(record.spec)),
        "versions": to_json(record.versions),
        "outcome": {key: to_json(value) for key, value in flat_values(record.outcome).items()},
    }


_VERSION = re.compile(rb'"schema_version"\s*:\s*([0-9]+)')


def _may_be_newer(file: bytes) -> bool:
    """Return whether a file states a schema version above this program's, wherever it states one."""
    return any(len(found) > 9 or int(found) > RECORD_SCHEMA_VERSION for found in _VERSION.findall(file))
