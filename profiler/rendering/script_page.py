"""The pages of a script: the runs in its folder as `report.html` and as `report.md`."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from profiler.analysis.scripts import RunLines
from profiler.domain.memory import Phase
from profiler.rendering.markdown_table import code_block, escaped, markdown_table
from profiler.rendering.pages import FIGURES, RenderedFigure
from profiler.rendering.script_words import (
    UNIT_NOTE,
    command_text,
    held_rows,
    held_title,
    run_sentences,
    run_title,
    short_gib,
    verdict_text,
    versions_text,
)


@dataclass(frozen=True, kw_only=True)
class _Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class _Run:
    title: str
    sentences: Sequence[str]
    figure: str
    tables: Sequence[_Table]
    command: str
    versions: str


@dataclass(frozen=True, kw_only=True)
class _Page:
    name: str
    columns: Sequence[str]
    overview: Sequence[Sequence[str]]
    unit: str
    runs: Sequence[_Run]


def script_html(name: str, runs: Sequence[RunLines], figures: Mapping[str, RenderedFigure]) -> str:
    """Return one HTML file with everything in it; `figures` are by run id."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    folder = files("profiler.rendering.html")
    template = environment.from_string(folder.joinpath("script.html").read_text(encoding="utf-8"))
    css = Markup(folder.joinpath("page.css").read_text(encoding="utf-8"))
    return template.render(page=_page(name, runs, {key: _source(each) for key, each in figures.items()}), css=css)


def script_markdown(name: str, runs: Sequence[RunLines], figures: Mapping[str, RenderedFigure]) -> str:
    """Return the page that GitHub shows, with links to the figures."""
    page = _page(name, runs, {key: f"{FIGURES}/{each.name}.svg" for key, each in figures.items()})
    blocks = [f"# {escaped(page.name)}", _markdown(page.columns, page.overview), page.unit]
    for run in page.runs:
        blocks += [f"## {escaped(run.title)}", "\n".join(f"- {escaped(sentence)}" for sentence in run.sentences)]
        if run.figure:
            blocks.append(f"![{escaped(run.title)}]({run.figure})")
        for table in run.tables:
            blocks += [f"### {escaped(table.title)}", _markdown(table.columns, table.rows)]
        blocks += [code_block(run.command, language="sh"), f"{escaped(run.versions)}."]
    return "\n\n".join(blocks) + "\n"


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table([escaped(each) for each in columns], [[escaped(cell) for cell in row] for row in rows])


def _source(figure: RenderedFigure) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(figure.svg).decode()}"


def _page(name: str, runs: Sequence[RunLines], sources: Mapping[str, str]) -> _Page:
    phases = [phase for phase in Phase if any(line.phase is phase for run in runs for line in run.phases)]
    return _Page(
        name=name,
        columns=["run", "origin", "status", *(phase.value for phase in phases), "reserved", "with context"],
        overview=[_overview(run, phases) for run in runs],
        unit=f"{UNIT_NOTE}, allocated in tensors; reserved by torch and, with the CUDA context, on the card.",
        runs=[_run(run, sources.get(run.record.run_id, "")) for run in runs],
    )


def _overview(run: RunLines, phases: Sequence[Phase]) -> list[str]:
    by_phase = {line.phase: line.allocated_bytes for line in run.phases}
    peaks = run.outcome.peaks
    return [
        run_title(run),
        str(run.origin),
        verdict_text(run),
        *(short_gib(run, by_phase.get(phase)) for phase in phases),
        short_gib(run, peaks.reserved_bytes),
        short_gib(run, peaks.device_bytes),
    ]


def _run(run: RunLines, source: str) -> _Run:
    tables = []
    if run.phases:
        steps = [f"step {step}" for step in range(1, run.steps + 1)]
        rows = [
            (
                line.phase.value,
                short_gib(run, line.allocated_bytes),
                short_gib(run, line.reserved_bytes),
                *(short_gib(run, size) for size in line.steps_bytes),
            )
            for line in run.phases
        ]
        columns = ["phase", "allocated", "reserved", *steps]
        tables.append(_Table(title=f"Peak of each phase, {run.origin}, GiB", columns=columns, rows=rows))
    if run.largest:
        held = [(what, line, gib, tensors) for gib, tensors, what, line in held_rows(run)]
        columns = ["what", "line", "GiB", "tensors"]
        tables.append(_Table(title=f"{held_title(run)}, {run.origin}", columns=columns, rows=held))
    return _Run(
        title=run_title(run),
        sentences=list(run_sentences(run)),
        figure=source,
        tables=tables,
        command=command_text(run),
        versions=versions_text(run),
    )
