"""How long a sweep will take, before it runs and while it runs."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from profiler.analysis.times.durations import Durations, Likeness, kind_of
from profiler.domain.machines.engines import THIS_MACHINE, Machines, Money, OtherMachines, SweepState
from profiler.domain.runs.outcome import Status, TrialRecord, Work
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec

_HOUR_S = 3600.0

PriceOf = Callable[[TrialSpec], Money | None]
"""Returns what one GPU of a trial costs per hour; None if that is not known, or the trial needs no GPU."""


@dataclass(kw_only=True)
class _Kind:
    """Trials that take about as long."""

    spec: TrialSpec
    """One of them."""
    left: int = 0
    done: int = 0


@dataclass
class SweepTally:
    """Counts the trials of one sweep. The engine reports events; `state` may be asked for at any time."""

    plan: Sequence[PlannedTrial]
    """The trials that wait at the beginning."""
    price_of: PriceOf = lambda _: None
    other_machines: Callable[[], OtherMachines] = OtherMachines
    """Returns what other machines do."""
    at: Machines = field(default_factory=Machines)
    clock: Callable[[], float] = time.monotonic
    _running: dict[str, PlannedTrial] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)
    _done_by_others: set[str] = field(default_factory=set)
    _begun: set[str] = field(default_factory=set)
    _repeated: set[str] = field(default_factory=set)
    _seen_done: frozenset[str] = frozenset()
    _lost: int = 0
    _wall: Durations = field(default_factory=Durations)
    _gpu: Durations = field(default_factory=Durations)
    # Events come from the engine's thread, and the state is asked for by the thread that draws.
    _mutex: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._began_s = self.clock()
        self._specs = {trial.trial_id: trial.spec for trial in self.plan}
        self._kinds: dict[Hashable, _Kind] = {}
        for trial in self.plan:
            self._kind(trial.spec).left += 1

    def started(self, trial: PlannedTrial) -> None:
        """Count a trial that has begun."""
        with self._mutex:
            self._running[trial.trial_id] = trial
            (self._repeated if trial.trial_id in self._begun else self._begun).add(trial.trial_id)

    def lost(self, trial: PlannedTrial) -> None:
        """Count a trial whose worker, node or GPU was lost, and which waits again."""
        with self._mutex:
            self._running.pop(trial.trial_id, None)
            self._lost += 1

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Count a trial that has its record."""
        with self._mutex:
            if self._running.pop(trial.trial_id, None) is not None:
                self._done_by_others.discard(trial.trial_id)
            if record.outcome.status is not Status.IMPLIED:
                self._learn(trial.spec, record.outcome.work)
            self._count(trial.trial_id)

    def machines(self, found: Machines) -> None:
        """Take over what the engine sees of its machines."""
        self.at = found

    def state(self) -> SweepState:
        """Return how far the sweep is."""
        others = self.other_machines()
        with self._mutex:
            return self._state(others)

    def _state(self, others: OtherMachines) -> SweepState:
        if others.done is not self._seen_done:
            for trial_id in (others.done & self._specs.keys()) - self._done - self._running.keys():
                self._done_by_others.add(trial_id)
                self._count(trial_id)
            self._seen_done = others.done
        own = dict(self._running)
        theirs = {
            trial_id: host
            for trial_id, host in others.running.items()
            if trial_id in self._specs and trial_id not in own and trial_id not in self._done
        }
        hosts = Counter(theirs.values())
        done, running = len(self._done), len(own) + len(theirs)
        known_hosts = len(hosts.keys() - {"", THIS_MACHINE})
        return SweepState(
            total=len(self._specs),
            done=done,
            done_by_others=len(self._done_by_others),
            running=running,
            running_by_others=hosts,
            waiting=max(0, len(self._specs) - done - running),
            lost=self._lost + others.lost,
            repeated=len(self._repeated) + others.repeated,
            nodes=self.at.nodes + known_hosts,
            nodes_busy=self._nodes_busy(own, known_hosts),
            # How many GPUs other machines have is not known.
            gpus=self.at.gpus if not theirs else None,
            gpus_busy=self._gpus_busy(own, theirs),
            left_s=self._left_s(),
            left_cost=self._left_cost(),
        )

    def _learn(self, spec: TrialSpec, work: Work) -> None:
        if work.wall_s is not None:
            self._wall.learn(spec, work.wall_s)
        if work.gpu_s is not None:
            self._gpu.learn(spec, work.gpu_s)

    def _count(self, trial_id: str) -> None:
        if trial_id in self._specs and trial_id not in self._done:
            self._done.add(trial_id)
            kind = self._kind(self._specs[trial_id])
            kind.left -= 1
            kind.done += 1

    def _kind(self, spec: TrialSpec) -> _Kind:
        return self._kinds.setdefault(kind_of(spec), _Kind(spec=spec))

    def _nodes_busy(self, own: Mapping[str, PlannedTrial], other_hosts: int) -> int | None:
        if self.at.nodes_busy is not None:
            return self.at.nodes_busy + other_hosts
        return (1 if own else 0) + other_hosts if self.at.nodes == 1 else None

    def _gpus_busy(self, own: Mapping[str, PlannedTrial], theirs: Collection[str]) -> int:
        used = sum(map(_gpus_of, (trial.spec for trial in own.values())))
        here = self.at.gpus_busy if self.at.gpus_busy is not None else used
        return here + sum(_gpus_of(self._specs[trial_id]) for trial_id in theirs)

    def _left_s(self) -> float | None:
        """Return the time until the end, if all machines go on as fast as since the beginning.

        Trials that take longer than others count for more.
        """
        weights = [(kind, self._seconds(kind.spec, self._wall) or 1.0) for kind in self._kinds.values()]
        done = sum(kind.done * seconds for kind, seconds in weights)
        left = sum(kind.left * seconds for kind, seconds in weights)
        return (self.clock() - self._began_s) * left / done if done else None

    def _left_cost(self) -> Money | None:
        total, currency = 0.0, ""
        for kind in self._kinds.values():
            price = self.price_of(kind.spec)
            seconds = self._seconds(kind.spec, self._gpu)
            if price is None or seconds is None:
                if kind.left and _gpus_of(kind.spec):
                    return None
                continue
            total, currency = total + kind.left * seconds / _HOUR_S * price.amount, price.currency
        has_price = any(self.price_of(kind.spec) for kind in self._kinds.values())
        return Money(amount=total, currency=currency) if has_price and self._gpu.trials else None

    @staticmethod
    def _seconds(spec: TrialSpec, known: Durations) -> float | None:
        expected = known.of(spec)
        return expected.seconds if expected is not None else None


