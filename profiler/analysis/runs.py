"""What the reports of scripts and of monitored runs show: the runs of a folder, with their peaks."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePath

from profiler.domain.memory import Origin, Phase
from profiler.domain.runs.other_runs import (
    HeldTensors,
    JobChange,
    JobProcess,
    JobRecord,
    MonitoredGpu,
    MonitoredRun,
    ScriptRecord,
)
from profiler.domain.runs.outcome import Outcome, Run, Status
from profiler.domain.runs.readings import OutOfMemory


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


MOST_POINTS = 2_000
"""Points of a curve in a figure."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """One value over time."""

    label: str
    times_s: tuple[float, ...]
    sizes_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MonitoredLines(ShownRun):
    """One monitored run; without phases unless a callback kept the record."""

    record: MonitoredRun
    gpus: tuple[Course, ...]
    """Memory of the GPUs: by all programs, and of a single GPU by the run itself."""
    host: tuple[Course, ...]

    @property
    def origin(self) -> Origin:
        """Where its figures come from: torch's counters and the driver."""
        return Origin.MEASURED

    @property
    def command(self) -> str:
        """The words of the command, as a shell would take them."""
        return shlex.join(self.record.command)

    @property
    def step_peaks(self) -> tuple[tuple[int, int], ...]:
        """Each optimizer step with its highest allocated memory, where a callback kept the record."""
        steps = zip(*(line.steps_bytes for line in self.phases), strict=True)
        peaks = (max((size for size in step if size is not None), default=None) for step in steps)
        return tuple((step, peak) for step, peak in enumerate(peaks, start=1) if peak is not None)

    @property
    def fullest(self) -> MonitoredGpu | None:
        """The GPU with the highest sample; None if none was sampled."""
        return fullest_gpu(self.record.gpus)


def fullest_gpu(gpus: Sequence[MonitoredGpu]) -> MonitoredGpu | None:
    """Return the GPU on which a run's own processes had the most memory, or all programs where that is unknown."""
    known = [gpu for gpu in gpus if gpu.peak_used_bytes is not None]
    return max(known, key=lambda gpu: (gpu.peak_process_bytes or 0, gpu.peak_used_bytes or 0), default=None)


def own_peak_bytes(gpu: MonitoredGpu) -> int | None:
    """Return the peak of a run's own memory on a GPU: by process, or what came on top of the memory before it."""
    if gpu.peak_process_bytes is not None:
        return gpu.peak_process_bytes
    if gpu.peak_used_bytes is None or gpu.before_bytes is None:
        return None
    return max(0, gpu.peak_used_bytes - gpu.before_bytes)


def monitored_lines(
    record: MonitoredRun, *, gpus: Sequence[Course] = (), host: Sequence[Course] = ()
) -> MonitoredLines:
    """Return what is shown of one run; curves have at most `MOST_POINTS` points."""
    phases, steps = phase_lines(record.outcome)
    return MonitoredLines(
        record=record,
        phases=phases,
        steps=steps,
        gpus=tuple(_reduced(course) for course in gpus if course.times_s),
        host=tuple(_reduced(course) for course in host if course.times_s),
    )


