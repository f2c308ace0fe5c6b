"""Counters read at the borders of phases, by a script."""

from profiler.domain.memory import Phase
from profiler.domain.outcome import PhasePeak
from profiler.measurement.phase_counters import PhaseCounters


class ScriptedCounters:
    """Gives the next of its readings after each reset."""

    def __init__(self, readings: list[tuple[int, int]]) -> None:
        self._readings = readings
        self._next = -1

    def reset(self) -> None:
        self._next += 1

    def peak_allocated_bytes(self) -> int:
        return self._readings[self._next][0]

    def peak_reserved_bytes(self) -> int:
        return self._readings[self._next][1]


def test_each_phase_has_its_own_exact_peak() -> None:
    observer = PhaseCounters(ScriptedCounters([(10, 20), (50, 60), (30, 60), (70, 60)]))
    assert observer.phase is None
    for phase in (Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.FORWARD):
        observer.enter(phase)
    observer.read()
    assert observer.phase is Phase.FORWARD
    assert observer.peaks() == (
        PhasePeak(phase=Phase.LOAD, peak_allocated_bytes=10, peak_reserved_bytes=20),
        PhasePeak(phase=Phase.FORWARD, peak_allocated_bytes=70, peak_reserved_bytes=60),
        PhasePeak(phase=Phase.BACKWARD, peak_allocated_bytes=30, peak_reserved_bytes=60),
    )
