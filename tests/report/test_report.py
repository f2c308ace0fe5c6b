"""`python -m profiler.report`: everything from parquet, and one sentence per error."""

import io
import re
import subprocess
import sys
from dataclasses import replace

import builders
import pytest
from rich.console import Console

from maintenance.benchmarks.many_records import many_specs, varied_records
from profiler.analysis import sweep_report
from profiler.domain.errors import ProfilerError
from profiler.domain.memory import gib_text
from profiler.domain.trials.trial import Backend
from profiler.rendering.document import FigureKind, RenderedFigure
from profiler.rendering.figures.catalogue import MOST_FIGURES, Drawing
from profiler.rendering.layouts.html import MOST_TRIALS
from profiler.report import estimated_limits
from profiler.report import main as drawing
from profiler.report.main import main
from profiler.storage.stores.record_store import RecordStore, rank_folder
from profiler.storage.sweep_tables.tables import TABLES, table_path


@pytest.fixture
def folder(tmp_path):
    records = builders.records(builders.lora_vs_full_specs(), grid="lora_vs_full")
    return builders.write_folder(tmp_path / "lora_vs_full", records, question="Which fits?")


@pytest.fixture
def few(tmp_path):
    """Two models, for tests that draw every figure and not for what is in it."""
    records = builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b", "qwen2.5-14b"]), grid="lora_vs_full")
    return builders.write_folder(tmp_path / "few", records)


@pytest.fixture
def without_drawing(monkeypatch):
    """Pages with the names of their figures; drawing them takes nine tenths of the time."""

    def empty(_folder, chosen, _kinds):
        return RenderedFigure(name=chosen.name, title=chosen.title, png=b"", svg=b"<svg/>")

    monkeypatch.setattr(drawing, "_draw", empty)


PAGES = ("report.html", "report.md", "comparison.csv", "table.tex")


@pytest.fixture(autouse=True)
def few_estimates(monkeypatch):
    """Limits of heat maps from few points; tests of their own have as many as users."""
    monkeypatch.setattr(estimated_limits, "POINTS", 500)


def rendered(folder, **settings):
    sink = io.StringIO()
    drawing.render_folder(folder, console=Console(file=sink, width=80), **settings)
    return sink.getvalue()


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_page_and_figures_are_written_and_the_last_line_has_the_path(folder):
    text = rendered(folder)
    assert text.splitlines()[-1] == f"Report: {folder / 'report.html'}"
    names = [
        f"figures/{name}.{kind}"
        for name in ("categories", "comparison", "estimate", "savings")
        for kind in ("png", "svg")
    ]
    assert files(folder) == sorted([*names, *PAGES, *(f"{name}.parquet" for name in TABLES)])
    page = (folder / "report.md").read_text()
    assert "> Which fits?" in page
    assert "python -m profiler.sweep +grid=lora_vs_full" in page
    assert all(name in page for name in names)


def test_figures_are_written_in_the_formats_that_are_asked_for(few):
    folder = few
    rendered(folder, kinds=(FigureKind.SVG, FigureKind.PDF))
    figures = sorted((folder / "figures").iterdir())
    assert {path.suffix for path in figures} == {".svg", ".pdf"}
    assert all(path.read_bytes().startswith(b"%PDF-") for path in figures if path.suffix == ".pdf")
    page = (folder / "report.md").read_text()
    assert "([PDF](figures/comparison.pdf))" in page
    assert "](figures/comparison.svg)" in page
    assert ".png" not in page


def test_drawing_again_changes_nothing(few):
    folder = few
    first, second = rendered(folder), None
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    second = rendered(folder)
    assert second == first
    assert {name: (folder / name).read_bytes() for name in files(folder)} == before


def test_the_terminal_has_the_trials_of_the_command_and_the_page_all(folder, without_drawing):
    asked = builders.records(builders.lora_vs_full_specs(["qwen2.5-3b"]), grid="lora_vs_full")
    text = rendered(folder, trial_ids=[record.trial_id for record in asked])
    assert "qwen2.5-3b" in text
    assert "qwen2.5-7b" not in text
    assert "qwen2.5-7b" in (folder / "report.md").read_text()


def test_without_a_console_nothing_is_printed(folder, without_drawing, capsys):
    drawing.render_folder(folder, console=None)
    assert capsys.readouterr().out == ""
    assert (folder / "report.md").is_file()


def test_a_figure_that_fails_costs_only_itself(few, monkeypatch):
    folder = few

    def broken():
        raise RuntimeError("made up\nsecond line")

    real = drawing.chosen
    bad = Drawing(name="bad", title="bad", draw=broken)
    monkeypatch.setattr(drawing, "chosen", lambda *given: [(bad, *own) for own in real(*given)])
    before = {name: table_path(folder, name).read_bytes() for name in TABLES}
    with pytest.raises(ProfilerError, match="The figure 'bad' could not be drawn") as error:
        rendered(folder)
    assert len(str(error.value).splitlines()) == 1
    assert "python -m profiler.report" in str(error.value)
    assert {name: table_path(folder, name).read_bytes() for name in TABLES} == before
    assert "figures/comparison.png" in (folder / "report.md").read_text()
    assert "could not be drawn" in (folder / "report.md").read_text()


