"""`report.html`: the texts of its template."""

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache, partial
from importlib.resources import files
from itertools import islice
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
from profiler.rendering.html.script_data import ScriptData, json_text
from profiler.rendering.pages import MOST_ROWS, PageOrigin, RenderedFigure, SectionFigures, more_rows
from profiler.rendering.rank_lines import RANKS, RANKS_NOTE, RankTable
from profiler.rendering.wording import (
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

MOST_TRIALS = 300
"""Trials of a section whose rows are in the page from the start. The script adds the others when they are asked for."""

MOST_IN_FULL = 20_000
"""Trials of a page up to which it has the phases and categories of each, and can show all rows of a list at once. Of
more, the script of long lists shows some at a time: no browser shows a table of 100,000 rows."""

_LARGEST_SVG_BYTES = 1_000_000

_IN_THE_TABLES = "its keys are in runs.parquet"
_ALL_IN_THE_TABLES = f"{_IN_THE_TABLES}, its phases in phases.parquet, its categories in breakdown.parquet"
_IN_THE_LIST = "the list of every trial has them"

_ESTIMATE, _PUBLISHED = "estimated ", "published "
_KINDS = {Status.OK: "", Status.OOM: "bad"}


def html_page(
    report: SweepReport, figures: Sequence[SectionFigures], origin: PageOrigin, ranks: RankTable | None = None
) -> Iterable[str]:
    """Return the whole page, which loads nothing else, in parts.

    Args:
        report: What is shown.
        figures: The figures of each section of the report.
        origin: When and by what it is made.
        ranks: The peaks of ranks; None if no trial ran on several GPUs.
    """
    commands = report.trial_commands
    data = ScriptData(is_in_full=sum(len(part.section.cells) for part in report.sections) <= MOST_IN_FULL)
    page = {
        "grid": report.grid,
        "question": report.question,
        "command": report.command,
        "gpu_time": report.gpu_time.sentence(price=None) if report.gpu_time else "",
        "sections": [
            _section(part, own, data, commands, number)
            for number, (part, own) in enumerate(zip(report.sections, figures, strict=True), start=1)
        ],
        "cards": _cards(report.cards) if report.cards else None,
        "ranks": {"title": RANKS, "note": RANKS_NOTE, **vars(ranks)} if ranks else None,
        "thresholds": [_threshold(threshold) for threshold in report.thresholds],
        "made_on": origin.made_on.isoformat(),
        "version": origin.version,
        "home": origin.home,
        "files": origin.files,
    }
    return _template().generate(
        page=page,
        css=_asset("page.css"),
        script=_asset("page.js"),
        data=data.parts(),
        long_script="" if data.is_in_full else _asset("long.js"),
        long_lists=data.long_parts(),
    )


@cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))


def _asset(name: str) -> Markup:
    """Return the page's style or script; only these and the details are not escaped."""
    return Markup(files(__package__).joinpath(name).read_text(encoding="utf-8"))


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
    data: ScriptData,
    commands: Mapping[str, str] | None,
    number: int,
) -> dict[str, object]:
    section, table, published = part.section, part.matrix, part.section.published
    across = column_names(table)
    trials, count, table_id = partial(_trials, section, data.trials), len(section.cells), f"trials-{number}"
    is_long = count > MOST_TRIALS and not data.is_in_full
    data.trials += count
    data.details.append(partial(_details, part, commands, is_in_full=data.is_in_full))
    data.rows[table_id] = partial(_row_texts, trials, start=count if is_long else MOST_TRIALS)
    if is_long:
        data.long[table_id] = partial(_row_texts, trials, start=0)
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
        "trials": list(islice(trials(), MOST_TRIALS)),
        "count": count,
        "is_long": is_long,
        "versions": versions_text(section.setting),
        "trust": published[0].trust if published else "",
    }


def _trials(section: Section, first: int) -> Iterable[dict[str, object]]:
    """Yield the rows of a section's trials, whose details begin at number `first`."""
    names, published = short_models(section.models), bool(section.published)
    for number, cell in enumerate(section.in_order(), start=first):
        fields = _values(cell, names[cell.model], published=published)
        yield {"number": number, "kind": _kind(cell), "fields": fields}


def _row_texts(trials: Callable[[], Iterable[Mapping[str, object]]], *, start: int) -> Iterable[str]:
    """Yield the rows of a list from one on, as JSON."""
    return (json_text(list(trial.values())) for trial in islice(trials(), start, None))


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


def _details(part: SectionReport, commands: Mapping[str, str] | None, *, is_in_full: bool) -> Iterable[str]:
    """Yield the details of each trial of a section as JSON, in the order in which `page.js` takes them apart."""
    rows, parts = (part.phases, part.stacks) if is_in_full else ((), ())
    phases = {row.cell.trial_id: row.peaks for row in rows}
    busy = {row.cell.trial_id: row.utilisation_percent for row in rows}
    stacks = {stack.cell.trial_id: stack.shares for stack in parts}
    largest = {row.cell.trial_id: row.groups for row in part.largest} if commands is not None else {}
    where = _IN_THE_TABLES if is_in_full else _ALL_IN_THE_TABLES
    for cell in part.section.in_order():
        name = cell.trial_id
        metrics = (cell.peak_allocated_bytes, cell.peak_reserved_bytes, cell.peak_device_bytes)
        yield json_text(
            [
                _known(phases.get(name, {}), Phase, gib_number),
                _known(stacks.get(name, {}), Category, gib_number),
                [0 if size is None else gib_number(size) for size in metrics],
                _known(busy.get(name, {}), Phase, "{:.0f} %".format),
                [group_text(group) for group in largest.get(name, ())],
                ". ".join(filter(None, (needs_text(cell), cell.message))),
                (commands or {}).get(name, f"trial_id={name}; {where}"),
            ]
        )


def _known(values: Mapping[Word, Size], words: Iterable[Word], shown: Callable[[Size], str]) -> list[str | int]:
    """Return the text of each word in order, 0 where it has no value; empty if none has one."""
    return [shown(values[word]) if word in values else 0 for word in words] if values else []
