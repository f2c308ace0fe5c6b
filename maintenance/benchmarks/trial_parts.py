"""How long each part of one simulated trial takes: its phases, its continuation to all layers, and its replay."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.trials.trial import TrialSpec
from profiler.simulation.tracing.recorder import Recorder
from profiler.worker.simulated import outcome_on_card, simulate

CONTINUED = "proof of equal layers, continued trace"
REPLAYED = "replay, outcome"


def seconds_of_parts(spec: TrialSpec) -> Mapping[str, float]:
    """Simulate `spec`, and return the seconds of its parts, in their order.

    Phases are those of all runs of the trainer together; loading has the trainer's construction, and the optimizer what
    follows until the next phase.
    """
    phases: defaultdict[Phase, float] = defaultdict(float)
    started = time.perf_counter()
    with _timed_phases(phases):
        run = simulate(spec, BUILTIN_MODELS[spec.model].config)
    simulated_s = time.perf_counter() - started
    started = time.perf_counter()
    outcome_on_card(run, spec)
    return {
        **{phase.value: seconds for phase, seconds in phases.items()},
        CONTINUED: simulated_s - sum(phases.values()),
        REPLAYED: time.perf_counter() - started,
    }


@contextmanager
def _timed_phases(phases: defaultdict[Phase, float]) -> Iterator[None]:
    """While active, the time from each beginning of a phase to the next one, or to the end of the run, is added up."""
    enter, finished = Recorder.enter, Recorder.finished
    since: dict[Recorder, float] = {}

    def end(recorder: Recorder) -> None:
        now = time.perf_counter()
        if recorder in since:
            phases[recorder.phase] += now - since.pop(recorder)

    def timed_enter(recorder: Recorder, phase: Phase) -> None:
        end(recorder)
        since[recorder] = time.perf_counter()
        enter(recorder, phase)

    def timed_finished(recorder: Recorder) -> object:
        end(recorder)
        return finished(recorder)

    with patch.object(Recorder, "enter", timed_enter), patch.object(Recorder, "finished", timed_finished):
        yield