def _reduced(course: Course) -> Course:
    """Return `course` with the highest of each group of neighbours, so that no sampled peak is lost."""
    size = -(-len(course.times_s) // MOST_POINTS)
    starts = range(0, len(course.times_s), size)
    return Course(
        label=course.label,
        times_s=tuple(course.times_s[start] for start in starts),
        sizes_bytes=tuple(max(course.sizes_bytes[start : start + size]) for start in starts),
    )


_STAGES: Mapping[Phase, str] = dict.fromkeys((Phase.CRITIC, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER), "update")
"""Names of stages that have several phases: an update has forward and backward passes without number."""
_SHARE_OF_NO_INTEREST = 64
"""A process that never holds 1/64 of the most on a card, such as one with a context only, is one of the others."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What a process does for a while, between two places of the course."""

    name: str
    """A phase, or "update" for forward, backward and optimizer."""
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Holder:
    """What one process, or all that hold little, have of a card."""

    process: JobProcess | None
    """None means the others."""
    sizes_bytes: tuple[int, ...]
    """From each place of the course to the next one."""
    stages: tuple[Stage, ...]
    """While it holds memory; empty for the others."""
    at_worst_bytes: int
    """When the card held the most."""
    at_worst_phase: Phase | None
    """In which phase it was then; None for the others."""


@dataclass(frozen=True, kw_only=True)
class CardCourse:
    """Who holds what of a card from the start to the end of a command."""

    cards: tuple[int, ...]
    """The card that is shown, and others on which the same roles have the same peaks."""
    places: tuple[float, ...]
    """Of each change: the whole part is the number of stages before, in which some process began another one.

    Not a time, since an emulated run takes other times than a real one: every stage is as long as any other.
    """
    holders: tuple[Holder, ...]
    """Those that train, then those that generate, and the others last."""
    most_bytes: int
    """All together at once."""

    @property
    def end(self) -> float:
        """The place at which the command has ended."""
        return float(int(self.places[-1]) + 1)

    @property
    def worst_place(self) -> float:
        """The place of the highest point that is drawn."""
        totals = [sum(sizes) for sizes in zip(*(holder.sizes_bytes for holder in self.holders), strict=True)]
        return self.places[totals.index(max(totals))]


def card_courses(record: JobRecord) -> tuple[CardCourse, ...]:
    """Return the course of each card that differs from the ones before; empty if no process has told of its memory."""
    alike: dict[object, list[int]] = {}
    for card in sorted({change.card for change in record.memory.course}):
        alike.setdefault(_looks(record, card), []).append(card)
    return tuple(_card_course(record, tuple(cards)) for cards in alike.values())


def _looks(record: JobRecord, card: int) -> object:
    """Return roles and peaks on a card, to 1 % of it."""
    return tuple(
        sorted(
            (process.roles, round(100 * process.peak_bytes[card] / record.memory_bytes))
            for process in record.memory.processes
            if process.peak_bytes[card]
        )
    )


def _card_course(record: JobRecord, cards: tuple[int, ...]) -> CardCourse:
    card, processes = cards[0], record.memory.processes
    changes = _turns([change for change in record.memory.course if change.card == card])
    most = record.memory.card_peak_bytes[card]
    shown = {
        place: process
        for place, process in enumerate(processes)
        if process.peak_bytes[card] * _SHARE_OF_NO_INTEREST >= most
    }
    places, doing = _places(changes, frozenset(shown))
    sizes = _sizes(changes)
    end = float(int(places[-1]) + 1)
    holders = [
        Holder(
            process=process,
            sizes_bytes=tuple(each.get(place, 0) for each in sizes),
            stages=_stages([each.get(place, "") for each in doing], places, end),
            at_worst_bytes=process.at_worst_bytes[card],
            at_worst_phase=process.at_worst_phases[card],
        )
        for place, process in sorted(shown.items(), key=lambda item: (not item[1].roles, item[1].roles[::-1], item[0]))
    ]
    rest = tuple(sum(size for place, size in each.items() if place not in shown) for each in sizes)
    if any(rest):
        least = sum(each.at_worst_bytes[card] for place, each in enumerate(processes) if place not in shown)
        holders.append(Holder(process=None, sizes_bytes=rest, stages=(), at_worst_bytes=least, at_worst_phase=None))
    return CardCourse(cards=cards, places=places, holders=tuple(holders), most_bytes=most)


def _turns(changes: Sequence[JobChange]) -> list[JobChange]:
    """Return the changes with which a stage begins, and the last of each rise or fall: it has no course of its own."""
    found: list[JobChange] = []
    held: dict[int, int] = {}
    before = 0
    for change in changes:
        moved = change.held_bytes - held.get(change.process, 0)
        last = found[-1] if found else None
        if last is not None and last.process == change.process and _stage(last) == _stage(change):
            if before * moved > 0:
                found.pop()
            if not moved:
                continue
        found.append(change)
        before, held[change.process] = moved, change.held_bytes
    return found


def _stage(change: JobChange) -> str:
    """Return what a process does that holds memory; empty if it holds none."""
    return _STAGES.get(change.phase, change.phase.value) if change.held_bytes else ""


def _sizes(changes: Sequence[JobChange]) -> list[dict[int, int]]:
    held: dict[int, int] = {}
    found = []
    for change in changes:
        held = {**held, change.process: change.held_bytes}
        found.append(held)
    return found


def _places(changes: Sequence[JobChange], shown: frozenset[int]) -> tuple[tuple[float, ...], list[dict[int, str]]]:
    """Return the place of each change, and what each process that is shown does then, if it holds memory."""
    doing: dict[int, str] = {}
    each_does = []
    for change in changes:
        if change.process in shown:
            doing = {**doing, change.process: _stage(change)}
        each_does.append(doing)
    places: list[float] = []
    for number, (_, same) in enumerate(groupby(each_does)):
        count = len(list(same))
        places.extend(number + place / count for place in range(count))
    return tuple(places), each_does


def _stages(names: Sequence[str], places: Sequence[float], end: float) -> tuple[Stage, ...]:
    starts = [place for place, name in enumerate(names) if place == 0 or name != names[place - 1]]
    ends = [*(places[start] for start in starts[1:]), end]
    found = zip(starts, ends, strict=True)
    return tuple(Stage(name=names[start], start=places[start], end=until) for start, until in found if names[start])
