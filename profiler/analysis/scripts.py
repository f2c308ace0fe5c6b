"""What the report of a script shows: the runs in its folder, with the peaks of their phases."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from profiler.domain.memory import Origin, Phase
from profiler.domain.runs.outcome import Outcome, Run, Status
from profiler.domain.runs.readings import OutOfMemory
from profiler.domain.runs.script import HeldTensors, ScriptRecord


@dataclass(frozen=True, kw_only=True)
class PhaseLine:
    """One phase of a run."""

    phase: Phase
    allocated_bytes: int | None
    reserved_bytes: int | None
    steps_bytes: tuple[int | None, ...]
    """Allocated memory in each optimizer step, from 1; None in a step without the phase."""


@dataclass(frozen=True, kw_only=True)
class ShownRun(ABC):
    """A run whose phases are shown, of a script or of a monitored program."""

    record: Run
    phases: tuple[PhaseLine, ...]
    steps: int
    """Optimizer steps that have figures."""

    @property
    @abstractmethod
    def origin(self) -> Origin:
        """Where its figures come from."""

    @property
    def outcome(self) -> Outcome:
        """The result of the run."""
        return self.record.outcome

    @property
    def out_of_memory(self) -> OutOfMemory | None:
        """The allocation that failed; None if none ended the run."""
        return self.outcome.verdict.oom if self.outcome.status is Status.OOM else None


@dataclass(frozen=True, kw_only=True)
class RunLines(ShownRun):
    """One run of a script."""

    record: ScriptRecord

    @property
    def origin(self) -> Origin:
        """Where its figures come from."""
        origin = self.record.spec.backend.origin
        if origin is None:
            raise ValueError(f"backend={self.record.spec.backend} has no figures")
        return origin

    @property
    def script(self) -> str:
        """Name of the script."""
        return PurePath(self.record.spec.script).name

    @property
    def largest(self) -> tuple[HeldTensors, ...]:
        """The largest tensors at the peak or at the failure; empty where unknown."""
        return self.record.largest


def run_lines(record: ScriptRecord) -> RunLines:
    """Return what is shown of one run."""
    phases, steps = phase_lines(record.outcome)
    return RunLines(record=record, steps=steps, phases=phases)


def phase_lines(outcome: Outcome) -> tuple[tuple[PhaseLine, ...], int]:
    """Return the phases of a run and the number of its optimizer steps that have figures."""
    by_step = outcome.measured.step_peaks if outcome.measured else ()
    steps = max((peak.step for peak in by_step), default=0)
    found = {(peak.step, peak.phase): peak.peak_allocated_bytes for peak in by_step}
    lines = tuple(
        PhaseLine(
            phase=peak.phase,
            allocated_bytes=peak.peak_allocated_bytes,
            reserved_bytes=peak.peak_reserved_bytes,
            steps_bytes=tuple(found.get((step, peak.phase)) for step in range(1, steps + 1)),
        )
        for peak in outcome.peaks.phases
    )
    return lines, steps


def ordered_runs(records: Sequence[ScriptRecord]) -> tuple[RunLines, ...]:
    """Return all runs: by arguments, then by card, then the strongest origin first."""
    origins = list(Origin)
    lines = [run_lines(record) for record in records]
    return tuple(
        sorted(
            lines,
            key=lambda run: (
                run.script,
                run.record.spec.arguments,
                run.record.spec.num_processes,
                run.outcome.card.name or "",
                origins.index(run.origin),
                run.record.run_id,
            ),
        )
    )
