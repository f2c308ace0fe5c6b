"""Second runs of an emulated script: with late events, and on a card of unlimited memory if its own was full."""

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from profiler.command_line import print_line
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.runs.outcome import Status, UnlimitedCard
from profiler.domain.runs.script import LateEvents, NamedCard, ScriptJob, ScriptRecord
from profiler.emulation.card.cards import UNLIMITED_BYTES
from profiler.emulation.launch import Events
from profiler.run.backend import Place
from profiler.run.process import run_in_process
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder


class Again(Protocol):
    """Runs a job once more."""

    def __call__(self, job: ScriptJob, *, events: Events = Events.EARLY, unlimited: bool = False) -> ScriptRecord:
        """Return the record of the run, which is kept nowhere."""


def with_second_runs(record: ScriptRecord, job: ScriptJob, again: Again, *, late_events: bool) -> ScriptRecord:
    """Return the record of an emulated run with what its second run shows, and store it.

    Args:
        record: Of the first run.
        job: That run.
        again: Runs it once more.
        late_events: Whether a run that ends well is repeated with late events.
    """
    if record.outcome.status is Status.OOM:
        found = _with_needs(record, job, again)
    elif record.outcome.status is Status.OK and late_events:
        found = _with_late_events(record, job, again)
    else:
        return record
    RecordFolder(Path(job.folder), SCRIPTS).write(found)
    return found


def in_new_processes(
    place: Place, *, launched: Mapping[str, str], num_processes: int, strict: bool, timeout_s: float
) -> Again:
    """Return the function that runs jobs in processes of `place`; `launched` are the variables of the launcher."""

    def again(job: ScriptJob, *, events: Events = Events.EARLY, unlimited: bool = False) -> ScriptRecord:
        environment = place.environment(
            num_processes=num_processes, strict=strict, events=events, unlimited=unlimited
        ) | dict(launched)
        with tempfile.TemporaryDirectory() as folder:
            task = replace(job, folder=folder, snapshot=False, breakdown=False)
            return run_in_process(task, place.executable, environment, timeout_s=timeout_s)

    return again


def _with_needs(record: ScriptRecord, job: ScriptJob, again: Again) -> ScriptRecord:
    """Add what the script would have needed; nothing if it does not end well on a card of unlimited memory either."""
    print_line("Memory ran out. Once more on a card of unlimited memory:")
    gpu = KNOWN_GPUS[str(job.spec.gpu)]
    card = NamedCard(uuid="", name=gpu.title, memory_bytes=UNLIMITED_BYTES, compute_capability=gpu.compute_capability)
    outcome = again(replace(job, card=card), unlimited=True).outcome
    if outcome.status is not Status.OK or outcome.peaks.allocated_bytes is None:
        return record
    needs = UnlimitedCard(
        required_allocated_bytes=outcome.peaks.allocated_bytes, required_reserved_bytes=outcome.peaks.reserved_bytes
    )
    return replace(record, outcome=replace(record.outcome, unlimited=needs))


def _with_late_events(record: ScriptRecord, job: ScriptJob, again: Again) -> ScriptRecord:
    print_line("Once more with late events:")
    outcome = again(job, events=Events.LATE).outcome
    late = LateEvents(
        status=outcome.status,
        allocated_bytes=outcome.peaks.allocated_bytes,
        reserved_bytes=outcome.peaks.reserved_bytes,
    )
    return replace(record, late_events=late)
