"""The Python of the trials on the machine of a slot, if it is another one than that of the slot."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from profiler.config.options.run_options import RunOptions
from profiler.domain.trials.trial import Backend, PlannedTrial
from profiler.execution.pythons.emulated_python import emulated_workers
from profiler.execution.pythons.other_python import Workers, simulated_workers


@dataclass(frozen=True, kw_only=True)
class TrialPython:
    """Which Python trials run in. Picklable: each machine looks for it at the same path."""

    options: RunOptions
    is_emulated: bool

    def workers(self) -> Workers:
        """Return how workers start in it on this machine.

        Raises:
            UsageError: There is none, or it lacks something.
            ProfilerError: The emulated libraries cannot be built.
        """
        return _workers(self)


def trial_python(options: RunOptions, backends: Iterable[object]) -> TrialPython | None:
    """Return the Python that trials of these backends run in; None if it is that of the slot."""
    is_emulated = Backend.EMULATED in backends
    if options.python is None and not is_emulated:
        return None
    return TrialPython(options=options, is_emulated=is_emulated)


def by_card(plan: Iterable[PlannedTrial]) -> list[PlannedTrial]:
    """Return emulated trials one card after the other: a slot has a warmed process for one card at a time."""
    trials = list(plan)
    cards = list(dict.fromkeys(map(_card, trials)))
    return sorted(trials, key=lambda trial: cards.index(_card(trial)))


def _card(trial: PlannedTrial) -> tuple[str | None, int]:
    return trial.spec.gpu, trial.spec.num_processes


@cache  # a slot asks a Python once
def _workers(python: TrialPython) -> Workers:
    return emulated_workers(python.options) if python.is_emulated else simulated_workers(python.options)
