"""The table of constraints: every combination of keys that a command refuses, one row each."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache

from profiler.constraints.commands import CARDS, CLOSED_FORM, SWEEPS
from profiler.constraints.constraint import SPLIT_ROWS, Case, Constraint, Where
from profiler.constraints.everywhere import EVERYWHERE
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.errors import Fault, UsageError
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import TrialSpec

ArchitectureLookup = Callable[[str], Architecture | None]

CONSTRAINTS: tuple[Constraint, ...] = (*EVERYWHERE, SPLIT_ROWS, *SWEEPS, *CLOSED_FORM, *CARDS)


def broken(case: Case, where: Where) -> Iterator[Constraint]:
    """Yield the constraints of some commands that a trial breaks, in the order of the table."""
    return (constraint for constraint in _rows(where, case.spec.recipe) if constraint.is_broken(case))


@cache
def _rows(where: Where, recipe: Recipe) -> tuple[Constraint, ...]:
    return tuple(each for each in CONSTRAINTS if each.where is where and each.is_about(recipe))


def faults_everywhere(case: Case, *, sound: Callable[..., bool] = lambda *_: True) -> list[Fault]:
    """Return what every command says of a trial.

    Args:
        case: The trial.
        sound: Whether none of some keys has a fault already.
    """
    if not sound("recipe"):
        return []
    return [each.fault(case) for each in broken(case, Where.EVERYWHERE) if sound(*each.values)]


def faults_in_a_sweep(specs: Iterable[TrialSpec], architecture_of: ArchitectureLookup) -> list[Fault]:
    """Return what only a sweep says of its trials, each once: the closed form counts them.

    Args:
        specs: The trials.
        architecture_of: The architecture of a model; None if it is not known.
    """
    cases = (Case(spec=spec, architecture=architecture_of(spec.model)) for spec in specs)
    return list(dict.fromkeys(each.fault(case) for case in cases for each in broken(case, Where.SWEEP)))


def keys_refused_in_a_sweep(specs: Iterable[TrialSpec], architecture_of: ArchitectureLookup) -> tuple[str, ...]:
    """Return the keys that `faults_in_a_sweep` is about, each once: no simulation confirms their estimate."""
    return tuple(dict.fromkeys(fault.key for fault in faults_in_a_sweep(specs, architecture_of)))


def fault_of_closed_form(case: Case) -> Fault | None:
    """Return why there is no closed form for a trial; None if there is one."""
    return next((each.fault(case) for each in broken(case, Where.CLOSED_FORM)), None)


def refuse_without_card(spec: TrialSpec) -> None:
    """Raise the error of a command that asks whether a trial fits its card, if the trial has none.

    Raises:
        UsageError: It has none.
    """
    case = Case(spec=spec, architecture=None)
    if faults := [each.fault(case) for each in broken(case, Where.CARD)]:
        raise UsageError(faults)
