"""How long each part of one simulated trial takes: its phases, its continuation to all layers, replay and record."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from profiler.config.trials.identity import trial_id
from profiler.domain.memory import Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.outcome import Outcome, TrialRecord
from profiler.domain.trials.trial import PlannedTrial, TrialSpec
from profiler.simulation.tracing.recorder import Recorder
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.record_store import RecordStore
from profiler.worker.simulated import outcome_on_card, simulate

CONTINUED = "proof of equal layers, continued trace"
REPLAYED = "replay, outcome"
RECORDED = "its record, written and read"


def seconds_of_parts(spec: TrialSpec) -> Mapping[str, float]:
    """Simulate `spec`, and return the seconds of its parts, in their order.

    Loading has the trainer's construction, and the optimizer what follows until the next phase.
    """
    phases: defaultdict[Phase, float] = defaultdict(float)
    started = time.perf_counter()
    with _timed_phases(phases):
        run = simulate(spec, BUILTIN_MODELS[spec.model].config)
    simulated_s = time.perf_counter() - started
    started = time.perf_counter()
    outcome = outcome_on_card(run, spec)
    replayed_s = time.perf_counter() - started
    return {
        **{phase.value: seconds for phase, seconds in phases.items()},
        CONTINUED: simulated_s - sum(phases.values()),
        REPLAYED: replayed_s,
        RECORDED: _recorded_s(spec, outcome),
    }


def _recorded_s(spec: TrialSpec, outcome: Outcome) -> float:
    """Return the seconds that it takes to store the record of a trial in a folder, and to read it."""
    versions = installed_versions()
    planned = PlannedTrial(trial_id=trial_id(spec, versions), grid="bench", label="bench", spec=spec)
    with TemporaryDirectory() as folder:
        store = RecordStore(Path(folder))
        started = time.perf_counter()
        store.write(TrialRecord.of(planned, versions=versions, outcome=outcome))
        store.find(planned.trial_id)
        return time.perf_counter() - started


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
