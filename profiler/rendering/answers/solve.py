"""The boundary between what fits a card and what does not, of one key or of two, as text and JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from profiler.analytical.explanation.boundary import Boundary
from profiler.analytical.explanation.explained import CardVerdict, Fit
from profiler.config.prices import Price
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.memory import Origin, gib_text
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.labels import key_words
from profiler.domain.trials.trial import TrialSpec
from profiler.rendering.document import Align, Block, Cell, Column, Document, Section, Table, Text, paragraphs
from profiler.rendering.estimate.card_list import price_object, price_text, sourced_text
from profiler.rendering.estimate.table import CONTEXT_NOTE, method_text
from profiler.rendering.layouts.plain_text import json_text, plain_text
from profiler.rendering.memory_words import fragments_note, gib_number

_CHOICE_COLUMNS = (Column(title="value", align=Align.LEFT, width=22), Column(title="verdict", align=Align.LEFT))


@dataclass(frozen=True, kw_only=True)
class SimulatedSide:
    """What the simulation says of one side of a boundary."""

    value: int
    status: Status
    needed_bytes: int | None
    """Segments that hold a tensor at the worst instant, and the CUDA context; None if the trial has no answer."""
    message: str

    @property
    def fits(self) -> bool:
        """Whether the card is large enough, with nothing left free."""
        return self.status is Status.OK


class Decided(StrEnum):
    """Which of two methods an answer is of."""

    ESTIMATE = "estimate"
    """Nothing was simulated."""
    BOTH = "estimate and simulation"
    """They agree."""
    SIMULATION = "simulation"
    """They do not, and the boundary is that of the simulation."""
    UNDECIDED = "estimate, because a simulation has no answer"


_SIMULATED = (Decided.BOTH, Decided.SIMULATION)


@dataclass(frozen=True, kw_only=True)
class KeyAnswer:
    """The largest value of a key that fits."""

    key: str
    specs: Mapping[int, TrialSpec]
    """The trials on both sides of the boundary, by their value of the key."""
    axes: tuple[str, ...]
    """Keys that differ between several answers."""
    boundary: Boundary[CardVerdict]
    margin: float
    """Part of the card that has to stay free."""
    sides: tuple[SimulatedSide, ...] = ()
    """Empty if nothing was simulated."""
    decided: Decided = Decided.ESTIMATE
    estimated: int | None = None
    """The largest value by the estimate, where `boundary` is that of the simulation."""

    @property
    def spec(self) -> TrialSpec:
        """The trial on one side of the boundary."""
        return next(iter(self.specs.values()))


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One value of what is chosen: a card, a number of GPUs or a model."""

    value: object
    verdict: CardVerdict | None
    """None if rules refuse the value."""
    refusal: str = ""
    """Why rules refuse the value, as a sentence."""


