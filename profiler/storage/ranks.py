"""What the ranks of trials on several GPUs have left: a record of each rank, next to that of the trial."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.domain.errors import UsageError
from profiler.domain.outcome import TrialRecord
from profiler.storage.atomic import StorageError
from profiler.storage.foreign_files import read_bytes
from profiler.storage.records import RANKS, RECORDS, DamagedRecordError, parse_record

_MOST_BYTES = 1 << 30

_RANK = re.compile("0|[1-9][0-9]{0,9}")
"""Name of the folder of a rank; one beyond those of its trial is of something else."""

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
        rank = path.parents[1].name
        try:
            record = parse_record(read_bytes(path, most_bytes=_MOST_BYTES), path)
        except (DamagedRecordError, UsageError, OSError):
            continue
        if _RANK.fullmatch(rank) and int(rank) < record.spec.num_processes:
            found.setdefault(record.trial_id, {})[int(rank)] = record
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
        StorageError: A file cannot be copied.
    """
    for source in (path for folder in folders for kind in _KEPT for path in sorted(folder.glob(f"{RANKS}/*/{kind}/*"))):
        folder = source.parents[3]
        target = into / source.relative_to(folder)
        if target.exists() or source.suffix not in (".json", ".parquet"):
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except OSError as error:
            raise StorageError(f"{target}: could not be written ({error.strerror or error}).") from error
