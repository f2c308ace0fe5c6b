"""How long a sweep will take, before it runs: from earlier trials, or between bounds."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from profiler.analysis.times.durations import Durations, Likeness
from profiler.analysis.times.sweep_tally import PriceOf
from profiler.domain.machines.sweep_state import Money
from profiler.domain.trials.trial import Backend, TrialSpec

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
    Backend.SIMULATED: Usual(trials=273, short_s=2.0, median_s=9.2, long_s=38.0),
    Backend.EMULATED: Usual(trials=91, short_s=3.8, median_s=15.0, long_s=366.0),
}
"""Of the trials in `results/reference/*`, on one core of one machine."""


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
