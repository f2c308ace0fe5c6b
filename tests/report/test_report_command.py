"""The command line of a report: folders and the formats of figures."""

import pytest

from profiler.domain.errors import EXIT_OK, EXIT_USAGE
from profiler.rendering.document import FigureKind
from profiler.report.command import read_command
from profiler.report.main import main


def test_folders_and_formats_are_read():
    found = read_command(["results/a", "figures=pdf,png", "results/b=c"])
    assert found.folders == ("results/a", "results/b=c")
    assert found.options.figures == (FigureKind.PNG, FigureKind.PDF)
    assert found.faults == ()
    assert read_command(["results/a"]).options.figures == (FigureKind.PNG, FigureKind.SVG)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["figures=gif"], "figures=gif: must be one or several of png, svg, pdf, separated by commas."),
        (["figures="], "figures='': must be one or several of png, svg, pdf, separated by commas."),
        (["figure=png"], "figure=png: is unknown; the keys are figures, max_increase, into. Did you mean 'figures'?"),
    ],
)
def test_wrong_input_is_one_sentence(capsys, tmp_path, words, sentence):
    assert main([str(tmp_path), *words]) == EXIT_USAGE
    assert capsys.readouterr().err == f"{sentence}\n"


def test_the_help(capsys):
    assert main(["--help"]) == EXIT_OK
    assert "figures=KINDS" in capsys.readouterr().out
