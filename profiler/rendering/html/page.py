"""`report.html`: the texts of its template."""

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import TypeVar

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from profiler.analysis.acceptance import Threshold
from profiler.analysis.cards import CardTable, headroom_bytes
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.analysis.sweep_report import SectionReport, SweepReport
from profiler.domain.memory import Category, Phase
from profiler.domain.outcome import Status
from profiler.rendering.pages import MOST_ROWS, PageOrigin, RenderedFigure, SectionFigures, more_rows
from profiler.rendering.wording import (
    CATEGORY_TITLES,
    accuracy_text,
    answer_sentences,
    card_names,
    column_names,
    corner,
    engine_lines,
    estimate_text,
    gib_number,
    group_text,
    headroom_legend,
    headroom_text,
    legend,
    needs_text,
    origin_word,
    place_names,
    published_text,
    result_text,
    setting_title,
    short_models,
    signed_percent,
    threshold_text,
    versions_text,
)

Word = TypeVar("Word", bound=StrEnum)
Size = TypeVar("Size", int, float)

MOST_WITH_ALL = 2_000
"""Number of trials up to which the details have the largest tensors and the command; parquet has them for all."""

MOST_TRIALS = 300
"""Trials of a section whose rows are in the page from the start. The script adds the others when they are asked for."""

_LARGEST_SVG_BYTES = 1_000_000

_METRICS = ("allocated, tensors", "reserved, torch's cache", "device, with the context")
_IN_THE_LIST = "the list of every trial has them"

_ESTIMATE, _PUBLISHED = "estimated ", "published "
_KINDS = {Status.OK: "", Status.OOM: "bad"}


def html_page(report: SweepReport, figures: Sequence[SectionFigures], origin: PageOrigin) -> str:
    """Return the whole page, which loads nothing else.

    Args:
        report: What is shown.
        figures: The figures of each section of the report.
        origin: When and by what it is made.
    """
    trials = sum(len(part.section.cells) for part in report.sections)
    commands = report.trial_commands if trials <= MOST_WITH_ALL else None
    data = _Data()
    page = {
        "grid": report.grid,
        "question": report.question,
        "command": report.command,
        "gpu_time": report.gpu_time.sentence(price_per_hour=None) if report.gpu_time else "",
        "sections": [
            _section(part, own, data, commands, number)
            for number, (part, own) in enumerate(zip(report.sections, figures, strict=True), start=1)
        ],
        "cards": _cards(report.cards) if report.cards else None,
        "thresholds": [_threshold(threshold) for threshold in report.thresholds],
        "made_on": origin.made_on.isoformat(),
        "version": origin.version,
        "home": origin.home,
        "files": origin.files,
    }
    return _template().render(page=page, css=_asset("page.css"), script=_asset("page.js"), data=_as_script(vars(data)))


@dataclass
class _Data:
    """What the script of the page reads. Names that all trials share are in it once."""

    phases: tuple[str, ...] = tuple(Phase)
    categories: tuple[str, ...] = tuple(CATEGORY_TITLES[category] for category in Category)
    metrics: tuple[str, ...] = _METRICS
    trials: list[list[object]] = field(default_factory=list)
    """The details of each trial, by number."""
    rows: dict[str, list[object]] = field(default_factory=dict)
    """The rows that are not in the page from the start, by the id of their table."""


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))


