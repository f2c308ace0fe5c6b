"""Simulations on both sides of a boundary, in processes of their own, without a stored result."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from profiler.config.options.run_options import RunOptions
from profiler.config.trials.identity import trial_id
from profiler.config.trials.labels import labels
from profiler.domain.cards.gpu_names import gpu_named
from profiler.domain.machines.sweep_state import Machines
from profiler.domain.runs.outcome import Status, TrialRecord
from profiler.domain.trials.trial import PlannedTrial, TrialSpec
from profiler.rendering.answers.solve import SimulatedSide
from profiler.storage.records.versions import installed_versions

Simulate = Callable[[Mapping[int, TrialSpec]], Sequence[SimulatedSide]]
"""Returns the simulation of trials by their value of the key."""


class _Silent:
    """An observer that shows nothing: two trials need no progress."""

    def started(self, trial: PlannedTrial) -> None:
        """Show nothing."""

    def lost(self, trial: PlannedTrial) -> None:
        """Show nothing."""

    def machines(self, found: Machines) -> None:
        """Show nothing."""

    def waiting(self, reason: str) -> None:
        """Show nothing."""

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:
        """Show nothing."""


def simulated(specs: Mapping[int, TrialSpec]) -> Sequence[SimulatedSide]:
    """Return the simulation of each of `specs`, by their value of the key that is solved for."""
    # Imported here, because the bare distribution has not all that they import.
    from profiler.execution import run_trials
    from profiler.storage.stores.record_store import RecordStore

    versions = installed_versions()
    plan = [
        PlannedTrial(trial_id=trial_id(spec, versions), grid="solve", label=label, spec=spec)
        for spec, label in zip(specs.values(), labels(list(specs.values())), strict=True)
    ]
    with TemporaryDirectory(prefix="grpo-vram-solve-") as folder:
        store = RecordStore(Path(folder))
        run_trials(plan, options=RunOptions(), store=store, versions=versions, observer=_Silent())
        return [_side(value, store.find(trial.trial_id)) for value, trial in zip(specs, plan, strict=True)]


def _side(value: int, record: TrialRecord | None) -> SimulatedSide:
    if record is None:
        return SimulatedSide(value=value, status=Status.FAILED, needed_bytes=None, message="no record")
    outcome = record.outcome
    unreleasable = outcome.unlimited.required_unreleasable_bytes if outcome.unlimited is not None else None
    context = outcome.card.context_bytes
    needed = unreleasable + context if unreleasable is not None and context is not None else None
    return SimulatedSide(value=value, status=outcome.status, needed_bytes=needed, message=outcome.verdict.message)


class NoAnswerError(Exception):
    """A simulation that ended without an answer, so that the estimate is all there is."""


class Confirmation:
    """The simulations of one answer, of which each trial runs once."""

    def __init__(self, simulate: Simulate, margin: float, known: Sequence[SimulatedSide]) -> None:
        """Keep what was simulated.

        Args:
            simulate: Returns the simulation of trials by their value of the key.
            margin: Part of the card that has to stay free.
            known: Simulations of both sides of the boundary.
        """
        self._simulate, self._margin = simulate, margin
        self._known = {side.value: side for side in known}

    @property
    def sides(self) -> tuple[SimulatedSide, ...]:
        """What was simulated, by the value."""
        return tuple(side for _, side in sorted(self._known.items()))

    def fits(self, value: int, spec: TrialSpec) -> bool:
        """Return whether a trial fits by its simulation, with the margin left free.

        Raises:
            NoAnswerError: The simulation has no answer.
        """
        if value not in self._known:
            self._known.update({side.value: side for side in self._simulate({value: spec})})
        side = self._known[value]
        if side.needed_bytes is None or side.status not in (Status.OK, Status.OOM):
            raise NoAnswerError
        left = gpu_named(str(spec.gpu)).memory_bytes * (1 - self._margin) - side.needed_bytes
        return side.fits and left >= 0
