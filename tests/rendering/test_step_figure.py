"""The shape of a step: the trials that are shown, and the areas that are drawn."""

from dataclasses import replace

import builders
import numpy as np
import pytest

from profiler.analysis.compared.comparison import compare
from profiler.analysis.findings.peaks import shapes
from profiler.domain.memory import GIB, Category, Phase, as_gib
from profiler.domain.runs.readings import CategoryShare, StepInstant
from profiler.rendering.figures.sweep.categories import step_figure
from profiler.rendering.figures.theme import as_png
from profiler.rendering.sweep.words import gib_number
from profiler.storage.sweep_tables.tables import table_path

PHASES = (Phase.ROLLOUT, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


def shaped(record):
    instants = tuple(
        StepInstant(
            phase=phase,
            shares=(
                CategoryShare(category=Category.WEIGHTS, size_bytes=2 * GIB),
                *([CategoryShare(category=Category.ACTIVATIONS, size_bytes=number * GIB)] if number else []),
            ),
        )
        for number, phase in enumerate(PHASES)
    )
    return replace(record, outcome=builders.changed(record.outcome, step_shape=instants))


@pytest.fixture
def stored(tmp_path):
    return builders.tables(tmp_path, [shaped(record) for record in builders.records(builders.lora_vs_full_specs())])


def test_every_method_of_the_largest_model_that_fits_with_all(stored):
    (section,) = compare(stored.runs)
    found = shapes(section, stored.shape_of)
    assert [shape.cell.label for shape in found] == list(section.rows)
    assert {shape.cell.model for shape in found} == {"qwen2.5-3b"}
    assert found[0].phases == PHASES
    assert found[0].sizes_bytes == {
        Category.WEIGHTS: (2 * GIB,) * 4,
        Category.ACTIVATIONS: (0, GIB, 2 * GIB, 3 * GIB),
    }


def test_the_areas_are_the_sizes(stored):
    (section,) = compare(stored.runs)
    found = shapes(section, stored.shape_of)
    figure = step_figure(section, found)
    assert len(figure.axes) == 5
    for axes, shape in zip(figure.axes, found, strict=True):
        tops = [float(np.max(area.get_paths()[0].vertices[:, 1])) for area in axes.collections if area.get_paths()]
        assert tops == [2.0, 5.0]  # weights; activations on top of them
        (peak,) = [line for line in axes.lines if line.get_label() == "peak"]
        assert (list(peak.get_xdata()), list(peak.get_ydata())) == ([3], [as_gib(5 * GIB)])
        assert {text.get_text() for text in axes.texts} == {
            *(phase.value for phase in PHASES),
            f"5.0 ({gib_number(shape.cell.result_bytes)})",
        }
        assert shape.cell.label == axes.get_title(loc="left")
    assert "The peak of the trial, in brackets, can lie between them." in figure.get_suptitle()
    assert as_png(figure).startswith(b"\x89PNG")


def test_without_instants_there_is_no_table_and_no_figure(tmp_path):
    tables = builders.tables(tmp_path, builders.records([builders.spec()]))
    assert tables.shape.empty
    assert not table_path(tmp_path, "shape").exists()
    (section,) = compare(tables.runs)
    assert shapes(section, tables.shape_of) == ()
