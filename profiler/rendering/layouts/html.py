"""Documents as one HTML file that loads nothing else, written in parts."""

from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from itertools import islice
from typing import assert_never

from markupsafe import Markup

from profiler.domain.machines.extras import DISTRIBUTION
from profiler.domain.text import packed_text
from profiler.rendering.document import (
    Block,
    Bullets,
    Cell,
    Code,
    Details,
    Document,
    Figure,
    Heading,
    ListedTrial,
    Medium,
    PageOrigin,
    RenderedFigure,
    Row,
    Section,
    Step,
    Table,
    Text,
    Tone,
    TrialList,
    shown,
)
from profiler.rendering.layouts.script_data import ScriptData, kind

MOST_TRIALS = 300
"""Trials of a section whose rows are in the page from the start. The script adds the others when they are asked for."""

MOST_IN_FULL = 20_000
"""Trials of a page up to which it has the phases and categories of each, and can show all rows of a list at once. Of
more, the script of long lists shows some at a time: no browser shows a table of 100,000 rows."""

_LARGEST_SVG_BYTES = 1_000_000
_PART = "\N{EM SPACE}"
"""Before a cell that is a part of one above it."""
_CLASSES = {Tone.NOTE: "note", Tone.ANSWER: "answer"}

_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_HEAD = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{window_title}</title>
<style>{css}</style>
</head>
<body>
<header>
<h1>{title}</h1>
{lead}</header>
<main>
"""


def html(document: Document) -> Iterator[str]:
    """Yield the page in parts."""
    blocks = list(_flat(document.blocks))
    has_script = any(isinstance(block, TrialList) or (isinstance(block, Code) and block.is_command) for block in blocks)
    trials = sum(block.count for block in blocks if isinstance(block, TrialList))
    data = ScriptData(is_in_full=trials <= MOST_IN_FULL)
    lead = document.lead if document.lead is not None and Medium.HTML in document.lead.only else None
    yield Markup(_HEAD).format(
        policy=Markup(f"{_POLICY}; script-src 'unsafe-inline'" if has_script else _POLICY),
        window_title=document.window_title or document.title,
        css=_asset("page.css"),
        title=document.title,
        lead=_line('<p class="question">{}</p>', lead.text) if lead is not None else "",
    )
    yield from _contents(document)
    yield from _Layout(data).blocks(document.blocks)
    yield "</main>\n"
    if document.origin is not None:
        yield _footer(document.origin)
    if has_script:
        yield from _scripts(data)
    yield "</body>\n</html>"


def _flat(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield all blocks that the page shows, also those within others."""
    for block in shown(blocks, Medium.HTML):
        yield block
        if isinstance(block, Section | Details):
            yield from _flat(block.blocks)


def _asset(name: str) -> Markup:
    """Return the page's style or script; only these and the data of scripts are not escaped."""
    return Markup(_read(name))


@cache
def _read(name: str) -> str:
    return packed_text(files(__package__), name)


def _line(markup: str, *texts: object, **named: object) -> Markup:
    """Return one line of HTML, in which `texts` are escaped."""
    return Markup(f"{markup}\n").format(*texts, **named)


def _contents(document: Document) -> Iterator[Markup]:
    """Yield the list of the sections, if there are several."""
    listed = [block for block in shown(document.blocks, Medium.HTML) if isinstance(block, Section) and block.contents]
    if len(listed) > 1:
        item = Markup('<li><a href="#section-{}">{}</a>, {}</li>')
        items = [item.format(number, section.title, section.contents) for number, section in enumerate(listed, start=1)]
        yield _line("<nav><ul>{}</ul></nav>", Markup().join(items))


def _footer(origin: PageOrigin) -> Markup:
    day = origin.made_on.isoformat()
    program = Markup('<a href="{}">{}</a>').format(origin.home, DISTRIBUTION) if origin.home else DISTRIBUTION
    links = Markup(", ").join(Markup('<a href="{0}">{0}</a>').format(name) for name in origin.files)
    same = Markup(" The same results as files: {}.").format(links) if links else ""
    made = Markup('<p>Made on <time datetime="{0}">{0}</time> by {1} {2}.{3}</p>').format(
        day, program, origin.version, same
    )
    return _line('<footer class="note">\n{}\n</footer>', made)


def _scripts(data: ScriptData) -> Iterator[str]:
    yield '<p id="said" class="unseen" aria-live="polite"></p>\n<script type="application/json" id="data">'
    yield from data.parts()
    yield "</script>\n"
    if not data.is_in_full:
        yield '<script type="application/json" id="long">'
        yield from data.long_parts()
        yield f"</script>\n<script>{_asset('long.js')}</script>\n"
    yield f"<script>{_asset('page.js')}</script>\n"