@dataclass(frozen=True, kw_only=True)
class ChoiceAnswer:
    """The first of some values that fits, in an order of preference."""

    key: str
    """``gpu``, ``num_processes`` or ``model``."""
    spec: TrialSpec
    choices: tuple[Choice, ...]
    """What was tried, the best first."""
    margin: float
    """Part of the card that has to stay free."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """The lowest price of each card, by name; empty where no cards are chosen from."""

    @property
    def cheapest(self) -> Choice | None:
        """The cheapest card that fits, of those with a price; None if none does."""
        priced = [each for each in self.choices if each.value in self.prices]
        fitting = [each for each in priced if each.verdict and leaves_free(each.verdict, self.margin)]
        return min(fitting, key=lambda each: self.prices[str(each.value)].per_hour, default=None)

    @property
    def best(self) -> Choice | None:
        """The first choice that fits; None if none does."""
        return next((each for each in self.choices if each.verdict and leaves_free(each.verdict, self.margin)), None)

    @property
    def verdicts(self) -> tuple[CardVerdict, ...]:
        """The verdicts of all choices that rules allow."""
        return tuple(each.verdict for each in self.choices if each.verdict is not None)


def leaves_free(card: CardVerdict, margin: float) -> bool:
    """Return whether a trial fits and leaves `margin` of the card free."""
    return card.fit is Fit.FITS and card.left_bytes >= margin * card.gpu.memory_bytes


def key_text(answers: Sequence[KeyAnswer], notes: Sequence[str]) -> str:
    """Return the answers as text: of each a sentence, both sides of its boundary, and which method decided."""
    blocks: list[Block] = [*map(Text, notes)]
    for answer in answers:
        blocks += [Text(_headline(answer)), *_sides(answer), *map(Text, _decided(answer))]
    note = fragments_note(card for answer in answers for card in answer.boundary.answers)
    blocks.append(Text(f"Estimated. {note} {CONTEXT_NOTE}"))
    return plain_text(Document(title="Solved", blocks=blocks))


_CHOICE_WORDS = {
    "gpu": ("the smallest that fits", "No card is large enough."),
    "num_processes": ("the fewest GPUs that are enough", "No number of GPUs is enough."),
    "model": ("the largest that fits", "No model of the family fits."),
}
"""How the best choice of each key is said, and that there is none."""


def choice_text(answer: ChoiceAnswer, notes: Sequence[str]) -> str:
    """Return the best choice as text, after those that were preferred and do not fit."""
    best, rows = _CHOICE_WORDS[answer.key][0], []
    for each in answer.choices:
        mark = f"  <- {best}" if each is answer.best else ""
        said = each.refusal if each.verdict is None else _needs(each.verdict)
        cost = f", {price_text(answer.prices.get(str(each.value)))}" if answer.prices else ""
        rows.append((Cell(text=_number(each.value), is_part=True), f"{said}{cost}{mark}"))
        if each is answer.best:
            break
    model = "" if answer.key == "model" else f"{answer.spec.model}, "
    where = "" if answer.key == "gpu" else f", on {answer.spec.gpu}"
    blocks: list[Block] = [
        *map(Text, notes),
        Text(f"{model}{method_text(answer.spec, varied=(answer.key,))}{where}:"),
        Table(_CHOICE_COLUMNS, rows, has_titles=False),
        *([Text(_none_text(answer))] if answer.best is None else ()),
        *([Text(_cheapest_text(answer))] if answer.prices and answer.best is not None else ()),
        Text(f"Estimated{with_margin(answer.margin)}. {fragments_note(answer.verdicts)} {CONTEXT_NOTE}"),
    ]
    return plain_text(Document(title=answer.spec.model, blocks=blocks))


def _cheapest_text(answer: ChoiceAnswer) -> str:
    """Return the cheapest card that fits, with the source and date of its price."""
    name = "" if answer.cheapest is None else str(answer.cheapest.value)
    return f"The cheapest that fits: {sourced_text(name, answer.prices[name])}" if name else "None of them has a price."


def _none_text(answer: ChoiceAnswer) -> str:
    """Return that nothing fits, or that nothing with an answer does."""
    has_all = all(each.verdict is not None for each in answer.choices)
    return _CHOICE_WORDS[answer.key][1] if has_all else "None of those that have an answer fits."


def solve_json(answers: Sequence[KeyAnswer | ChoiceAnswer], notes: Sequence[str]) -> str:
    """Return one object with the notes and one object per answer. Sizes are integers of bytes."""
    found = [_key_object(answer) if isinstance(answer, KeyAnswer) else _choice_object(answer) for answer in answers]
    return json_text({"origin": Origin.ESTIMATED.value, "notes": list(notes), "answers": found})


def _headline(answer: KeyAnswer) -> str:
    boundary, card = answer.boundary, str(answer.spec.gpu)
    of = "".join(f", {word}" for word in key_words(vars(answer.spec), answer.axes))
    how = method_text(answer.spec, varied=(answer.key, *answer.axes))
    where = f"{answer.spec.model}, {how}{of}, on {card}{with_margin(answer.margin)}"
    if boundary.largest is None:
        reason = boundary.at_beyond.refusal_text if boundary.at_beyond else ""
        return f"{answer.key}: none fits. {where}" + (f". {reason}" if reason else "")
    if boundary.beyond is None:
        return f"{answer.key}: every allowed value fits, up to {boundary.largest:,}. {where}"
    return f"{answer.key}: at most {boundary.largest:,}. {where}"


def _sides(answer: KeyAnswer) -> list[Table]:
    """Return what the values on both sides of the boundary need, as a table; none if no value was tried."""
    boundary, rows = answer.boundary, []
    for value, verdict in ((boundary.largest, boundary.at_largest), (boundary.beyond, boundary.at_beyond)):
        if value is None or verdict is None:
            continue
        said = "".join(f"; {_simulated(side, verdict)}" for side in answer.sides if side.value == value)
        rows.append((f"{value:,}", f"{_needs(verdict)}{said}"))
    columns = (Column(title=answer.key, width=10), Column(title="verdict", align=Align.LEFT))
    return [Table(columns, rows, has_titles=False)] if rows else []


def _decided(answer: KeyAnswer) -> list[str]:
    """Return which method decided, where both were asked."""
    key, boundary, beyond = answer.key, answer.boundary, answer.boundary.beyond
    if answer.decided is Decided.UNDECIDED:
        return [f"The estimate decides: a simulation of {key} has no answer."]
    if answer.decided is not Decided.SIMULATION:
        return []
    said = f"at most {answer.estimated:,}" if answer.estimated is not None else "that none fits"
    lines = [f"The simulation decides; the estimate says {said}."]
    if boundary.largest is not None and beyond is not None and beyond > boundary.largest + 1:
        lines.append(f"Simulated: {key}={', '.join(f'{side.value:,}' for side in answer.sides)}.")
    again = [f"{side.value:,}" for side in answer.sides if side.fits and beyond is not None and side.value > beyond]
    if again:
        lines.append(f"{', '.join(again)} fits again: by the simulation, a larger value may need a little less memory.")
    return lines


def _needs(card: CardVerdict) -> str:
    if card.fit is Fit.NO_KERNEL:
        return f"{card.word}: {card.missing.name if card.missing else ''}"
    if card.fit in (Fit.NO_ENGINE, Fit.UNDECIDED):
        return card.word
    whole, left = gib_text(card.gpu.memory_bytes), card.left_bytes
    if card.fit is Fit.TOO_LARGE:
        return f"needs at least {gib_text(card.least_bytes)} of {whole}"
    rest = f"{gib_text(left)} left" if left >= 0 else "depending on fragments"
    return f"needs {gib_text(card.least_bytes)} to {gib_text(card.needed_bytes)} of {whole}, {rest}"


def _simulated(side: SimulatedSide, card: CardVerdict) -> str:
    if side.needed_bytes is None:
        return f"simulated: {side.status} ({side.message})"
    needed = gib_text(side.needed_bytes)
    if side.fits and side.needed_bytes > card.gpu.memory_bytes:
        return f"simulated: fits, when its cache is freed; {needed} on a larger card"
    return f"simulated: {'fits' if side.fits else 'does not fit'}, {needed} at least"


def with_margin(margin: float) -> str:
    """Return the words about the part of the card that stays free; empty if there is none."""
    return f", with {100 * margin:g} % left" if margin else ""


def _key_object(answer: KeyAnswer) -> dict[str, object]:
    boundary = answer.boundary
    return {
        "key": answer.key,
        "gpu": answer.spec.gpu,
        "trial": spec_to_mapping(answer.spec),
        "margin": answer.margin,
        "largest": boundary.largest,
        "largest_needed_bytes": boundary.at_largest.needed_bytes if boundary.at_largest is not None else None,
        "beyond": boundary.beyond,
        "beyond_needed_bytes": boundary.at_beyond.needed_bytes if boundary.at_beyond is not None else None,
        "decided_by": answer.decided.value,
        "estimated_largest": answer.estimated if answer.decided in _SIMULATED else boundary.largest,
        "simulated": [
            {"value": side.value, "status": side.status.value, "needed_bytes": side.needed_bytes}
            for side in answer.sides
        ],
    }


def _choice_object(answer: ChoiceAnswer) -> dict[str, object]:
    best = answer.best
    value = best.value if best is not None else None
    common = {"key": answer.key, "trial": spec_to_mapping(answer.spec), "margin": answer.margin}
    if answer.key == "gpu":
        cards = [
            {
                "gpu": card.gpu.name,
                "verdict": card.word,
                "needed_bytes": card.needed_bytes,
                "memory_bytes": card.gpu.memory_bytes,
                **price_object(answer.prices.get(card.gpu.name)),
            }
            for card in answer.verdicts
        ]
        cheapest = None if answer.cheapest is None else answer.cheapest.value
        return {**common, "smallest": value, "cheapest": cheapest, "gpus": cards}
    choices = [
        {
            "value": each.value,
            "verdict": None if each.verdict is None else each.verdict.word,
            "reason": each.refusal if each.verdict is None else each.verdict.refusal_text,
            "needed_bytes": None if each.verdict is None else each.verdict.needed_bytes,
            "memory_bytes": None if each.verdict is None else each.verdict.gpu.memory_bytes,
        }
        for each in answer.choices
    ]
    return {**common, "best": value, "choices": choices}


_NEEDS = ("needs", "next needs")
"""Columns: what the largest value needs, and the next one."""


@dataclass(frozen=True, kw_only=True)
class LinePoint:
    """The boundary of the second key at one value of the first."""

    value: object
    boundary: Boundary[CardVerdict]

    @property
    def limit(self) -> int | None:
        """The largest value of the second key that fits; None if none does."""
        return self.boundary.largest


@dataclass(frozen=True, kw_only=True)
class LimitLine:
    """The limits of the second key, for values of the first."""

    keys: tuple[str, str]
    spec: TrialSpec
    """One trial of the line."""
    axes: tuple[str, ...]
    """Keys that differ between several lines."""
    points: tuple[LinePoint, ...]
    margin: float
    """Part of the card that has to stay free."""

    @property
    def name(self) -> str:
        """The card, and what differs between lines."""
        return ", ".join((str(self.spec.gpu), *key_words(vars(self.spec), self.axes, without=("gpu",))))


def line_text(lines: Sequence[LimitLine], notes: Sequence[str], *, figure: Path | None) -> str:
    """Return one table per line; `figure` is the file that shows them."""
    sections = [paragraphs(*notes)] if notes else []
    for line in lines:
        how = f"{line.spec.model}, {method_text(line.spec, varied=(*line.keys, *line.axes))}"
        title = f"The largest {line.keys[1]} for each {line.keys[0]}: {how}, on "
        columns = [Column(title=name) for name in (*line.keys, *_NEEDS)]
        sections.append(paragraphs(f"{title}{line.name}{with_margin(line.margin)}."))
        sections.append(Section("", [Table(columns, list(map(_cells, line.points)))]))
    if all(point.boundary.beyond is None for line in lines for point in line.points):
        second = lines[0].keys[1]
        text = f"All values of {second} that the other keys allow fit, so that it has no limit here."
        sections.append(paragraphs(text))
    last = f"Drawn in {figure}." if figure is not None else "figure=FILE.png draws it."
    note = fragments_note(card for line in lines for point in line.points for card in point.boundary.answers)
    sections.append(paragraphs(f"GiB. Estimated, not simulated. {note} {CONTEXT_NOTE} {last}"))
    return plain_text(Document(title="Limit lines", blocks=sections))


def line_json(lines: Sequence[LimitLine], notes: Sequence[str]) -> str:
    """Return one object with the notes and one object per line. Sizes are integers of bytes."""
    found = [
        {
            "keys": list(line.keys),
            "gpu": line.spec.gpu,
            "trial": {key: value for key, value in spec_to_mapping(line.spec).items() if key not in line.keys},
            "margin": line.margin,
            "points": [_point_object(line, point) for point in line.points],
        }
        for line in lines
    ]
    return json_text({"origin": Origin.ESTIMATED.value, "notes": list(notes), "lines": found})


def _point_object(line: LimitLine, point: LinePoint) -> dict[str, object]:
    boundary = point.boundary
    return {
        line.keys[0]: point.value,
        "largest": boundary.largest,
        "largest_needed_bytes": boundary.at_largest.needed_bytes if boundary.at_largest is not None else None,
        "beyond": boundary.beyond,
        "beyond_needed_bytes": boundary.at_beyond.needed_bytes if boundary.at_beyond is not None else None,
    }


def _cells(point: LinePoint) -> tuple[str, ...]:
    boundary = point.boundary
    beyond = "all fit" if boundary.beyond is None else _needed(boundary.at_beyond)
    limit = "none fits" if point.limit is None else _number(point.limit)
    return _number(point.value), limit, _needed(boundary.at_largest), beyond


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _needed(verdict: CardVerdict | None) -> str:
    if verdict is None:
        return ""
    return verdict.word if not verdict.starts else gib_number(verdict.needed_bytes)
