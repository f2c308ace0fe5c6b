"""Records of runs: one JSON file per run, and what the ranks on several GPUs have left next to it.

Records of runs: one JSON file per run, written atomically and protected by a checksum.

A kind of run is a `RecordFormat`. The folder of one kind is used in the same way as that of any other; what a sweep
needs beyond that is in `RecordStore`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, cast

from profiler.config.trials.identity import spec_from_mapping, spec_to_mapping
from profiler.domain.errors import UsageError
from profiler.domain.memory import GIB, MIB
from profiler.domain.runs.other_runs import MonitoredRun, ScriptRecord
from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.trials.trial import TrialSpec
from profiler.storage.files.atomic import StorageError, remove_partial, write_atomically
from profiler.storage.files.foreign_files import read_bytes, reason
from profiler.storage.files.trial_files import RANKS, RECORDS, trial_file
from profiler.storage.files.typed_json import JSON
from profiler.storage.records.versioned import DamagedRecordError, Kind, RecordFormat


def _spec_to_json(spec: TrialSpec) -> JSON:
    # `config` owns the JSON form of the specification, because the trial's id is a hash of it.
    return cast("JSON", spec_to_mapping(spec))


TRIALS = RecordFormat(
    kind=TrialRecord,
    what="a trial",
    noun="trial ",
    version_key="schema_version",
    since=7,
    names=93,
    oldest=2,
    most_bytes=1 * GIB,  # that of 500,000 steps
    fits_tables=False,
    readers=((TrialSpec, spec_from_mapping),),
    writers=((TrialSpec, _spec_to_json),),
)
"""Version 3 added the details of a measurement, 4 the memory that a full card cannot release, 5 the context in each
step's phases, 6 the versions of CUDA and of the emulation, and the state of values, 7 the versions of DeepSpeed and
vLLM. Earlier records are read without them."""

SCRIPTS = RecordFormat(
    kind=ScriptRecord,
    what="a script",
    version_key="script_schema_version",
    since=2,
    names=117,
    oldest=1,
    most_bytes=256 * MIB,
    fits_tables=True,
)
MONITORED = RecordFormat(
    kind=MonitoredRun,
    what="a monitored run",
    version_key="monitored_schema_version",
    since=1,
    names=115,
    oldest=1,
    most_bytes=256 * MIB,
    fits_tables=True,
)


def _nobody(_line: str) -> None:
    """Say nothing."""


class RecordFolder(Generic[Kind]):
    """Records of one kind, in `<folder>/records/`."""

    def __init__(self, folder: Path, form: RecordFormat[Kind], *, notify: Callable[[str], None] = _nobody) -> None:
        """`notify` receives a sentence for each file that is not the record of its run."""
        self._folder = folder
        self._form = form
        self._notify = notify

    def path(self, name: str) -> Path:
        """Return the path of the record of a run, whether it exists or not."""
        return self._folder / RECORDS / f"{name}.json"

    def write(self, record: Kind) -> None:
        """Store a record, replacing an earlier one of the same run.

        Raises:
            StorageError: Writing failed; nothing partial is left.
        """
        write_atomically(self.path(self._form.name_of(record)), self._form.content(record))

    def remove_partial(self, name: str) -> None:
        """Remove temporary files of a run: record, samples, snapshot. Nobody else writes them."""
        remove_partial(self._folder, name)

    def remove(self, name: str) -> None:
        """Remove the record of a run, and what a killed writer left of it.

        Raises:
            StorageError: It cannot be removed.
        """
        self.remove_partial(name)
        path = self.path(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise StorageError(f"{path}: could not be removed ({reason(error)}).") from error

    def find(self, name: str) -> Kind | None:
        """Return the stored record of a run; None if there is none, or if it is damaged.

        Raises:
            NewerRecordError: A later version of this program wrote it.
        """
        return self._read(self.path(name))

    def read_all(self) -> tuple[Kind, ...]:
        """Return every valid record, by the name of its run.

        Raises:
            NewerRecordError: A later version of this program wrote one of them.
        """
        return tuple(self.read_each())

    def read_each(self) -> Iterator[Kind]:
        """Yield what `read_all` returns, one after the other."""
        return (record for path in self._files() if (record := self._read(path)) is not None)

    def _files(self) -> Iterator[Path]:
        names = sorted(path.stem for path in (self._folder / RECORDS).glob("*.json"))
        return map(self.path, names)

    def _read(self, path: Path) -> Kind | None:
        try:
            return self._form.parse_named(read_bytes(path, most_bytes=self._form.most_bytes), path)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unreadable(path, error)
        except DamagedRecordError as error:
            self._damaged(path, str(error))
        return None

    def _unreadable(self, path: Path, error: OSError) -> None:
        self._damaged(path, reason(error))

    def _damaged(self, path: Path, problem: str) -> None:
        self._notify(f"{path} is no record of {self._form.what} ({problem}), and is left out.")


_MOST_BYTES = 1 << 30

_KEPT = (RECORDS, "samples")


@dataclass(frozen=True, kw_only=True)
class RankPeaks:
    """The peaks of the ranks of one trial."""

    record: TrialRecord
    """That of one of the ranks; all have the specification of the trial."""
    allocated_bytes: tuple[int | None, ...]
    """By rank; None where a rank has no record or no peak."""


def rank_peaks(folder: Path) -> list[RankPeaks]:
    """Return the peaks of all ranks in the folder of a grid, by trial; records that cannot be read are left out."""
    found: dict[str, dict[int, TrialRecord]] = {}
    for path in sorted(folder.glob(f"{RANKS}/*/{RECORDS}/*.json")):
        file = trial_file(path.relative_to(folder).as_posix())
        if file is None or file.rank is None:
            continue
        try:
            record = TRIALS.parse_named(read_bytes(path, most_bytes=_MOST_BYTES), path)
        except (DamagedRecordError, UsageError, OSError):
            continue
        if file.rank < record.spec.num_processes:  # a rank that the trial has not is of something else
            found.setdefault(record.trial_id, {})[file.rank] = record
    return [
        RankPeaks(
            record=next(iter(ranks.values())),
            allocated_bytes=tuple(
                ranks[rank].outcome.peaks.allocated_bytes if rank in ranks else None for rank in range(max(ranks) + 1)
            ),
        )
        for _, ranks in sorted(found.items())
    ]


def copy_ranks(folders: Sequence[Path], into: Path) -> None:
    """Copy the records and samples of ranks from several folders to one; the first folder that has a file wins.

    Raises:
        StorageError: A file cannot be copied, or is a symbolic link.
    """
    for source in (path for folder in folders for kind in _KEPT for path in sorted(folder.glob(f"{RANKS}/*/{kind}/*"))):
        name = source.relative_to(source.parents[3])
        file, target = trial_file(name.as_posix()), into / name
        if file is None or file.suffix not in (".json", ".parquet") or target.exists():
            continue
        try:
            content = read_bytes(source, most_bytes=_MOST_BYTES, follow_links=False)
        except OSError as error:
            raise StorageError(f"{source}: could not be read ({reason(error)}).") from error
        write_atomically(target, content)