def _gpus_of(spec: TrialSpec) -> int:
    return spec.num_processes if spec.backend is Backend.CUDA else 0


HOUR_S = 3600.0

LeastOf = Callable[[TrialSpec], float | None]
"""Returns the least seconds of a trial on its GPU; None if that is not known."""


@dataclass(frozen=True, kw_only=True)
class Usual:
    """What trials of one backend usually take, where none has run in the folder."""

    trials: int
    """How many were looked at."""
    short_s: float
    """One in twenty is shorter."""
    median_s: float
    long_s: float
    """One in twenty is longer."""


USUAL: Mapping[Backend, Usual] = {
    Backend.SIMULATED: Usual(trials=437, short_s=2.2, median_s=7.5, long_s=37.3),
    Backend.EMULATED: Usual(trials=91, short_s=8.6, median_s=19.2, long_s=366.0),
}
"""Of the trials in `results/reference/*`, on one core of one machine, which other work kept busy."""


class Basis(StrEnum):
    """What a time rests on."""

    EARLIER = "earlier trials"
    USUAL = "usual times"
    BOUNDS = "bounds"


@dataclass(kw_only=True)
class TimedTrials:
    """Trials of one backend whose time rests on the same."""

    backend: Backend
    basis: Basis
    trials: int = 0
    least_s: float = 0.0
    expected_s: float = 0.0
    """0 between bounds."""
    most_s: float = 0.0
    price: Money | None = None
    """Of one GPU for one hour; None if it is not known, or not the same for all."""
    likeness: Counter[Likeness] = field(default_factory=Counter)
    """How many trials have times of which likeness; empty but for earlier trials."""
    has_least: bool = True
    """Whether the least time of all trials is known."""


def sweep_time(
    specs: Sequence[TrialSpec], earlier: Durations, *, least_of: LeastOf, most_s: float, price_of: PriceOf
) -> list[TimedTrials]:
    """Return the time of the trials that will run, in parts by backend and basis.

    Seconds are those of GPUs for measured trials, all GPUs of a trial together, and of one process for others.

    Args:
        specs: The trials that will run.
        earlier: Times of trials that have run, in the same seconds.
        least_of: Returns the least time of a measured trial on all of its GPUs.
        most_s: The time limit of one trial.
        price_of: Returns the price of a GPU.
    """
    found: dict[tuple[Backend, Basis], TimedTrials] = {}
    for spec in specs:
        expected = earlier.of(spec)
        usual = USUAL.get(spec.backend)
        basis = Basis.EARLIER if expected is not None else Basis.USUAL if usual is not None else Basis.BOUNDS
        timed = found.setdefault(
            (spec.backend, basis), TimedTrials(backend=spec.backend, basis=basis, price=price_of(spec))
        )
        timed.trials += 1
        timed.price = timed.price if timed.price == price_of(spec) else None
        if expected is not None:
            timed.likeness[expected.likeness] += 1
            times = (expected.shortest_s, expected.seconds, expected.longest_s)
        elif usual is not None:
            times = (usual.short_s, usual.median_s, usual.long_s)
        else:
            least = least_of(spec)
            timed.has_least = timed.has_least and least is not None
            gpus = spec.num_processes if spec.backend is Backend.CUDA else 1
            times = (least or 0.0, 0.0, most_s * gpus)
        timed.least_s, timed.expected_s, timed.most_s = (
            total + each for total, each in zip((timed.least_s, timed.expected_s, timed.most_s), times, strict=True)
        )
    return list(found.values())
