"""The loop of a sweep: claim trials, start them on the slots of an engine, and settle and report what has ended."""

from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic

from profiler.domain.errors import ProfilerError
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution.slots import Ended, Kind, Slots, Start
from profiler.execution.trials.claim import LockedTrial
from profiler.execution.trials.open_trials import NotTaken, OpenTrials
from profiler.execution.trials.pending import Pending


@dataclass(kw_only=True)
class RunningSweep(Generic[Kind]):
    """The trials of a plan on the slots of one engine: which wait, and which run where."""

    slots: Slots[Kind]
    trials: OpenTrials
    _pending: dict[Kind, Pending] = field(default_factory=dict, init=False)
    """By the kind of slot that they need."""
    _running: dict[Hashable, list[LockedTrial]] = field(default_factory=dict, init=False)
    """By slot; a run answers its first trial, and also the others."""

    def run(self, plan: Sequence[PlannedTrial]) -> None:
        """Run until each trial has a record, or can have none. However that ends, no process and no claim is left.

        Raises:
            TooManyFailuresError: Trial after trial had no answer.
            ProfilerError: The engine cannot run any trial any more.
        """
        for trial in plan:
            self._pending_like(trial).append(trial)
        try:
            while any(self._pending.values()) or self._running:
                self._fill_slots()
                if (machines := self.slots.machines()) is not None:
                    self.trials.observer.machines(machines)
                for ended in self.slots.wait():
                    self._conclude(ended)
        finally:
            self.slots.close()
            for claim in (claim for claims in self._running.values() for claim in claims):
                with suppress(ProfilerError):
                    claim.lock.release()

    def _pending_like(self, trial: PlannedTrial) -> Pending:
        return self._pending.setdefault(self.slots.kind_of(trial.spec), Pending(()))

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _fill_slots(self) -> None:
        """Start trials on free slots. If other sweeps run all that are left, say so."""
        free = self.slots.free({kind: len(pending) for kind, pending in self._pending.items() if pending})
        starts: set[Start] = set()
        for kind, slots in free.items():
            starts |= self._start_some(self._pending.get(kind), list(slots))
        if self._running or Start.CLAIMED not in starts or Start.WAITS in starts:
            return
        if self.slots.are_fixed:
            self._wait_for_another_sweep(free)
        else:
            self.trials.announce("Waiting for trials that another sweep runs in this folder.")

    def _start_some(self, pending: Pending | None, slots: list[Hashable]) -> set[Start]:
        """Start trials on free slots; one that has to wait goes to the back. Return what became of those tried."""
        starts: set[Start] = set()
        for _ in range(len(pending or ())):
            if not slots or not pending:  # siblings were started along with another trial
                break
            trial = pending.popleft()
            start = self._start(trial, slots[0])
            if start is Start.RUNS:
                slots.pop(0)
            elif start is not Start.NEEDLESS:
                pending.append(trial)
            starts.add(start)
        return starts

    def _wait_for_another_sweep(self, free: Mapping[Kind, Sequence[Hashable]]) -> None:
        """Wait for a while until another sweep has ended the first trial that waits."""
        pending, slot = next((waiting, free[kind][0]) for kind, waiting in self._pending.items() if waiting)
        trial = pending.popleft()
        self.trials.announce(f"Waiting for {trial.label} of {trial.spec.model}: another sweep runs it in this folder.")
        if self._start(trial, slot, wait=True) not in (Start.RUNS, Start.NEEDLESS):
            pending.appendleft(trial)

    def _start(self, trial: PlannedTrial, slot: Hashable, *, wait: bool = False) -> Start:
        """Start a trial, or settle it without a run; `wait` for a while if another sweep has claimed it."""
        if not self.slots.may_start(trial):
            return Start.WAITS
        claim = self.trials.take(trial, wait=wait)
        if not isinstance(claim, LockedTrial):
            return Start.CLAIMED if claim is NotTaken.CLAIMED else Start.NEEDLESS
        # From here on the end of the loop releases the claims, whatever happens.
        claims = self._running[slot] = [claim]
        claims += self.trials.take_siblings(trial, self._pending_like(trial))
        start = self.slots.start(slot, claims)
        if start is Start.RUNS:
            self.trials.observer.started(trial)
        else:
            self._release(slot)
        return start

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _conclude(self, ended: Ended) -> None:
        """Report the records of a run, and put trials without one back."""
        first, *siblings = [claim.trial for claim in self._release(ended.slot)]
        if ended.is_lost:
            self.trials.observer.lost(first)
        for trial in (*reversed(siblings), first):
            if trial.trial_id not in ended.records:
                self._put_back(trial, is_suspect=ended.is_suspect)
        found = [trial for trial in (first, *reversed(siblings)) if trial.trial_id in ended.records]
        for trial in found:
            self.trials.report(trial, ended.records[trial.trial_id])
        left = sum(map(len, self._pending.values())) + sum(map(len, self._running.values()))
        for trial in found:
            self.trials.count_failures(ended.records[trial.trial_id], left=left)
        if ended.error is not None:
            raise ended.error

    def _put_back(self, trial: PlannedTrial, *, is_suspect: bool) -> None:
        pending = self._pending_like(trial)
        if is_suspect:
            pending.append(trial)
        else:
            pending.appendleft(trial)

    def _release(self, slot: Hashable) -> list[LockedTrial]:
        """Release the claims of a run, and return them."""
        claims = self._running.pop(slot)
        for claim in claims:
            claim.lock.release()
        return claims
