"""How long a trial takes, from trials that have run."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from profiler.domain.trials.trial import TrialSpec


class Likeness(StrEnum):
    """How much a trial has in common with those that its time is taken from."""

    SAME = "the same trials"
    KIND = "trials that differ in sizes only"
    MODEL = "trials of the same model"
    BACKEND = "other trials"


def kind_of(spec: TrialSpec) -> Hashable:
    """Return what trials have in common that take about as long: all but sizes of the batch, seeds and rates."""
    return (
        *_of_backend(spec),
        spec.recipe,
        spec.model,
        spec.tuning,
        spec.optim,
        spec.gradient_checkpointing,
        spec.use_vllm,
        spec.distributed_type,
        spec.steps,
    )


def _of_backend(spec: TrialSpec) -> tuple[Hashable, ...]:
    # The card of a simulated trial does not decide how long the simulation takes.
    return (spec.backend, spec.num_processes, None if spec.backend.names_its_card else spec.gpu)


_LEVELS: Mapping[Likeness, Callable[[TrialSpec], Hashable]] = {
    Likeness.SAME: lambda spec: spec,
    Likeness.KIND: kind_of,
    Likeness.MODEL: lambda spec: (*_of_backend(spec), spec.recipe, spec.model),
    Likeness.BACKEND: _of_backend,
}


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The time that a trial is expected to take."""

    seconds: float
    shortest_s: float
    longest_s: float
    likeness: Likeness


@dataclass
class _Group:
    count: int = 0
    total_s: float = 0.0
    shortest_s: float = float("inf")
    longest_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total_s += seconds
        self.shortest_s = min(self.shortest_s, seconds)
        self.longest_s = max(self.longest_s, seconds)


@dataclass
class Durations:
    """Seconds of trials that have run, grouped by likeness."""

    trials: int = 0
    _groups: dict[tuple[Likeness, Hashable], _Group] = field(default_factory=dict)

    def learn(self, spec: TrialSpec, seconds: float) -> None:
        """Add a trial that took `seconds`."""
        self.trials += 1
        for likeness, key_of in _LEVELS.items():
            self._groups.setdefault((likeness, key_of(spec)), _Group()).add(seconds)

    def of(self, spec: TrialSpec) -> Expected | None:
        """Return the mean time of the trials that are most like `spec`; None if none has anything in common with it."""
        for likeness, key_of in _LEVELS.items():
            group = self._groups.get((likeness, key_of(spec)))
            if group is not None:
                return Expected(
                    seconds=group.total_s / group.count,
                    shortest_s=group.shortest_s,
                    longest_s=group.longest_s,
                    likeness=likeness,
                )
        return None
