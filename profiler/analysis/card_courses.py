"""Who holds what of each card of a command on an emulated machine, through the stages of its processes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from profiler.domain.memory import Phase
from profiler.domain.runs.other_runs import JobChange, JobProcess, JobRecord

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
    """Return the course of each card that differs from the ones before; empty if no process wrote its memory."""
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
