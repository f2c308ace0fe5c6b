"""Recorded histories: a trial recorded on the card, stored, and replayed through the model of the allocator."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from profiler.allocator import RecordedComparison, replay_recorded
from profiler.domain.errors import EXIT_SOME_TRIALS_FAILED, Fault, ProfilerError, UsageError
from profiler.domain.memory import gib_text
from profiler.domain.trials.trial import ALL_LINEAR, Backend, Rollout, TrialSpec, Tuning
from profiler.storage.files.atomic import write_atomically

if TYPE_CHECKING:  # it imports torch, which takes seconds
    from profiler.worker.cuda.measured import Measured

Record = Callable[[TrialSpec], "Measured"]
"""Runs a trial on the card and records its whole history of allocations."""

RECORDED_HISTORY = "allocator_truth"
"""Folder of the recorded histories, next to the folders of the grids."""

_OF_ENTRIES = ("action", "addr", "device_free", "size", "stream")
_OF_SEGMENTS = ("address", "stream", "segment_type", "segment_pool_id", "is_expandable")
_OF_BLOCKS = ("size", "requested_size", "state")
"""The parts of a memory snapshot that a replay reads; small enough to store."""


class NoHistoryError(ProfilerError):
    """The trial did not end well, so its history is not kept."""

    exit_code = EXIT_SOME_TRIALS_FAILED


@dataclass(frozen=True, kw_only=True)
class ReplayedHistory:
    """A recorded history and its replay."""

    path: Path
    counted_peak_reserved_bytes: int | None
    """By torch's counter, in the same trial."""
    comparison: RecordedComparison


def recorded_trial(tuning: Tuning) -> TrialSpec:
    """Return the trial to record: two steps of the smallest model, with a synthetic rollout.

    Its history has about 10^5 entries; decoding token by token would give ten times as many.
    """
    lora = {"lora_rank": 16, "lora_alpha": 32, "lora_target_modules": (ALL_LINEAR,)} if tuning is Tuning.LORA else {}
    return TrialSpec(
        backend=Backend.CUDA,
        gpu=None,
        model="qwen2.5-0.5b",
        tuning=tuning,
        rollout=Rollout.SYNTHETIC,
        steps=2,
        **cast("dict[str, Any]", lora),
    )


def recorded_history_of(tuning: Tuning, *, folder: Path, record: Record) -> ReplayedHistory:
    """Replay the stored history of a tuning; record it first if there is none.

    Raises:
        NoHistoryError: The trial did not end well.
        StorageError: The history could not be written.
        UsageError: The stored file is not a history.
    """
    path = folder / RECORDED_HISTORY / f"{tuning}.json.gz"
    if not path.exists():
        _record(path, recorded_trial(tuning), record)
    history = _stored(path)
    return ReplayedHistory(
        path=path,
        counted_peak_reserved_bytes=history["counted_peak_reserved_bytes"],
        comparison=replay_recorded(history),
    )


def _stored(path: Path) -> Mapping[str, Any]:
    try:
        history = json.loads(gzip.decompress(path.read_bytes()))
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise _not_a_history(path, str(error)) from error
    if not isinstance(history, dict) or "counted_peak_reserved_bytes" not in history:
        raise _not_a_history(path, "no counted_peak_reserved_bytes")
    return history


def _not_a_history(path: Path, reason: str) -> UsageError:
    problem = f"is not a recorded history as gzipped JSON ({reason})"
    return UsageError([Fault(key="history", found=str(path), problem=problem, hint="Delete it to record it again.")])


def _record(path: Path, spec: TrialSpec, record: Record) -> None:
    measured = record(spec)
    outcome = measured.outcome
    if not outcome.status.answered or measured.snapshot is None:
        raise NoHistoryError(f"The trial that was to be recorded ended as {outcome.status}: {outcome.message}")
    kept = essentials(measured.snapshot) | {"counted_peak_reserved_bytes": outcome.peaks.reserved_bytes}
    write_atomically(path, gzip.compress(json.dumps(kept).encode(), mtime=0))


def recorded_history_lines(history: ReplayedHistory) -> tuple[str, ...]:
    """Return the result of the replay as lines for a terminal."""
    found = history.comparison
    verdict = "equal" if found.is_equal else "NOT equal"
    counted = history.counted_peak_reserved_bytes
    lines = [
        f"{history.path}: {verdict}, over {found.entries} entries.",
        f"  peak of reserved memory: {found.recorded_peak_reserved_bytes} bytes recorded, "
        f"{found.peak_reserved_bytes} replayed ({gib_text(found.peak_reserved_bytes, 2)}), {counted} by the counter.",
        f"  segments at the end: {len(found.recorded_segments)} recorded, {len(found.segments)} replayed, "
        + ("the same." if found.recorded_segments == found.segments else "not the same."),
    ]
    if found.departure:
        lines.append(f"  The first departure: {found.departure}.")
    if found.first.segments:
        held = gib_text(found.first.reserved_bytes, 2)
        lines.append(f"  {held} were held before the first entry: the history is not whole.")
    return tuple(lines)


def essentials(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts that `replay_recorded` reads of the first device, in the format of a snapshot."""
    return {
        "device_traces": [[_chosen(entry, _OF_ENTRIES) for entry in snapshot["device_traces"][0]]],
        "segments": [
            _chosen(segment, _OF_SEGMENTS) | {"blocks": [_chosen(block, _OF_BLOCKS) for block in segment["blocks"]]}
            for segment in snapshot["segments"]
            if segment.get("device", 0) == 0
        ],
        "allocator_settings": dict(snapshot.get("allocator_settings", {})),
    }


def _chosen(values: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: values[key] for key in keys if key in values}