def test_the_comparison_as_csv(folder, without_drawing):
    rendered(folder)
    lines = (folder / "comparison.csv").read_text().splitlines()
    assert lines[0].startswith("origin,card,method,model,status,result_bytes,")
    assert len(lines) == 26
    assert lines[1].startswith("simulated,NVIDIA H100 80GB HBM3,full,qwen2.5-0.5b,ok,")


def test_the_page_of_many_trials_grows_by_the_bytes_of_their_rows_only(tmp_path, without_drawing):
    """The goal is 15 MB for 10,000 varied trials, half of them for figures; `make bench` has the real sizes."""
    sizes = []
    for count in (120, 240):
        folder = builders.write_folder(tmp_path / str(count), list(varied_records(many_specs(count))))
        rendered(folder, trial_ids=[])
        page = (folder / "report.html").read_text()
        assert page.count("<img ") <= MOST_FIGURES
        sections = page.count("<h3>Every trial</h3>")
        # The page says first which sections follow.
        assert [f'href="#section-{number}"' in page for number in range(1, sections + 2)] == [True] * sections + [False]
        assert page.count("data-trial=") <= sections * MOST_TRIALS
        sizes.append(len(re.sub('src="[^"]*"', "", page)))
    # Below 2,000 trials the details have the largest tensors and the command with its button: 1.7 kB of them.
    assert (sizes[1] - sizes[0]) / 120 < 3_600


def test_the_largest_tensors_are_left_to_parquet_in_a_page_of_many_trials(tmp_path, without_drawing, monkeypatch):
    specs = [spec for spec in many_specs(66) if spec.backend is Backend.SIMULATED]
    folder = builders.write_folder(tmp_path / "many", list(varied_records(specs)))
    monkeypatch.setattr(sweep_report, "MOST_WITH_DETAILS", len(specs) - 1)
    rendered(folder, trial_ids=[])
    page = (folder / "report.html").read_text()
    assert "its keys are in runs.parquet" in page
    assert "made in" not in page


def test_the_pages_have_the_peak_of_each_rank(tmp_path, without_drawing):
    specs = builders.lora_vs_full_specs(["qwen2.5-0.5b", "qwen2.5-14b"])
    records = builders.records([replace(spec, num_processes=2) for spec in specs], grid="two")
    folder = builders.write_folder(tmp_path / "two", records)
    assert "Ranks" not in rendered(folder) + (folder / "report.md").read_text() + (folder / "report.html").read_text()
    small, large = records[0], next(each for each in records if each.spec.model == "qwen2.5-14b")
    for rank, record in ((0, small), (1, small), (1, large)):
        RecordStore(rank_folder(folder, rank)).write(record)
    rendered(folder)
    markdown, page = (folder / "report.md").read_text(), (folder / "report.html").read_text()
    assert "## Ranks\n\nPeak of allocated memory of each GPU, by rank.\n\n| trial | rank 0 | rank 1 |\n" in markdown
    peaks = {each.spec.model: gib_text(each.outcome.peaks.allocated_bytes) for each in (small, large)}
    expected = {
        "qwen2.5-0.5b": [peaks["qwen2.5-0.5b"]] * 2,
        "qwen2.5-14b": ["no record", peaks["qwen2.5-14b"]],
    }
    lines = markdown.split("## Ranks")[1].split("\n\n")[2].splitlines()[2:]
    found = {line.split(",")[0].removeprefix("| "): line.rstrip(" |").split(" | ")[1:] for line in lines}
    assert found == expected
    for sizes in expected.values():
        assert "".join(f"<td>{text}</td>" for text in sizes) in page.split("<h2>Ranks</h2>")[1]


def test_published_figures_have_their_own_figure(tmp_path, without_drawing):
    records = builders.records(builders.oxen_specs(), grid="oxen_2025")
    folder = builders.write_folder(tmp_path / "oxen_2025", records)
    rendered(folder)
    assert "figures/published.png" in (folder / "report.md").read_text()


def test_an_empty_folder_of_results_has_a_page(tmp_path):
    folder = builders.write_folder(tmp_path / "empty", [])
    assert "No trial is stored here yet." in rendered(folder)
    assert files(folder) == sorted([*PAGES, *(f"{name}.parquet" for name in TABLES)])


def _missing(folder):
    return [str(folder.with_name("lora_vs_ful"))]


def _torn(folder):
    table_path(folder, "runs").write_bytes(b"PAR1")
    return [str(folder)]


def _no_tables(folder):
    folder.joinpath("empty").mkdir()
    return [str(folder / "empty")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (_missing, "Did you mean 'lora_vs_full'?"),
        (_torn, "not a parquet file, or it is damaged"),
        (_no_tables, "no such file"),
        (lambda folder: [], "name one folder or several"),
        (lambda folder: [str(folder), "--what"], "argument=--what: is not of the form key=value"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(folder, capsys, arguments, message):
    assert main(arguments(folder)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert message in captured.err


def test_the_command_in_a_process_of_its_own_needs_no_torch(few):
    script = (
        "import sys; from profiler.report.main import main; code = main([sys.argv[1]]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    child = subprocess.run([sys.executable, "-W", "error", "-c", script, few], capture_output=True, check=False)
    assert (child.returncode, child.stderr) == (0, b"")


def test_a_closed_pipe_costs_no_file_and_shows_no_traceback(few):
    folder = few
    command = f"{sys.executable} -m profiler.report {folder} | head -n 1"
    child = subprocess.run(command, shell=True, capture_output=True, check=False)
    assert child.stderr == b""
    assert (folder / "report.md").is_file()
