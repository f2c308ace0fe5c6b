"""Every kind of block, laid out by every back end, with texts of others in each place."""

import io
import re
from dataclasses import fields, is_dataclass
from html.parser import HTMLParser
from typing import get_args

import pytest
from rich.console import Console

from profiler.rendering.document import (
    Align,
    Block,
    Bullets,
    Cell,
    Code,
    Column,
    Details,
    Document,
    Figure,
    Heading,
    ListedTrial,
    Medium,
    RenderedFigure,
    Section,
    Step,
    Table,
    Text,
    Tone,
    TrialList,
    Wrap,
    number_columns,
    text_columns,
)
from profiler.rendering.layouts.html import html
from profiler.rendering.layouts.markdown import markdown
from profiler.rendering.layouts.plain_text import Lines, plain_text
from profiler.rendering.layouts.terminal import TerminalConsole, print_document

HOSTILE = '</script><script>x</script><img src=x onerror=y> & "q" | *a* `b` [c](d) ~e~ _f_ \x1b[31mred\x07 \u202eback'
"""One text with what each of the media would interpret."""


def in_terminal(document: Document, console: type[Console] = TerminalConsole) -> str:
    sink = io.StringIO()
    print_document(document, console(file=sink, width=1000))
    return sink.getvalue()


def as_html(document: Document) -> str:
    return "".join(html(document))


BACK_ENDS = {Medium.TERMINAL: in_terminal, Medium.MARKDOWN: markdown, Medium.HTML: as_html, Medium.TEXT: plain_text}


def blocks(text: str) -> list[Block]:
    """One block of each kind, and more where a kind has several forms; every text in it begins with `text`."""
    figure = RenderedFigure(name="figure", title=text, png=b"", svg=b"<svg/>", note=text)
    cell = Cell(text=f"{text}cell", tone=Tone.BAD, strong=True, lines=[f"{text}below"])
    row = ListedTrial(tone=Tone.BAD, fields=[[f"{text}trial"], [f"{text}size", 1.5]])
    columns = [f"{text}first", f"{text}second"]
    fixed = (Column(title=f"{text}fixed", align=Align.LEFT, width=9, wrap=Wrap.NEVER), Column(title="n", width=4))
    whole, part = Cell(text=f"{text}whole", lines=[f"{text}detail"]), Cell(text=f"{text}piece", is_part=True)
    return [
        Heading(f"{text}heading"),
        Heading(f"{text}part", level=4),
        *(Text(f"{text}{tone}", tone) for tone in Tone),
        Text(f"{text}first line", lines=[f"{text}next line"]),
        Bullets([f"{text}bullet"]),
        Table(number_columns(columns[0], columns[1:]), [[f"{text}row", cell]]),
        Table(number_columns(columns[0], columns[1:]), [[f"{text}matrix", cell]], is_matrix=True),
        Table(text_columns(columns), [[f"{text}texts", f"{text}more"]]),
        Table(fixed, [[whole, "1"], [part, "2"]]),
        Table(text_columns(columns), [[f"{text}only row", ""]], has_titles=False),
        Step(1, f"{text}step", f"{text}its note", [f"{text}its code"]),
        TrialList(columns=columns, count=1, rows=lambda: [row], details=lambda _is_in_full: [[f"{text}details"]]),
        Figure(figure, alt=f"{text}alt"),
        Figure(figure, alt=f"{text}captioned", caption=f"{text}captioned", linked=("png",)),
        Code(f"{text}code"),
        Code(f"{text}command", language="sh", is_command=True),
        Details(f"{text}summary", [Text(f"{text}inside")]),
        Section(f"{text}section", [Text(f"{text}within")], contents=f"{text}25 trials"),
        Section("", [Text(f"{text}untitled")]),
    ]


def page(text: str) -> Document:
    return Document(title=f"{text}title", lead=Text(f"{text}lead"), blocks=blocks(text))


WORDS = (
    *("heading", "part", "plain", "note", "answer", "good", "warning", "bad", "bullet", "first", "second", "row"),
    *("cell", "below", "matrix", "texts", "more", "trial", "size", "captioned", "code", "command", "summary"),
    *("inside", "section", "within", "untitled"),
    *("first line", "next line", "fixed", "whole", "detail", "piece", "only row", "step", "its note", "its code"),
)
"""What every back end shows of `blocks`."""


def test_the_sample_has_every_kind_of_block():
    assert {type(block) for block in blocks("")} == set(get_args(Block))
    assert all(is_dataclass(kind) and "only" in {each.name for each in fields(kind)} for kind in get_args(Block))


@pytest.mark.parametrize("medium", Medium)
def test_every_back_end_lays_every_block_out(medium):
    assert set(BACK_ENDS) == set(Medium)
    shown = BACK_ENDS[medium](page("a "))
    assert [word for word in WORDS if f"a {word}" not in shown] == []


@pytest.mark.parametrize("medium", Medium)
@pytest.mark.parametrize("number", range(len(blocks(""))))
def test_a_block_is_left_out_of_a_medium_that_it_does_not_name(medium, number):
    kept = blocks("a ")[number]
    others = [each for each in Medium if each is not medium]
    changed = type(kept)(**{**{each.name: getattr(kept, each.name) for each in fields(kept)}, "only": tuple(others)})
    empty = BACK_ENDS[medium](Document(title="t", blocks=[]))
    assert BACK_ENDS[medium](Document(title="t", blocks=[changed])) == empty
    assert BACK_ENDS[others[0]](Document(title="t", blocks=[changed])) != BACK_ENDS[others[0]](
        Document(title="t", blocks=[])
    )


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its text apart from scripts and style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data):
        if self.elements and self.elements[-1][0] not in ("style", "script"):
            self.texts.append(data)


