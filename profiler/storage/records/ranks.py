"""What the ranks of trials on several GPUs have left: a record of each rank, next to that of the trial."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.domain.errors import UsageError
from profiler.domain.runs.outcome import TrialRecord
from profiler.storage.files.atomic import StorageError, write_atomically
from profiler.storage.files.foreign_files import read_bytes, reason
from profiler.storage.files.trial_files import RANKS, RECORDS, trial_file
from profiler.storage.records.record_folder import TRIALS
from profiler.storage.records.versioned import DamagedRecordError

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
