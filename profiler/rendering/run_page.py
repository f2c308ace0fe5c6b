"""Pages of runs that have no trial: an overview, and the sentences, figures and tables of each run."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from profiler.rendering.markdown_table import code_block, escaped, markdown_table
from profiler.rendering.pages import FIGURES, RenderedFigure


@dataclass(frozen=True, kw_only=True)
class PageTable:
    """One table of a run."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class RunSection:
    """What is shown of one run."""

    title: str
    sentences: Sequence[str]
    figures: Sequence[RenderedFigure]
    tables: Sequence[PageTable]
    command: str
    versions: str
    text: str = ""
    """Preformatted, such as an estimate; empty if there is none."""


@dataclass(frozen=True, kw_only=True)
class RunPage:
    """All runs in a folder."""

    name: str
    kind: str
    """What ran: ``"a training script"``."""
    question: str
    columns: Sequence[str]
    overview: Sequence[Sequence[str]]
    unit: str
    runs: Sequence[RunSection]


def page_html(page: RunPage) -> str:
    """Return one HTML file with everything in it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    folder = files("profiler.rendering.html")
    template = environment.from_string(folder.joinpath("script.html").read_text(encoding="utf-8"))
    css = Markup(folder.joinpath("page.css").read_text(encoding="utf-8"))
    return template.render(page=page, css=css, source=_source)


def page_markdown(page: RunPage) -> str:
    """Return the page that GitHub shows, with links to the figures."""
    blocks = [f"# {escaped(page.name)}", _table(page.columns, page.overview), page.unit]
    for run in page.runs:
        blocks += [f"## {escaped(run.title)}", "\n".join(f"- {escaped(sentence)}" for sentence in run.sentences)]
        blocks += [f"![{escaped(run.title)}]({FIGURES}/{figure.name}.svg)" for figure in run.figures]
        for table in run.tables:
            blocks += [f"### {escaped(table.title)}", _table(table.columns, table.rows)]
        blocks += [code_block(run.text, language="text")] if run.text else []
        blocks += [code_block(run.command, language="sh"), f"{escaped(run.versions)}."]
    return "\n\n".join(blocks) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table([escaped(each) for each in columns], [[escaped(cell) for cell in row] for row in rows])


def _source(figure: RenderedFigure) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(figure.svg).decode()}"