def test_no_text_becomes_an_element_of_a_page():
    hostile, tame = Parsed(as_html(page(HOSTILE))), Parsed(as_html(page("")))
    assert hostile.elements == tame.elements
    shown = "".join(hostile.texts)
    assert [word for word in WORDS if HOSTILE + word not in shown] == []


def test_no_text_is_markup_of_markdown():
    hostile, tame = markdown(page(HOSTILE)), markdown(page(""))
    # Blocks of code are shown as they are.
    outside = re.sub(r"(?ms)^ *```.*?^ *```$", "", hostile)
    assert re.findall(r"(?<!\\)[*_`\[~]", outside) == re.findall(
        r"(?<!\\)[*_`\[~]", re.sub("(?ms)^ *```.*?^ *```$", "", tame)
    )
    assert set(re.findall(r"</?\w+>", outside)) == {"<br>", "<details>", "</details>", "<summary>", "</summary>"}
    assert not any(mark in hostile for mark in "\x1b\x07\u202e")
    for table in re.findall(r"(?m)(?:^\|.*\n)+", outside):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_no_text_controls_a_terminal():
    shown = in_terminal(page(HOSTILE))
    assert not any(mark in shown for mark in "\x1b\x07\u202e")
    assert [word for word in WORDS if HOSTILE[:60] not in shown or word not in shown] == []


def test_no_line_of_plain_text_is_longer_than_asked():
    text = "word " * 100
    document = Document(title="t", blocks=[Text(text), Details("d", [Text(text)]), Section("s", [Text(text)])])
    for width in (40, 80):
        assert max(map(len, plain_text(document, Lines(width=width)).splitlines())) in range(width - 5, width + 1)


def test_a_section_of_plain_text_is_set_off_by_an_empty_line():
    inner = [Text("a"), Details("d", [Text("b"), Section("", [Text("c")])])]
    document = Document(title="t", blocks=[Section("", inner), Section("s", [Text("e")])])
    assert plain_text(document) == "a\nd\n  b\n\n  c\n\ns\n\ne\n"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (Lines(width=8), ["a", "long-word", "b"]),
        (Lines(width=8, at_hyphens=True), ["a long-", "word b"]),
        (Lines(width=8, in_words=True), ["a long-w", "ord b"]),
    ],
)
def test_words_of_plain_text_are_broken_where_it_is_allowed(lines, expected):
    assert plain_text(Document(title="t", blocks=[Text("a long-word b")]), lines).splitlines() == expected


def text_lines(table: Table) -> list[str]:
    return plain_text(Document(title="t", blocks=[table])).splitlines()


def test_columns_are_aligned_and_lines_have_no_spaces_at_the_end():
    # By hand: a column is as wide as its longest text, and two spaces are between columns.
    columns = (*number_columns("model", ["GiB"]), *text_columns(["fits"]))
    assert text_lines(Table(columns, [("qwen", "1.5", "yes"), ("a", "100.25", "")])) == [
        "model       GiB  fits",
        "qwen        1.5  yes",
        "a        100.25",
    ]


def test_a_first_column_of_numbers_starts_at_the_margin():
    columns = (Column(title="n"), *text_columns(["name"]))
    rows = [("10", "0x10"), ("2", "1e3")]
    assert text_lines(Table(columns, rows)) == [" n  name", "10  0x10", " 2  1e3"]
    assert text_lines(Table(columns, rows, has_titles=False)) == ["10  0x10", " 2  1e3"]


@pytest.mark.parametrize(
    ("wrap", "shown"),
    [
        (Wrap.NEVER, ["what        GiB  why", "long name a   1.5  it is", "  part      2.0  so"]),
        (Wrap.FOLD, ["what        GiB  why", "long name   1.5  it is", "a", "  part      2.0  so"]),
    ],
)
def test_columns_of_a_fixed_width_are_as_wide_as_they_say(wrap, shown):
    # By hand: 9 characters, then 6 that end with the number, then two spaces before a text.
    columns = (
        Column(title="what", align=Align.LEFT, width=9, wrap=wrap),
        Column(title="GiB", width=6),
        Column(title="why", align=Align.LEFT),
    )
    rows = [("long name a", "1.5", "it is"), (Cell(text="part", is_part=True), "2.0", "so")]
    assert text_lines(Table(columns, rows)) == shown
    assert text_lines(Table(columns, rows, has_titles=False)) == shown[1:]


def test_a_step_of_plain_text_has_its_lines_below_its_text():
    step = Step(7, "word " * 16, "a note", ["key: value"])
    assert plain_text(Document(title="t", blocks=[step])).splitlines() == [
        f"  7. {' '.join(['word'] * 15)}",
        "     word",
        "     a note",
        "       key: value",
    ]


def test_a_table_without_titles_has_none_in_a_terminal():
    table = Table(text_columns(["first", "second"]), [("a", "b")], has_titles=False)
    assert in_terminal(Document(title="t", blocks=[table])).split() == ["a", "b"]


def test_a_part_is_indented_in_every_medium():
    table = Table(number_columns("what", ["GiB"]), [("whole", "3"), (Cell(text="part", is_part=True), "1")])
    indents = {Medium.TERMINAL: "\n  ", Medium.TEXT: "\n  ", Medium.MARKDOWN: "| &emsp;"}
    indents[Medium.HTML] = '<th scope="row">\N{EM SPACE}'
    for medium, indent in indents.items():
        assert f"{indent}part" in BACK_ENDS[medium](Document(title="t", blocks=[table]))
