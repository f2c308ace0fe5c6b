"""Scripted counters, read at the ends of phases."""

from scripted import Clock

from profiler.domain.memory import Phase
from profiler.domain.runs.readings import PhasePeak, StepPeak
from profiler.measurement.counters.phase_counters import PhaseCounters, by_phase, peak_of_steps


class ScriptedCounters:
    """Returns the next of its readings after each reset."""

    def __init__(self, readings: list[tuple[int, int]]) -> None:
        self._readings = readings
        self._next = -1

    def synchronize(self) -> None:
        """Nothing runs."""

    def reset(self) -> None:
        self._next += 1

    def peak_allocated_bytes(self) -> int:
        return self._readings[self._next][0]

    def peak_reserved_bytes(self) -> int:
        return self._readings[self._next][1]


def peak(step: int, phase: Phase, allocated: int, reserved: int, time_s: float) -> StepPeak:
    return StepPeak(step=step, phase=phase, peak_allocated_bytes=allocated, peak_reserved_bytes=reserved, time_s=time_s)


TWO_STEPS = (Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD, Phase.OPTIMIZER, Phase.ROLLOUT, Phase.FORWARD)


def test_each_phase_of_each_step_has_its_own_exact_peak() -> None:
    readings = [(10, 20), (50, 60), (30, 60), (70, 60), (80, 90), (40, 90), (75, 95)]
    reserved_at_ends: list[int] = []
    observer = PhaseCounters(ScriptedCounters(readings), clock=Clock(), at_phase_end=reserved_at_ends.append)
    assert observer.phase is None
    for phase in TWO_STEPS:
        observer.enter(phase)
    assert observer.where() == (Phase.FORWARD, 2)
    assert (observer.times_finished(Phase.OPTIMIZER), observer.times_finished(Phase.FORWARD)) == (1, 2)
    observer.read()
    steps = observer.step_peaks()
    assert [(one.step, one.phase, one.peak_allocated_bytes, one.peak_reserved_bytes) for one in steps] == [
        (0, Phase.LOAD, 10, 20),
        (1, Phase.FORWARD, 70, 60),
        (1, Phase.BACKWARD, 30, 60),
        (1, Phase.OPTIMIZER, 80, 90),
        (2, Phase.ROLLOUT, 40, 90),
        (2, Phase.FORWARD, 75, 95),
    ]
    assert reserved_at_ends == [reserved for _, reserved in readings]
    assert peak_of_steps(steps) == (80, 75)


def test_times_of_phases_sum_to_the_time_since_the_first_began() -> None:
    clock = Clock()
    observer = PhaseCounters(ScriptedCounters([(1, 1)] * len(TWO_STEPS)), clock=clock)
    for phase in TWO_STEPS:
        observer.enter(phase)
    observer.read()
    # The scripted clock advances one second per call. A change of phase calls it twice: for the end and the beginning.
    assert sum(one.time_s for one in observer.step_peaks()) == len(TWO_STEPS)


def test_a_phase_is_the_highest_of_its_steps() -> None:
    steps = (
        peak(1, Phase.FORWARD, 70, 60, 1.0),
        peak(1, Phase.OPTIMIZER, 80, 90, 2.0),
        peak(2, Phase.FORWARD, 75, 95, 4.0),
    )
    assert by_phase(steps) == (
        PhasePeak(phase=Phase.FORWARD, peak_allocated_bytes=75, peak_reserved_bytes=95, time_s=5.0),
        PhasePeak(phase=Phase.OPTIMIZER, peak_allocated_bytes=80, peak_reserved_bytes=90, time_s=2.0),
    )
