"""The decision whether a trial must run."""

from collections.abc import Sequence

from profiler.config.options.run_options import RunOptions
from profiler.domain.runs.outcome import BreakdownStatus, Status, TrialRecord
from profiler.domain.trials.trial import Backend
from profiler.storage.stores.trial_store import TrialStore


def must_run(record: TrialRecord | None, options: RunOptions, *, has_snapshot: bool, has_ended: bool = False) -> bool:
    """Return whether a trial must run, or be implied by another one, in spite of its stored record.

    Args:
        record: The stored record of the trial; None without one.
        options: The options of this run.
        has_snapshot: Whether the memory snapshot of the trial is stored.
        has_ended: Whether the trial has ended in this round of the sweep.
    """
    if record is not None and has_ended:
        return False
    if record is None or not options.resume or not record.outcome.status.answered:
        return True
    if record.outcome.status is Status.IMPLIED:
        return not options.prune
    if options.breakdown and _lacks_breakdown(record):
        return True
    return options.snapshot and _can_have_snapshot(record) and not has_snapshot


def stored_answer(trial_id: str, *, store: TrialStore, options: RunOptions) -> TrialRecord | None:
    """Return the stored record that settles a trial under `options`; None if the trial must run."""
    record = store.find(trial_id)
    if record is not None and _must_run(trial_id, record, store, options) and not store.has_ended(trial_id):
        return None
    return record


def stored_answers(trial_ids: Sequence[str], *, store: TrialStore, options: RunOptions) -> set[str]:
    """Return which trials stored records settle under `options`."""
    ended = store.ended()
    found = store.find_many(trial_ids) if options.resume or ended else ()
    return {
        trial_id
        for trial_id, record in found
        if record is not None and (trial_id in ended or not _must_run(trial_id, record, store, options))
    }


def _must_run(trial_id: str, record: TrialRecord | None, store: TrialStore, options: RunOptions) -> bool:
    has_snapshot = options.snapshot and store.has_snapshot(trial_id)
    return must_run(record, options, has_snapshot=has_snapshot)


def _lacks_breakdown(record: TrialRecord) -> bool:
    """Return whether a measured or emulated trial has not been asked for its breakdown yet."""
    if not record.spec.backend.reads_counters or record.outcome.status is not Status.OK:
        return False
    # A breakdown that failed would fail again.
    return record.outcome.breakdown.status is BreakdownStatus.ABSENT


def _can_have_snapshot(record: TrialRecord) -> bool:
    return record.spec.backend is not Backend.CPU and record.outcome.status in (Status.OK, Status.OOM)
