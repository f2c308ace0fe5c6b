"""`report.html`: what the template shows, as plain texts."""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from profiler.analysis.acceptance import Threshold
from profiler.analysis.accuracy import accuracies
from profiler.analysis.cards import by_card, headroom_bytes
from profiler.analysis.cells import Cell
from profiler.analysis.comparison import Section
from profiler.analysis.matrix import matrix
from profiler.domain.outcome import Status
from profiler.rendering.pages import RenderedFigure, SectionPage
from profiler.rendering.wording import (
    CATEGORY_TITLES,
    HEADROOM_LEGEND,
    accuracy_text,
    answer_sentences,
    column_names,
    corner,
    estimate_text,
    gib_number,
    group_text,
    headroom_text,
    legend,
    needs_text,
    origin_word,
    published_text,
    result_text,
    setting_title,
    short_card,
    short_models,
    signed_percent,
    threshold_text,
    versions_text,
)

MOST_WITH_ALL = 2_000
"""Trials up to which each fold-out has the largest tensors and the command; parquet has them for all."""

_LARGEST_SVG_BYTES = 1_000_000

_ESTIMATE, _PUBLISHED = "estimated ", "published "
_KINDS = {Status.OK: "", Status.OOM: "bad"}


def html_page(
    *,
    grid: str,
    question: str,
    command: str,
    sections: Sequence[SectionPage],
    thresholds: Sequence[Threshold],
    commands: Mapping[str, str],
    spent: str = "",
) -> str:
    """The whole page, with everything that it needs inside.

    Args:
        grid: Name of the grid.
        question: What it asks; left out if empty.
        command: The command that repeats the sweep; left out if empty.
        sections: The sections with their figures.
        thresholds: How far the simulation may be from a real card, and is.
        commands: The command that repeats a trial, by trial id.
        spent: What the sweep took of GPUs; left out if empty.
    """
    trials = sum(len(part.section.cells) for part in sections)
    details: list[dict[str, object]] = []
    shown = [_section(part, details, commands if trials <= MOST_WITH_ALL else None) for part in sections]
    page = {
        "grid": grid,
        "question": question,
        "command": command,
        "spent": spent,
        "sections": shown,
        "cards": _cards(part.section for part in sections),
        "thresholds": [_threshold(threshold) for threshold in thresholds],
    }
    return _template().render(page=page, css=_asset("page.css"), script=_asset("page.js"), details=_as_script(details))


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))


