"""The page of Markdown: table, escaping, figures, versions and the command."""

import re
from dataclasses import replace

import builders

from profiler.analysis.errors import Threshold
from profiler.analysis.sweep_report import sweep_report
from profiler.rendering.document import RenderedFigure
from profiler.rendering.layouts.markdown import markdown
from profiler.rendering.sweep.page import SectionFigures, sweep_page
from profiler.rendering.sweep.words import thresholds_text
from profiler.storage.foreign.published import read_published
from profiler.storage.sweep_tables.tables import read_tables


def report_of(folder, records, **about):
    tables = read_tables(builders.write_folder(folder, records, **about))
    return sweep_report(tables, read_published(), grid="made_up")


def page(folder, records, *, figures=(), **about):
    report = report_of(folder, records, **about)
    return markdown(sweep_page(report, [SectionFigures(figures=figures)] * len(report.sections)))


def test_the_question_the_cells_and_the_command(tmp_path):
    text = page(tmp_path, builders.records(builders.lora_vs_full_specs()), question="Which?", command="run it")
    assert text.startswith("# made\\_up\n\n> Which?\n")
    assert "**7.8**<br>est 7.2 -8%" in text
    assert "**OOM**<br>needs 170.4 GiB, 91.2 more than there is<br>est 156.7 -8%" in text
    assert "| estimate | 25 | 4.0 % | 8.0 % | -8%: full, qwen2.5-0.5b |" in text
    assert "```sh\nrun it\n```" in text
    assert "Versions: torch 2.13.0" in text


def test_every_row_of_a_table_has_as_many_cells_as_its_header(tmp_path):
    records = builders.records(builders.oxen_specs(), grid="oxen_2025")
    records[3] = replace(records[3], outcome=builders.failed(message="a | b\nsecond <line>"))
    text = page(tmp_path, records)
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.strip().splitlines()}
        assert len(counts) == 1, block
    assert "a \\| b second &lt;line&gt;" in text


def test_published_figures_come_with_their_trust(tmp_path):
    text = page(tmp_path, builders.records(builders.oxen_specs(), grid="oxen_2025"))
    assert "published 38 GB" in text
    assert "one noisy sample a cell" in text


def test_figures_are_linked_as_png_and_svg(tmp_path):
    figure = RenderedFigure(name="a", title="A title", png=b"", svg=b"")
    text = page(tmp_path, builders.records([builders.spec()]), figures=(figure,))
    assert "![A title](figures/a.png)" in text
    assert "[SVG](figures/a.svg)" in text


def test_a_page_without_trials(tmp_path):
    assert "No trial is stored here yet." in page(tmp_path, [])


def test_how_far_the_simulation_is_from_a_real_card(tmp_path):
    known = Threshold(claim="allocated, median error", allowed=0.01, found=0.004)
    counted = Threshold(claim="ran out of memory", allowed=0, found=2, counts_trials=True)
    report = replace(report_of(tmp_path, []), thresholds=(known, counted, replace(known, found=None)))
    text = markdown(sweep_page(report, ()))
    assert "| allocated, median error | 1.0 % | 0.4 % |" in text
    assert "| ran out of memory | 0 trials | 2 trials |" in text
    assert "| allocated, median error | 1.0 % | not measured |" in text
    assert thresholds_text([known]) == "Simulation against a real card: all of 1 acceptance thresholds hold."
    assert (
        thresholds_text([known, counted])
        == "Simulation against a real card: does not hold: ran out of memory 2 trials."
    )
    unknown = thresholds_text([replace(known, found=None)])
    assert unknown.startswith(
        "Simulation against a real card: not measured here. On 4 NVIDIA H200 and 1 NVIDIA H100 80GB HBM3, 95 % of 205 "
    )
    assert "| allocated, median error | 1.0 % | not measured |\n" in text and "On 4 NVIDIA H200" not in text


def test_backticks_in_the_command_do_not_end_its_block(tmp_path):
    command = "python -m profiler.sweep 'dataset=\n```\n# not a heading'"
    assert f"````sh\n{command}\n````\n" in page(tmp_path, builders.records([builders.spec()]), command=command)