def _asset(name: str) -> Markup:
    """Return the page's style or script; only these and the details are not escaped."""
    return Markup(files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _as_script(data: object) -> Markup:
    """Return JSON for a script element, without characters that could end the element or begin another."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _threshold(threshold: Threshold) -> dict[str, str]:
    return {
        "claim": threshold.claim,
        "allowed": threshold_text(threshold, threshold.allowed),
        "found": threshold_text(threshold, threshold.found),
    }


def _cards(table: CardTable) -> dict[str, object]:
    names = place_names(table)
    rows = [
        {
            "name": names[place],
            "headroom": [_headroom(table.cells.get((place, column))) for column in table.columns],
        }
        for place in table.places[:MOST_ROWS]
    ]
    return {
        "header": card_names(table),
        "rows": rows,
        "more": more_rows(len(table.places), "the lists of every trial have them"),
        "legend": headroom_legend(table),
    }


def _headroom(cell: Cell | None) -> dict[str, str]:
    missing = cell is not None and ((headroom_bytes(cell) or 0) < 0 or cell.status is Status.OOM)
    return {"text": headroom_text(cell), "kind": "bad" if missing else ""}


def _section(
    part: SectionReport,
    figures: SectionFigures,
    data: _Data,
    commands: Mapping[str, str] | None,
    number: int,
) -> dict[str, object]:
    section, table, published = part.section, part.matrix, part.section.published
    across = column_names(table)
    trials = list(_trials(section, len(data.trials)))
    data.trials += _details(part, commands)
    data.rows[f"trials-{number}"] = [list(trial.values()) for trial in trials[MOST_TRIALS:]]
    return {
        "title": setting_title(section.setting),
        "answers": answer_sentences(part),
        "corner": corner(table),
        "across": [across[column] for column in table.columns],
        "matrix": [
            {"name": row, "cells": [_matrix_cell(table.cells.get((row, column))) for column in table.columns]}
            for row in table.rows[:MOST_ROWS]
        ],
        "more": more_rows(len(table.rows), _IN_THE_LIST),
        "legend": [*legend(section, mark=_ESTIMATE, published_mark=_PUBLISHED), *engine_lines(part.engines)],
        "accuracy": [accuracy_text(accuracy) for accuracy in part.accuracies],
        "figures": [
            {"title": figure.title, "note": figure.note, "source": _source(figure)} for figure in figures.figures
        ],
        "left_out": [*figures.left_out, *figures.broken],
        "columns": _columns(section),
        "trials": trials[:MOST_TRIALS],
        "count": len(trials),
        "versions": versions_text(section.setting),
        "trust": published[0].trust if published else "",
    }


def _trials(section: Section, first: int) -> Iterable[dict[str, object]]:
    """Yield the rows of a section's trials, whose details begin at number `first`."""
    names, published = short_models(section.models), bool(section.published)
    for number, cell in enumerate(section.in_order(), start=first):
        fields = _values(cell, names[cell.model], published=published)
        yield {"number": number, "kind": _kind(cell), "fields": fields}


def _source(figure: RenderedFigure) -> str:
    """Return the SVG, which is sharp at every size, or the PNG if the SVG has so many points that it is much larger."""
    if len(figure.svg) > _LARGEST_SVG_BYTES:
        return "data:image/png;base64," + b64encode(figure.png).decode("ascii")
    return "data:image/svg+xml;base64," + b64encode(figure.svg).decode("ascii")


def _kind(cell: Cell) -> str:
    return _KINDS.get(cell.status, "bad")


def _matrix_cell(cell: Cell | None) -> dict[str, object] | None:
    if cell is None:
        return None
    published = published_text(cell)
    needs = f"needs {gib_number(cell.result_bytes)}" if cell.status is Status.OOM and cell.result_bytes else ""
    lines = [needs, estimate_text(cell, _ESTIMATE), f"{_PUBLISHED}{published}" if published else ""]
    result = "OOM" if cell.status is Status.OOM else result_text(cell)
    return {"kind": _kind(cell), "result": result, "lines": [line for line in lines if line]}


def _columns(section: Section) -> list[str]:
    origin = origin_word(section.setting)
    known = ["method", "model", "answer", f"{origin}, GiB", "free, GiB", "peak in", "estimated, GiB", "error"]
    return [*known, "published"] if section.published else known


def _values(cell: Cell, model: str, *, published: bool) -> list[list[object]]:
    """Return the texts of a trial's row. Numbers have the value by which they are sorted; an unknown size has none."""
    error = cell.estimate_error_ratio
    phase = cell.peak_phase
    found = [
        _text(cell.label),
        _text(model, cell.parameters),
        _text("fits" if cell.status is Status.OK else cell.status.value),
        _size(cell.result_bytes),
        _text(headroom_text(cell), headroom_bytes(cell)),
        _text(phase.value if phase else ""),
        _size(cell.estimated_bytes),
        _text("" if error is None else signed_percent(error), error),
    ]
    return [*found, _text(published_text(cell))] if published else found


def _text(text: str, sort: float | None = None) -> list[object]:
    return [text] if sort is None else [text, round(sort, 6)]


def _size(size_bytes: int | None) -> list[object]:
    return _text("" if size_bytes is None else gib_number(size_bytes), size_bytes)


def _details(part: SectionReport, commands: Mapping[str, str] | None) -> Iterable[list[object]]:
    """Yield the details of each trial of a section, in the order in which `page.js` takes them apart."""
    phases = {row.cell.trial_id: row.peaks for row in part.phases}
    busy = {row.cell.trial_id: row.utilisation_percent for row in part.phases}
    stacks = {stack.cell.trial_id: stack.shares for stack in part.stacks}
    largest = {row.cell.trial_id: row.groups for row in part.largest} if commands is not None else {}
    for cell in part.section.in_order():
        name = cell.trial_id
        metrics = (cell.peak_allocated_bytes, cell.peak_reserved_bytes, cell.peak_device_bytes)
        yield [
            _known(phases.get(name, {}), Phase, gib_number),
            _known(stacks.get(name, {}), Category, gib_number),
            [0 if size is None else gib_number(size) for size in metrics],
            _known(busy.get(name, {}), Phase, "{:.0f} %".format),
            [group_text(group) for group in largest.get(name, ())],
            ". ".join(filter(None, (needs_text(cell), cell.message))),
            (commands or {}).get(name, f"trial_id={name}; its keys are in runs.parquet"),
        ]


def _known(values: Mapping[Word, Size], words: Iterable[Word], shown: Callable[[Size], str]) -> list[str | int]:
    """Return the text of each word in order, 0 where it has no value; empty if none has one."""
    return [shown(values[word]) if word in values else 0 for word in words] if values else []
