"""A sweep on an array of slots, each a job that runs the whole plan, and how the sweep watches them.

A sweep on an array of slots: each slot is a job that runs the whole plan, with claims in the shared store.

A scheduler starts the slots when it has room, and starts them again when they are preempted. So this process only
watches: finished trials in the store, and the reports that slots write. Other slots run the trials of a lost one, after
its claims have run out.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Protocol

from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_INTERNAL, EXIT_USAGE, ProfilerError
from profiler.domain.machines.engines import Holder, Machines
from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import SweepObserver
from profiler.execution.trials import must_run
from profiler.storage.stores.objects import Objects
from profiler.storage.stores.trial_store import TrialStore


@dataclass(kw_only=True)
class Watched:
    """The trials of a plan, as the store has them."""

    plan: Sequence[PlannedTrial]
    store: TrialStore
    options: RunOptions
    observer: SweepObserver
    left: dict[str, PlannedTrial] = field(init=False)
    """Trials that have no answer and have not ended in this round."""
    _before: dict[str, TrialRecord | None] = field(init=False)
    """Records of earlier sweeps."""
    _failed: dict[str, TrialRecord] = field(default_factory=dict)
    """New records without an answer, of trials that can run again."""
    _running: dict[str, Holder] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    """Trials that ran and had neither a claim nor a record at the last look."""

    def __post_init__(self) -> None:
        """Read the records that exist."""
        self.left = {trial.trial_id: trial for trial in self.plan}
        self._before = {name: record for name, record in self.store.find_many(list(self.left)) if record is not None}

    def look(self) -> bool:
        """Report what has started and ended since the last look; return whether a trial has ended."""
        # In this order, because a slot first publishes a record, then marks its trial, and then gives the claim back.
        holders, marked = self.store.claimed(), self.store.ended()
        has_ended = self._look_at_records(marked)
        self._look_at_claims(holders)
        return has_ended

    @property
    def hosts(self) -> frozenset[str]:
        """The machines that run a trial."""
        return frozenset(holder.host for holder in self._running.values() if holder.host)

    def _look_at_records(self, marked: Collection[str]) -> bool:
        has_ended = False
        # Without resume, records of trials that have not ended in this round say nothing.
        wanted = [trial_id for trial_id in self.left if self.options.resume or trial_id in marked]
        for trial_id, record in self.store.find_many(wanted):
            if record is None:
                continue
            if self._is_final(record, marked):
                self.observer.finished(self.left.pop(trial_id), record)
                self._failed.pop(trial_id, None)
                self._running.pop(trial_id, None)
                has_ended = True
            elif record != self._before.get(trial_id):
                has_ended = has_ended or record != self._failed.get(trial_id)
                self._failed[trial_id] = record
        return has_ended

    def _look_at_claims(self, holders: Mapping[str, Holder]) -> None:
        for trial_id in holders.keys() & self.left.keys():
            before, now = self._running.get(trial_id), holders[trial_id]
            if before is not None and before.generation < now.generation:
                self.observer.lost(self.left[trial_id])
            if before is None or before.generation < now.generation:
                self.observer.started(self.left[trial_id])
            self._running[trial_id] = now
        # A mounted folder can show later than its claim that a trial has ended.
        gone = self._running.keys() - holders.keys()
        for trial_id in gone & self._gone:
            self.observer.lost(self.left[trial_id])
            del self._running[trial_id]
        self._gone = gone - self._gone

    def report_failures(self) -> None:
        """Report the trials that ended without an answer."""
        for trial_id, record in self._failed.items():
            self.observer.finished(self.left[trial_id], record)

    def _is_final(self, record: TrialRecord, marked: Collection[str]) -> bool:
        has_ended = record.trial_id in marked
        has_snapshot = self.options.snapshot and not has_ended and self.store.has_snapshot(record.trial_id)
        return not must_run(record, self.options, has_snapshot=has_snapshot, has_ended=has_ended)


REPORTS = "slots/"
HARDWARE = "hardware"

ALL_WAIT = "All slots wait in the queue of the scheduler."

MOST_SLOTS = 32
"""Slots of a sweep that names no number."""

POLL_S = 2.0

LOST_AFTER_S = 10.0
"""How long a slot may be missing from the queue without having reported its end, until it counts as lost."""

GRACE_S = 60.0
"""How long slots may take to end after the last trial, until they are cancelled."""

_LOOKING_SHARE = 0.1
"""Largest part of the time that looks at the store take."""

MOST_LOSSES = 3
"""Slots that may be lost one after the other, per slot, without any trial having ended in between."""


class SlotState(StrEnum):
    """What a slot has reported."""

    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class SlotReport:
    """What a slot writes about itself when it starts and when it ends."""

    node: str
    state: SlotState
    card: str = ""
    """Our name of its card; empty without a GPU, or if the card is not known."""
    code: int = 0
    """The exit code with which it ended."""
    problem: str = ""
    """Why it ended before the plan, in sentences."""

    def content(self) -> bytes:
        """Return the report as the content of an object."""
        return json.dumps(asdict(self)).encode()


def read_report(content: bytes) -> SlotReport | None:
    """Return a report; None if it is not one."""
    try:
        found = json.loads(content)
        return SlotReport(**{**found, "state": SlotState(found["state"])})
    except (ValueError, TypeError, KeyError):
        return None


class Jobs(Protocol):
    """The jobs of one array."""

    def submit(self, count: int) -> Sequence[str]:
        """Submit this many slots, and return their names."""

    def queued(self) -> Mapping[str, bool] | None:
        """Return the slots that wait or run, and whether they run; None if the scheduler does not answer now."""

    def cancel(self, *, waiting_only: bool = False) -> None:
        """Cancel all slots, or only those that wait."""

    def forget(self) -> None:
        """Remove the files of slots, all of which have ended."""


class SlotsFailedError(ProfilerError):
    """Slots ended for a cause that they reported, and trials are left."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.exit_code = code


