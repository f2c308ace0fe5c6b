"""Texts of others are drawn as they are written, in every figure that shows one."""

import warnings
from dataclasses import replace

import builders
import pytest
from matplotlib.figure import Figure
from matrix import with_further

from profiler.analysis.sweep_report import sweep_report
from profiler.rendering.document import FigureKind
from profiler.rendering.figures.catalogue import drawings
from profiler.rendering.figures.theme import as_pdf, as_png, as_svg, as_written, in_theme, new_figure, rendered, title
from profiler.storage.foreign.published import read_published

HOSTILE = {
    "dollars": r"$HOME/a $PATH",
    "unclosed": "$",
    "unknown command": r"$\nosuch{$",
    "open brace": r"$\frac{1}{$",
    "powers": "a_b^c_{d}^{e} $x_$",
    "backslashes": r"\\server\share\$x\$",
    "percent and ampersand": "100 % & #1 ~ {braces}",
    "colours": "\x1b[31mred\x1b[0m",
    "bell, null and delete": "\a\0\x7f",
    "line breaks": "a\r\nb\vc\x85d\u2028e",
    "direction": "\u202eright to left\u202c",
    "emoji": "🚀 $a $b 👩‍👩‍👧",
    "not UTF-8": b"\xff\xfe".decode(errors="surrogateescape"),
    "long": "x" * 20_000,
    "long with dollars": "$\\frac{" * 3_000,
    "many lines": "line\n" * 5_000,
    "underscore first": "_hidden",
    "markup": "<!-- </svg> --> ]]> <script>",
    "empty": "",
}


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def parsed(svg: bytes) -> None:
    """Read an SVG as a browser reads a file of its own: strictly."""
    from xml.etree import ElementTree

    ElementTree.fromstring(svg)


KINDS = (
    "dollars",
    "unknown command",
    "bell, null and delete",
    "line breaks",
    "not UTF-8",
    "long",
    "many lines",
    "markup",
)
"""A text of each kind: read as mathematics, no character of a font or of XML, and too long."""


@pytest.mark.parametrize("name", with_further(HOSTILE, KINDS))
def test_every_place_of_a_figure_takes_every_text(name):
    text = HOSTILE[name]
    figure, axes = new_figure(6, 4)
    axes.plot([1, 2], [1, 2], label=f"a{text}")
    axes.set_xticks([1, 2], [text, "b"])
    axes.set_yticks([1, 2], labels=[text, text])
    axes.set_xlabel(text)
    axes.set_ylabel(text)
    axes.set_title(text)
    axes.text(1, 1, text)
    axes.annotate(text, (1, 1))
    title(axes, text, text)
    axes.legend()
    figure.suptitle(text)
    with warnings.catch_warnings():
        # So long a text leaves no room for the axes, wherever it is.
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
        assert as_png(figure).startswith(b"\x89PNG")
        parsed(as_svg(figure))
        assert as_pdf(figure).startswith(b"%PDF")


IN_RECORDS = {name: HOSTILE[name] for name in ("dollars", "open brace", "colours", "emoji", "long with dollars")}


@pytest.mark.parametrize("text", IN_RECORDS.values(), ids=IN_RECORDS)
def test_every_figure_of_a_report_has_labels_and_models_of_others(tmp_path, text):
    records = [
        replace(record, label=f"{text}{record.label}", spec=replace(record.spec, model=f"{text}/{record.spec.model}"))
        for record in builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b"]))
    ]
    (part,) = sweep_report(builders.tables(tmp_path, records), read_published(), grid="made_up").sections
    found = drawings(part, number=1)
    assert found
    for drawing in found:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="constrained_layout not applied")
            result = rendered(drawing.name, drawing.title, drawing.figure)
        assert not isinstance(result, str), result
        parsed(result[1][FigureKind.SVG])


def test_dollars_are_shown_and_not_read_as_mathematics():
    """Two dollar signs around something that mathtext knows would be drawn in italics, without the signs."""

    def picture(text, *, parse_math):
        figure, axes = new_figure(3, 2)
        axes.set_title(text, parse_math=parse_math)
        return as_png(figure)

    assert picture("$x$", parse_math=True) == picture("$x$", parse_math=False)
    assert picture("$x$", parse_math=True) != picture("x", parse_math=True)


def test_powers_of_a_logarithmic_axis_stay_powers():
    figure, axes = new_figure(3, 2)
    axes.plot([1, 1000], [1, 2])
    axes.set_xscale("log")
    as_png(figure)
    assert [text.get_parse_math() for text in axes.get_xticklabels()] == [True] * len(axes.get_xticklabels())
    assert "10^{2}" in "".join(text.get_text() for text in axes.get_xticklabels())


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_showing_a_text_twice_is_as_showing_it_once(text):
    once = as_written(text)
    assert as_written(once) == once
    assert len(once) < 8_000


def test_ordinary_texts_stay_as_they_are():
    for text in ("LoRA r=16", "Peak allocated GPU memory\nsimulated", "Größe, 2^30 Bytes", "x" * 160):
        assert as_written(text) == text


def test_settings_of_the_current_folder_do_not_change_a_figure(tmp_path, monkeypatch):
    """matplotlib reads a `matplotlibrc` from the current folder, which can be a checkout of somebody else."""
    import matplotlib

    def picture():
        figure, axes = new_figure(3, 2)
        with in_theme():
            axes.plot([1, 2], [1, 2], label="a")
            axes.legend()
        return as_png(figure)

    before = picture()
    with matplotlib.rc_context({"text.usetex": True, "lines.linewidth": 9, "axes.facecolor": "red"}):
        assert picture() == before


def test_a_figure_that_fails_is_a_sentence():
    def fails() -> Figure:
        raise ZeroDivisionError("of the figure\nand more")

    assert rendered("peak", "Peak", fails) == (
        "The figure 'peak' could not be drawn (ZeroDivisionError: of the figure)."
    )
    with in_theme():
        found = rendered("peak", "Peak", lambda: new_figure(3, 2)[0], kinds=(FigureKind.PDF,))
    assert not isinstance(found, str)
    assert list(found[1]) == [FigureKind.PDF]