def _asset(name: str) -> Markup:
    """The page's own style or script: the only texts, with the details, that are not escaped."""
    return Markup(files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _as_script(details: object) -> Markup:
    """JSON inside a script element: no character in it can end the element or begin another."""
    text = json.dumps(details, ensure_ascii=True, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _threshold(threshold: Threshold) -> dict[str, str]:
    return {
        "claim": threshold.claim,
        "allowed": threshold_text(threshold, threshold.allowed),
        "found": threshold_text(threshold, threshold.found),
    }


def _cards(sections: Iterable[Section]) -> dict[str, object] | None:
    table = by_card(sections)
    if table is None:
        return None
    names = short_models(tuple(dict.fromkeys(model for _, model in table.places)))
    rows = [
        {
            "name": f"{label}, {names[model]}",
            "room": [headroom_text(table.cells.get(((label, model), card))) for card in table.cards],
        }
        for label, model in table.places
    ]
    return {"header": [short_card(card) for card in table.cards], "rows": rows, "legend": HEADROOM_LEGEND}


def _section(
    part: SectionPage, details: list[dict[str, object]], commands: Mapping[str, str] | None
) -> dict[str, object]:
    section = part.section
    names = short_models(section.models)
    table = matrix(section)
    across = column_names(table)
    published = section.published
    trials = []
    for cell, detail in zip(section.in_order(), _details(part, commands), strict=True):
        trials.append(
            {
                "number": len(details),
                "kind": _kind(cell),
                "fields": _values(cell, names[cell.model], published=bool(published)),
            }
        )
        details.append(detail)
    return {
        "title": setting_title(section.setting),
        "answers": answer_sentences(section),
        "corner": corner(table),
        "across": [across[column] for column in table.columns],
        "matrix": [
            {"name": row, "cells": [_matrix_cell(table.cells.get((row, column))) for column in table.columns]}
            for row in table.rows
        ],
        "legend": legend(section, mark=_ESTIMATE, published_mark=_PUBLISHED),
        "accuracy": [accuracy_text(accuracy) for accuracy in accuracies(section.cells.values())],
        "figures": [{"title": figure.title, "source": _source(figure)} for figure in part.figures],
        "left_out": [*part.left_out, *part.broken],
        "columns": _columns(section),
        "trials": trials,
        "versions": versions_text(section.setting),
        "trust": published[0].trust if published else "",
    }


def _source(figure: RenderedFigure) -> str:
    """The SVG, which is sharp at every size, unless it is so full of points that the PNG is much smaller."""
    if len(figure.svg) > _LARGEST_SVG_BYTES:
        return "data:image/png;base64," + b64encode(figure.png).decode("ascii")
    return "data:image/svg+xml;base64," + b64encode(figure.svg).decode("ascii")


def _kind(cell: Cell) -> str:
    return _KINDS.get(cell.status, "bad")


def _matrix_cell(cell: Cell | None) -> dict[str, object] | None:
    if cell is None:
        return None
    published = published_text(cell)
    lines = [needs_text(cell), estimate_text(cell, _ESTIMATE), f"{_PUBLISHED}{published}" if published else ""]
    result = "OOM" if cell.status is Status.OOM else result_text(cell)
    return {"kind": _kind(cell), "result": result, "lines": [line for line in lines if line]}


def _columns(section: Section) -> list[str]:
    origin = origin_word(section.setting)
    known = ["method", "model", "answer", f"{origin}, GiB", "to spare, GiB", "peak in", "estimated, GiB", "error"]
    return [*known, "published"] if section.published else known


def _values(cell: Cell, model: str, *, published: bool) -> list[dict[str, object]]:
    """The texts of a trial's row; numbers say by what they are sorted, a size of what is not known by nothing."""
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


def _text(text: str, sort: float | None = None) -> dict[str, object]:
    return {"text": text, "sort": sort}


def _size(size_bytes: int | None) -> dict[str, object]:
    return _text("" if size_bytes is None else gib_number(size_bytes), size_bytes)


def _details(part: SectionPage, commands: Mapping[str, str] | None) -> Iterable[dict[str, object]]:
    """What each fold-out of a section says, trial by trial."""
    phases = {row.cell.trial_id: row.peaks for row in part.phases}
    busy = {row.cell.trial_id: row.utilisation_percent for row in part.phases}
    stacks = {stack.cell.trial_id: stack.shares for stack in part.stacks}
    largest = {row.cell.trial_id: row.groups for row in part.largest} if commands is not None else {}
    for cell in part.section.in_order():
        rulers = (
            ("allocated, tensors", cell.peak_allocated_bytes),
            ("reserved, torch's cache", cell.peak_reserved_bytes),
            ("device, with the context", cell.peak_device_bytes),
        )
        yield {
            "phases": [[phase.value, gib_number(size)] for phase, size in phases.get(cell.trial_id, {}).items()],
            "categories": [
                [CATEGORY_TITLES[category], gib_number(size)]
                for category, size in stacks.get(cell.trial_id, {}).items()
            ],
            "busy": [[phase.value, f"{mean:.0f} %"] for phase, mean in busy.get(cell.trial_id, {}).items()],
            "rulers": [[name, gib_number(size)] for name, size in rulers if size is not None],
            "largest": [group_text(group) for group in largest.get(cell.trial_id, ())],
            "message": cell.message or "",
            "command": (commands or {}).get(cell.trial_id, f"trial_id={cell.trial_id}; its keys are in runs.parquet"),
        }