@dataclass(kw_only=True)
class SlotArray:
    """The slots of one run, which an earlier process may have started."""

    jobs: Jobs
    reports: Objects
    """Where slots write."""
    place: str
    """Where their logs are, for sentences."""
    names: set[str] = field(default_factory=set)
    """The slots that were submitted."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    poll_s: float = POLL_S
    lost_after_s: float = LOST_AFTER_S
    lost: int = 0
    """How many slots were lost."""
    _alive: set[str] = field(default_factory=set)
    _missing_since_s: dict[str, float] = field(default_factory=dict)
    _ended: dict[str, SlotReport] = field(default_factory=dict)
    _running: dict[str, SlotReport] = field(default_factory=dict)
    """The slots that run, as far as they have reported their start."""
    _losses_in_a_row: int = 0
    _most: int = 0
    """Most slots at the same time."""
    _kept_logs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take the slots of an earlier process for running."""
        self._alive |= self.names
        self._most = len(self._alive)

    def start_for(self, trials: int, *, jobs: int | None) -> None:
        """Submit the slots of a sweep that are missing: `jobs` in all, or else one per trial, up to `MOST_SLOTS`."""
        missing = min(jobs or MOST_SLOTS, trials) - len(self._alive)
        if missing > 0:
            self.start(missing)

    def start(self, count: int) -> None:
        """Submit slots."""
        found = set(self.jobs.submit(count))
        self.names |= found
        self._alive |= found
        self._most = max(self._most, len(self._alive))

    def hardware(self) -> str:
        """Return card and driver of the first slot that started; wait for it."""
        while (found := self.reports.read(HARDWARE)) is None:
            self._look_at_slots()
            self._check_alive()
            self.sleep(self.poll_s)
        return found.decode()

    @property
    def card(self) -> str:
        """Our name of the card of the slots; empty if none has reported one."""
        return next((report.card for report in self._reports().values() if report.card), "")

    def run(
        self, plan: Sequence[PlannedTrial], *, store: TrialStore, options: RunOptions, observer: SweepObserver
    ) -> None:
        """Watch the slots until each trial of `plan` is answered or has ended in this round, or no slot is left.

        Raises:
            SlotsFailedError: A slot has refused the sweep, or all have ended for causes that they reported.
        """
        watched, waits = Watched(plan=plan, store=store, options=options, observer=observer), False
        try:
            while True:
                began_s = self.clock()
                if watched.look():
                    self._losses_in_a_row = 0
                if not watched.left:
                    observer.machines(self._machines(options, watched.hosts))
                    self._wind_up()
                    break
                waits, waited = self._look_at_slots(), waits
                if waits and not waited:
                    observer.waiting(ALL_WAIT)
                observer.machines(self._machines(options, watched.hosts))
                if not self._alive:
                    watched.look()
                    break
                self.sleep(max(self.poll_s, (self.clock() - began_s) / _LOOKING_SHARE))
        finally:
            watched.report_failures()
        if watched.left:
            self._check_alive()
            self._kept_logs.append(f"The logs of the slots are in {self.place}.")
        elif not self.lost:
            self.jobs.forget()

    def close(self) -> None:
        """Cancel what has not ended."""
        if self._alive:
            self.jobs.cancel()
            self._alive.clear()

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about lost slots and about logs, if there are any."""
        if not self.lost:
            return tuple(self._kept_logs)
        if self.lost == 1:
            return (f"1 slot was lost and replaced; other slots ran its trials. Its log is in {self.place}.",)
        were = f"{self.lost} slots were lost and replaced; other slots ran their trials."
        return (f"{were} Their logs are in {self.place}.",)

    def _look_at_slots(self) -> bool:
        """Read the reports, replace lost slots, and return whether all slots wait for a node.

        Raises:
            SlotsFailedError: A slot has refused the sweep, or slots are lost one after the other.
        """
        queued, reports = self.jobs.queued(), self._reports()
        for name, report in reports.items():
            if report.state is SlotState.ENDED:
                self._end(name, report)
        if queued is None:
            return False
        self._running = {name: reports[name] for name, runs in queued.items() if runs and name in reports}
        now_s = self.clock()
        for name in self._alive & queued.keys():
            self._missing_since_s.pop(name, None)
        missing = self._alive - queued.keys()
        since_s = {name: self._missing_since_s.setdefault(name, now_s) for name in missing}
        self._replace({name for name in missing if now_s - since_s[name] >= self.lost_after_s})
        return bool(queued) and not any(queued.values())

    def _reports(self) -> dict[str, SlotReport]:
        contents = self.reports.read_many(sorted(self.reports.list(REPORTS)))
        found = {PurePosixPath(name).name: read_report(content) for name, content in contents.items()}
        return {name: report for name, report in found.items() if report is not None}

    def _machines(self, options: RunOptions, hosts: Collection[str]) -> Machines:
        """Return the nodes of the slots that run; `hosts` run a trial."""
        nodes = len({report.node for report in self._running.values()})
        gpus = options.slurm_gpus_per_node
        return Machines(
            nodes=nodes, nodes_busy=min(len(hosts), nodes), gpus=gpus.count * len(self._running) if gpus else None
        )

    def _end(self, name: str, report: SlotReport) -> None:
        self._ended[name] = report
        self._alive.discard(name)
        if report.code == EXIT_USAGE:
            self.close()
            raise SlotsFailedError(f"Node {report.node}: {report.problem}", EXIT_USAGE)

    def _replace(self, lost: set[str]) -> None:
        if not lost:
            return
        self._alive -= lost
        self.lost += len(lost)
        self._losses_in_a_row += len(lost)
        if self._losses_in_a_row > MOST_LOSSES * self._most:
            self.close()
            problem = f"Slots ended {self._losses_in_a_row} times without a report and without a finished trial."
            raise SlotsFailedError(f"{problem} Their logs are in {self.place}.", EXIT_INTERNAL)
        self.start(len(lost))

    def _check_alive(self) -> None:
        """Raise what the slots reported, if none is left."""
        if self._alive:
            return
        failed = [report for report in self._ended.values() if report.code]
        if failed:
            problem = f"Node {failed[0].node}: {failed[0].problem.rstrip('.')}."
            raise SlotsFailedError(f"{problem} The logs of the slots are in {self.place}.", failed[0].code)

    def _wind_up(self) -> None:
        """Let running slots see that all trials are answered; cancel those that wait."""
        self.jobs.cancel(waiting_only=True)
        until_s = self.clock() + GRACE_S
        while self.jobs.queued() and self.clock() < until_s:
            self.sleep(self.poll_s)
        if self.clock() < until_s:
            self._alive.clear()
        self.close()
