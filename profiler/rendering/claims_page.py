"""The page of the claims, for GitHub and as one HTML file."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from profiler.analysis.verdicts import Judged
from profiler.domain.claims import Check
from profiler.rendering.claims_table import count_text
from profiler.rendering.claims_words import (
    claimed_text,
    found_text,
    origin_text,
    ours_text,
    reason_text,
    verdict_text,
)
from profiler.rendering.markdown_table import Align, escaped, markdown_table
from profiler.rendering.pages import FIGURES, RenderedFigure

_TITLE = "The claims of five public texts, judged"

_ABOUT = (
    "What five public texts claim about the memory of GRPO, compared with stored trials, and with the closed form "
    "of this program where a trial is not stored. Configurations and tolerances are in "
    "profiler/published/claims.yaml, and were written down before any trial of the grid claims was kept; the "
    "trials of the grid oxen_2025 and the run of the blog's script were kept before, and blog-table-script came later "
    "with the tolerance of blog-table. Nothing of it is measured on a real card unless a row says so."
)

_COLUMNS = ("claim", "claimed", "ours", "origin", "verdict", "reason")
_SETTINGS = ("setting", "claimed", "ours", "as claimed")


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The claims of one text."""

    title: str
    where: str
    rows: Sequence[Sequence[str]]
    settings: Sequence[tuple[str, Sequence[Sequence[str]]]]
    """Per claim of several settings, its id and a row per setting."""


def claims_markdown(judged: Sequence[Judged], figure: RenderedFigure) -> str:
    """Return the page that GitHub shows, with a link to the figure."""
    blocks = [
        f"# {_TITLE}",
        escaped(_ABOUT),
        escaped(count_text(judged)),
        f"![{escaped(figure.title)}]({FIGURES}/{figure.name}.svg)",
    ]
    for part in _parts(judged):
        blocks += [f"## {escaped(part.title)}", _table(_COLUMNS, part.rows)]
        if part.settings:
            inner = [f"**{escaped(name)}**\n\n{_table(_SETTINGS, rows)}" for name, rows in part.settings]
            blocks.append("\n\n".join(["<details>\n<summary>Every setting</summary>", *inner, "</details>"]))
    return "\n\n".join(blocks) + "\n"


def claims_html(judged: Sequence[Judged], figure: RenderedFigure) -> str:
    """Return one HTML file with everything in it."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    folder = files("profiler.rendering.html")
    template = environment.from_string(folder.joinpath("claims.html").read_text(encoding="utf-8"))
    return template.render(
        title=_TITLE,
        about=_ABOUT,
        count=count_text(judged),
        columns=_COLUMNS,
        setting_columns=_SETTINGS,
        parts=_parts(judged),
        figure=f"data:image/svg+xml;base64,{base64.b64encode(figure.svg).decode()}",
        figure_title=figure.title,
        css=Markup(folder.joinpath("page.css").read_text(encoding="utf-8")),
    )


def _parts(judged: Sequence[Judged]) -> list[_Part]:
    found = []
    for source in dict.fromkeys(each.claim.source for each in judged):
        own = [each for each in judged if each.claim.source == source]
        detailed = [each for each in own if len(each.findings) > 1 or each.claim.check is Check.LOOKED_UP]
        settings = [(each.claim.id, _setting_rows(each)) for each in detailed]
        found.append(
            _Part(title=source.title, where=source.where, rows=[_row(each) for each in own], settings=settings)
        )
    return found


def _row(judged: Judged) -> Sequence[str]:
    claim = judged.claim
    says = f"{claim.says} ({claim.id})"
    return says, claim.figure, found_text(judged), origin_text(judged), verdict_text(judged), reason_text(judged)


def _setting_rows(judged: Judged) -> list[Sequence[str]]:
    said = {True: "yes", False: "no", None: "not known"}
    claim = judged.claim
    return [
        (each.setting.when, claimed_text(claim, each), ours_text(claim, each), said[each.holds])
        for each in judged.findings
    ]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(columns, [[escaped(cell) for cell in row] for row in rows], align=Align.LEFT)