class _Layout:
    """Lays blocks out, and collects the data of the scripts on the way."""

    def __init__(self, data: ScriptData) -> None:
        self._data = data
        self._listed = 0

    def blocks(self, blocks: Sequence[Block]) -> Iterator[Markup]:
        """Yield the markup of each block."""
        for block in shown(blocks, Medium.HTML):
            yield from self._block(block)

    def _block(self, block: Block) -> Iterable[Markup]:
        match block:
            case Section():
                yield from self._section(block)
            case Heading():
                yield _line("<h{level}>{text}</h{level}>", level=block.level, text=block.text)
            case Text():
                yield _line(
                    "<p{}>{}</p>", _class(_CLASSES.get(block.tone)), Markup("<br>").join([block.text, *block.lines])
                )
            case Bullets():
                items = Markup().join(Markup("<li>{}</li>").format(line) for line in block.lines)
                yield _line("<ul{}>{}</ul>", _class(_CLASSES.get(block.tone)), items)
            case Step():
                yield _line(_STEP, number=block.number, text=block.text, note=block.note, code="\n".join(block.code))
            case Table():
                yield _table(block)
            case TrialList():
                yield from self._trial_list(block)
            case Figure():
                yield _figure(block)
            case Code():
                yield _line(_COMMAND if block.is_command else "<pre>{}</pre>", block.text)
            case Details():
                yield _line("<details>\n<summary>{}</summary>", block.summary)
                yield from self.blocks(block.blocks)
                yield Markup("</details>\n")
            case _:
                assert_never(block)

    def _section(self, section: Section) -> Iterable[Markup]:
        self._listed += bool(section.contents)
        anchor = Markup(' id="section-{}"').format(self._listed) if section.contents else ""
        yield Markup("<section>\n")
        if section.title:
            yield _line("<h2{}>{}</h2>", anchor, section.title)
        yield from self.blocks(section.blocks)
        yield Markup("</section>\n")

    def _trial_list(self, trials: TrialList) -> Iterable[Markup]:
        first = self._data.trials
        table_id = self._data.add(trials, most=MOST_TRIALS)
        rows = [_trial(number, trial) for number, trial in enumerate(islice(trials.rows(), MOST_TRIALS), start=first)]
        yield _line(_SEARCH, id=table_id, count=trials.count)
        header = Markup().join(
            Markup('<th scope="col"><button type="button">{}</button></th>').format(column) for column in trials.columns
        )
        start = Markup('<div class="wide"><table class="numbers trials" id="{}">\n').format(table_id)
        yield start + _line(_ROWS, header, Markup().join(rows))
        if table_id in self._data.long:
            yield _line(_REST_IN_PARTS, id=table_id, count=trials.count, shown=len(rows))
        elif trials.count > len(rows):
            yield _line(_REST, id=table_id, count=trials.count, shown=len(rows))


_ROWS = """\
<thead><tr>{}</tr></thead>
<tbody>{}</tbody></table></div>"""
_COMMAND = '<div class="command"><pre>{}</pre><button type="button" class="copy">Copy</button></div>'
_STEP = '<ol start="{number}"><li>{text}<p>{note}</p><pre>{code}</pre></li></ol>'
_SEARCH = """\
<p class="tools"><label>Show only <input type="search" data-filter="{id}" placeholder="LoRA, 7b, OOM …"></label>
<span class="note" aria-live="polite" data-count="{id}">{count} trials</span></p>"""
_REST_IN_PARTS = """\
<p class="tools" data-rest="{id}"><button type="button" class="rest more" data-table="{id}">Show more trials</button>
<span class="note">The first {shown} of {count} are shown; searching and sorting take all of them.</span></p>"""
_REST = """\
<p class="tools" data-rest="{id}"><button type="button" class="rest" data-table="{id}">Show all {count} trials</button>
<span class="note">The first {shown} are shown; searching and sorting take all of them.</span></p>"""


def _class(name: str | None) -> Markup:
    return Markup(' class="{}"').format(name) if name else Markup()


def _table(table: Table) -> Markup:
    kinds = [name for name, has in (("numbers", table.has_numbers), ("matrix", table.is_matrix)) if has]
    header = Markup().join(Markup('<th scope="col">{}</th>').format(column.title) for column in table.columns)
    rows = Markup().join(_row(row, is_named=table.has_numbers) for row in table.rows)
    return Markup('<div class="wide"><table{}>\n').format(_class(" ".join(kinds))) + _line(_ROWS, header, rows)


def _row(row: Row, *, is_named: bool) -> Markup:
    """Return one row; its first cell says what it is about if `is_named`."""
    cells = list(map(_cell, row))
    if is_named:
        cells[0] = Markup('<th scope="row">{}</th>').format(_cell_text(row[0]))
    return Markup("<tr>{}</tr>").format(Markup().join(cells))


def _cell(cell: str | Cell) -> Markup:
    tone = Markup(' class="{}"').format(kind(cell.tone)) if isinstance(cell, Cell) else ""
    return Markup("<td{}>{}</td>").format(tone, _cell_text(cell))


def _cell_text(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return cell
    text = Markup("<strong>{}</strong>").format(cell.text) if cell.strong else cell.text
    lines = Markup().join(Markup("<span>{}</span>").format(line) for line in cell.lines)
    return Markup("{}{}{}").format(_PART if cell.is_part else "", text, lines)


def _trial(number: int, trial: ListedTrial) -> Markup:
    first, *others = trial.fields
    button = '<td><button type="button" class="open" aria-expanded="false">{}</button></td>'
    cells = [Markup(button).format(first[0]), *map(_field, others)]
    row = Markup('<tr data-trial="{}" class="{}">{}</tr>')
    return row.format(number, kind(trial.tone), Markup().join(cells))


def _field(field: Sequence[object]) -> Markup:
    sort = Markup(' data-sort="{}"').format(field[1]) if len(field) > 1 else ""
    return Markup("<td{}>{}</td>").format(sort, field[0])


def _figure(block: Figure) -> Markup:
    note = f". {block.figure.note}" if block.figure.note else ""
    caption = Markup("<figcaption>{}{}</figcaption>").format(block.caption, note) if block.caption else ""
    return _line('<figure><img alt="{}" src="{}">{}</figure>', block.alt, _source(block.figure), caption)


def _source(figure: RenderedFigure) -> str:
    """Return the SVG, which is sharp at every size, or the PNG if the SVG has so many points that it is much larger."""
    if len(figure.svg) > _LARGEST_SVG_BYTES:
        return "data:image/png;base64," + b64encode(figure.png).decode("ascii")
    return "data:image/svg+xml;base64," + b64encode(figure.svg).decode("ascii")
