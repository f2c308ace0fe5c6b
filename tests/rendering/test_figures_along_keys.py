"""Savings, growth and frontiers: the numbers that are drawn."""

import warnings
from dataclasses import replace

import builders
import pytest

from profiler.analysis.axes import curves, surfaces
from profiler.analysis.comparison import compare
from profiler.domain.gpu import KNOWN_GPUS
from profiler.domain.outcome import Status
from profiler.domain.units import GIB, as_gib
from profiler.rendering.figures.catalogue import drawings
from profiler.rendering.figures.growth import growth_figure
from profiler.rendering.figures.heat import fitting, heat_figure
from profiler.rendering.figures.slopes import slope_figure


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def section_of(folder, specs):
    (section,) = compare(builders.tables(folder, builders.records(specs)).runs)
    return section


@pytest.fixture
def lengths(tmp_path):
    values = (512, 1024, 4096)
    return section_of(
        tmp_path,
        [
            *(builders.spec(max_completion_length=n, gradient_checkpointing=False) for n in values),
            *(builders.lora(max_completion_length=n) for n in values),
        ],
    )


@pytest.fixture
def surface_section(tmp_path):
    batches = [{"num_generations": 2 * n, "per_device_train_batch_size": 2 * n} for n in (1, 2, 4)]
    same = {"per_device_train_batch_size": 8}
    return section_of(
        tmp_path,
        [
            builders.spec(**(batch | same), max_completion_length=length, model="qwen2.5-3b", steps_per_generation=4)
            for batch in batches
            for length in (256, 4096, 16384)
        ],
    )


def points(figure):
    """(x, y) of every mark of one point."""
    lines = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines]


def test_a_curve_has_each_value_and_its_result(lengths):
    found = curves(lengths)
    assert [(curve.method, curve.key) for curve in found] == [
        ("full", "max_completion_length"),
        ("LoRA + checkpointing", "max_completion_length"),
    ]
    figure = growth_figure(lengths, found)
    expected = [(value, as_gib(cell.result_bytes)) for curve in found for value, cell in curve.points]
    assert points(figure) == expected
    assert [value for value, _ in expected[:3]] == [512, 1024, 4096]
    dotted = [line for line in figure.axes[0].lines if line.get_linestyle() == ":"]
    assert [list(line.get_ydata()) for line in dotted] == [
        [as_gib(cell.estimated_bytes) for _, cell in curve.points] for curve in found
    ]


def test_the_slopes_are_the_results_of_the_methods(tmp_path):
    section = section_of(tmp_path, builders.lora_vs_full_specs())
    figure = slope_figure(section)
    assert points(figure) == [
        (place, as_gib(section.cells[row, model].result_bytes))
        for model in section.models
        for place, row in enumerate(section.rows)
    ]
    first, last = (section.cells[row, "qwen2.5-0.5b"].result_bytes for row in (section.rows[0], section.rows[-1]))
    ends = [text.get_text() for text in figure.axes[0].texts]
    assert f"{as_gib(last):.1f} ({last / first - 1:+.0%})" in ends
    hollow = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert len(hollow) == 4


def test_a_frontier_runs_between_what_fits_and_what_does_not(surface_section):
    (surface,) = surfaces(surface_section)
    assert surface.keys == ("num_generations", "max_completion_length")
    assert surface.values == ((2, 4, 8), (256, 4096, 16384))
    figure = heat_figure(surface_section, surface)
    fields = {text.get_position(): text.get_text() for text in figure.axes[0].texts[:9]}
    assert fields[(0, 2)] == f"{as_gib(surface.cells[2, 16384].result_bytes):.1f}"
    for card in ("rtx-4090-24gb", "a100-40gb", "h100-80gb"):
        inside = fitting(surface_section, surface, KNOWN_GPUS[card])
        borders = sum(
            inside[2 ** (x + 1), upwards[y]] != inside[2 ** (x + 1 + dx), upwards[y + dy]]
            for upwards in [surface.values[1]]
            for x in range(3)
            for y in range(3)
            for dx, dy in ((1, 0), (0, 1))
            if x + dx < 3 and y + dy < 3
        )
        assert sum(line.get_label() == card for line in figure.axes[0].lines) == borders
        side = "" if card == "h100-80gb" else ", on the safe side"
        told = [text.get_text() for text in figure.legends[0].texts]
        assert (f"frontier of {card}{side}" in told) == (borders > 0)


def test_no_word_of_the_heat_map_leaves_it(surface_section):
    (surface,) = surfaces(surface_section)
    needs = dict(zip(surface.cells, (15, 23, 38, 70, 100, 130, 150, 160, 170), strict=True))
    cells = {field: replace(cell, required_device_bytes=needs[field] * GIB) for field, cell in surface.cells.items()}
    # On a card that is none of those drawn, so that all of them have the longer words.
    setting = replace(surface_section.setting, card="another")
    figure = heat_figure(replace(surface_section, setting=setting), replace(surface, cells=cells))
    figure.canvas.draw()
    whole, legend = figure.bbox, figure.legends[0].get_window_extent()
    assert len(figure.legends[0].texts) == 4
    assert whole.x0 <= legend.x0 < legend.x1 <= whole.x1
    assert whole.y0 <= legend.y0 < legend.y1 <= whole.y1


def test_of_its_own_card_the_section_knows_and_of_others_it_counts_what_cannot_be_given_back(surface_section):
    (surface,) = surfaces(surface_section)
    h100, h200 = KNOWN_GPUS["h100-80gb"], KNOWN_GPUS["h200-141gb"]
    statuses = {field: Status.OOM if field == (8, 16384) else Status.OK for field in surface.cells}
    needs = {Status.OK: h100.memory_bytes + 1, Status.OOM: 1}
    cells = {
        field: replace(
            cell,
            status=statuses[field],
            required_device_bytes=needs[statuses[field]],
            peak_device_bytes=h200.memory_bytes + 1,
        )
        for field, cell in surface.cells.items()
    }
    odd = replace(surface, cells=cells)
    # A full card gave back what an unlimited one would have kept: it fits, whatever is written beside it.
    assert fitting(surface_section, odd, h100) == {field: cell.status is Status.OK for field, cell in cells.items()}
    assert all(fitting(surface_section, odd, h200).values())


def test_keys_that_are_no_numbers_have_no_curve(tmp_path):
    section = section_of(tmp_path, [builders.spec(attn_implementation=way) for way in ("sdpa", "eager")])
    assert curves(section) == ()
    assert surfaces(section) == ()


def names(section):
    return [drawing.name for drawing in drawings(section, stacks=(), found=(), number=2)]


def test_what_is_drawn_of_which_section(lengths, surface_section, tmp_path):
    assert "growth-max_completion_length-2" in names(lengths)
    assert "heat-2-1" in names(surface_section)
    assert "savings-2" in names(section_of(tmp_path / "methods", builders.lora_vs_full_specs()))
    one = section_of(tmp_path / "one", [builders.spec()])
    assert names(one) == ["comparison-2"]
    without = replace(one, cells={place: replace(cell, peak_allocated_bytes=None) for place, cell in one.cells.items()})
    assert curves(without) == ()
