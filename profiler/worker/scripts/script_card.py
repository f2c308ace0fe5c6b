"""The real or emulated card of a script, with what is on it where memory is short."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Phase
from profiler.domain.runs.script import HeldTensors, NamedCard, ScriptJob
from profiler.measurement.counters.cuda import OutOfMemoryCallback
from profiler.measurement.counters.late_cuda import LateCuda
from profiler.scripts.session import CountedSession
from profiler.scripts.totals import ParameterTotals
from profiler.training.models.sizes import parameter_counts
from profiler.training.phases import TrainingObserver
from profiler.worker.cuda.held_tensors import KnownObjects, largest_at_peak, largest_held, names_by_place

MOST_ENTRIES = 300_000
"""Most allocations and frees that a breakdown looks at; their Python stacks take memory of the host."""


class ScriptCuda(LateCuda):
    """The card of a script. Where an allocation fails, it looks at what is in use before anything is freed."""

    def __init__(self, job: ScriptJob) -> None:
        super().__init__(_card_of(job))
        self._script = Path(job.spec.script)
        self._keeps_names = job.breakdown
        self._session: CountedSession | None = None
        self._names: dict[tuple[int, int], str] = {}
        self.totals = ParameterTotals(count=parameter_counts)
        self.largest_at_failure: tuple[HeldTensors, ...] = ()
        """Empty if no allocation failed; the script may have gone on after one."""
        if not (job.snapshot or job.breakdown):
            self.record_stacks()

    def session(self, observer: TrainingObserver) -> CountedSession:
        """Return the session in which the script runs."""
        self._session = CountedSession(observer=observer, totals=self.totals, before_phase=self._before_phase)
        return self._session

    def when_out_of_memory(self, callback: OutOfMemoryCallback) -> None:
        """Attach an observer that also keeps the largest tensors."""

        def both(requested_bytes: int, free_bytes: int) -> None:
            callback(requested_bytes, free_bytes)
            self.largest_at_failure = largest_held(self.snapshot(), self._known_objects())

        super().when_out_of_memory(both)

    def largest_at_peak(self, snapshot: Mapping[str, Any]) -> tuple[HeldTensors, ...]:
        """Return the largest tensors at the peak of a recorded history."""
        known = self._known_objects()
        return largest_at_peak(snapshot, known, self._names | names_by_place(known))

    def _before_phase(self, phase: Phase) -> None:
        """Keep the names of gradients while there are gradients: the optimizer's phase begins."""
        if self._keeps_names and phase is Phase.OPTIMIZER and self.is_used:
            self._names |= names_by_place(self._known_objects())

    def _known_objects(self) -> KnownObjects:
        models, optimizers = (self._session.models, self._session.optimizers) if self._session else ([], [])
        return KnownObjects(script=self._script, models=_alive(models), optimizers=_alive(optimizers))


def notes_on_history(snapshot: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what a history of at most `MOST_ENTRIES` lacks."""
    if len(snapshot["device_traces"][0]) < MOST_ENTRIES:
        return ()
    return (f"tensors from before the last {MOST_ENTRIES:,} allocations and frees, for their names at the peak",)


def _alive(references: Iterable[Any]) -> list[Any]:
    return [found for each in references if (found := each()) is not None]


def _card_of(job: ScriptJob) -> NamedCard:
    if job.card is not None:
        return job.card
    gpu = KNOWN_GPUS[str(job.spec.gpu)]
    return NamedCard(uuid="", name=gpu.title, memory_bytes=gpu.memory_bytes, compute_capability=gpu.compute_capability)
