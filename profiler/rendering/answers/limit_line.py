"""Limit lines of two keys, as a table and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiler.analytical.explanation.boundary import Boundary
from profiler.analytical.explanation.cards import CardVerdict
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.memory import Origin
from profiler.domain.trials.labels import key_words
from profiler.domain.trials.trial import TrialSpec
from profiler.rendering.answers.solve import with_margin
from profiler.rendering.document import Column, Document, Section, Table, paragraphs
from profiler.rendering.estimate.table import CONTEXT_NOTE, FRAGMENTS_NOTE, method_text
from profiler.rendering.layouts.json_text import json_text
from profiler.rendering.layouts.plain_text import plain_text
from profiler.rendering.memory_words import gib_number

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
    sections.append(paragraphs(f"GiB. Estimated, not simulated. {FRAGMENTS_NOTE} {CONTEXT_NOTE} {last}"))
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
    return verdict.fit.value if not verdict.starts else gib_number(verdict.needed_bytes)
