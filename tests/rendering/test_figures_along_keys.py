"""The numbers that figures of savings, growth and limit lines draw."""

import warnings
from dataclasses import replace

import builders
import pytest

from profiler.analysis import sweep_report as sweep_report_module
from profiler.analysis.compared.axes import curves, surfaces
from profiler.analysis.compared.comparison import compare
from profiler.analysis.findings.answers import LIMIT_CARDS, card_limits
from profiler.analysis.sweep_report import sweep_report
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import GIB, as_gib
from profiler.domain.runs.outcome import Status
from profiler.domain.trials.optimizers import Optimizer
from profiler.rendering.figures.catalogue import drawings
from profiler.rendering.figures.growth import growth_figure, slope_figure
from profiler.rendering.figures.heat import heat_figure
from profiler.rendering.figures.theme import as_png


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def section_of(folder, specs):
    (section,) = compare(builders.tables(folder, builders.records(specs)).runs)
    return section


def names(folder, specs):
    """The names of the figures of a section."""
    (part,) = sweep_report(builders.tables(folder, builders.records(specs)), grid="made_up").sections
    return [drawing.name for drawing in drawings(part, number=2)]


LENGTHS = [
    make(max_completion_length=n, **keys)
    for make, keys in ((builders.spec, {"gradient_checkpointing": False}), (builders.lora, {}))
    for n in (512, 1024, 4096)
]
SURFACE = [
    builders.spec(
        num_generations=group, per_device_train_batch_size=8, max_completion_length=length, model="qwen2.5-3b"
    )
    for group in (2, 4, 8)
    for length in (256, 4096, 16384)
]


def test_limits_of_cards_are_computed_for_the_first_surfaces_only(tmp_path, monkeypatch):
    specs = [replace(each, model=model) for model in ("qwen2.5-3b", "qwen2.5-7b") for each in SURFACE]
    tables = builders.tables(tmp_path, builders.records(specs))
    monkeypatch.setattr(sweep_report_module, "MOST_SURFACES", 1)
    (part,) = sweep_report(tables, grid="made_up").sections
    assert len(part.surfaces) == 2
    assert [len(limits) for limits in part.card_limits] == [len(LIMIT_CARDS)]


@pytest.fixture
def lengths(tmp_path):
    return section_of(tmp_path, LENGTHS)


@pytest.fixture
def surface_section(tmp_path):
    return section_of(tmp_path, SURFACE)


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


def test_a_limit_line_is_between_fields_that_fit_and_fields_that_do_not(surface_section):
    (surface,) = surfaces(surface_section)
    assert surface.keys == ("num_generations", "max_completion_length")
    assert surface.values == ((2, 4, 8), (256, 4096, 16384))
    limits = card_limits(surface_section, surface)
    figure = heat_figure(surface_section, surface, limits)
    fields = {text.get_position(): text.get_text() for text in figure.axes[0].texts[:9]}
    assert fields[(0, 2)] == f"{as_gib(surface.cells[2, 16384].result_bytes):.1f}"
    for limit in limits[1:4]:
        card, inside = limit.gpu.name, limit.fits
        segments = sum(
            inside[2 ** (x + 1), upwards[y]] != inside[2 ** (x + 1 + dx), upwards[y + dy]]
            for upwards in [surface.values[1]]
            for x in range(3)
            for y in range(3)
            for dx, dy in ((1, 0), (0, 1))
            if x + dx < 3 and y + dy < 3
        )
        assert sum(line.get_label() == card for line in figure.axes[0].lines) == segments
        side = "" if card == "h100-80gb" else ", on the safe side"
        legend = [text.get_text() for text in figure.legends[0].texts]
        assert (f"limit of {card}{side}" in legend) == (segments > 0)


def test_the_legend_of_the_heat_map_is_inside_the_figure(surface_section):
    (surface,) = surfaces(surface_section)
    needs = dict(zip(surface.cells, (15, 23, 38, 70, 100, 130, 150, 160, 170), strict=True))
    cells = {field: replace(cell, required_device_bytes=needs[field] * GIB) for field, cell in surface.cells.items()}
    # On a card without a limit line, so that all lines have the longer text.
    section = replace(surface_section, setting=replace(surface_section.setting, card="another"))
    changed = replace(surface, cells=cells)
    figure = heat_figure(section, changed, card_limits(section, changed))
    figure.canvas.draw()
    whole, legend = figure.bbox, figure.legends[0].get_window_extent()
    assert len(figure.legends[0].texts) == len(LIMIT_CARDS)
    assert whole.x0 <= legend.x0 < legend.x1 <= whole.x1
    assert whole.y0 <= legend.y0 < legend.y1 <= whole.y1


def test_the_own_card_has_the_verdicts_of_the_trials_and_others_have_what_cannot_be_released(surface_section):
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
    fits = {limit.gpu.name: limit.fits for limit in card_limits(surface_section, odd)}
    # A full card released what an unlimited one keeps: the trial fits.
    assert fits[h100.name] == {field: cell.status is Status.OK for field, cell in cells.items()}
    assert all(fits[h200.name].values())


def test_keys_that_are_no_numbers_have_no_curve(tmp_path):
    section = section_of(tmp_path, [builders.spec(attn_implementation=way) for way in ("sdpa", "eager")])
    assert curves(section) == ()
    assert surfaces(section) == ()


def test_every_numeric_key_has_curves_and_every_pair_surfaces(tmp_path):
    specs = [
        builders.spec(steps=steps, beta=beta, max_completion_length=length)
        for steps in (1, 3)
        for beta in (0.0, 1e-05)
        for length in (256, 1024, 4096)
    ]
    section = section_of(tmp_path, specs)
    found = curves(section)
    assert {curve.key for curve in found} == {"steps", "beta", "max_completion_length"}
    by_beta = [curve for curve in found if curve.key == "beta"]
    assert [curve.method for curve in by_beta] == [
        f"full + checkpointing, max_completion_length={length}, steps={steps}"
        for length in (256, 1024, 4096)
        for steps in (1, 3)
    ]
    assert all([value for value, _ in curve.points] == [0.0, 1e-05] for curve in by_beta)
    pairs = [surface.keys for surface in surfaces(section)]
    assert set(pairs) == {("max_completion_length", "beta"), ("max_completion_length", "steps"), ("beta", "steps")}
    assert len(pairs) == 2 + 2 + 3


def test_a_key_that_varies_with_another_can_be_asked_for(tmp_path):
    specs = [builders.spec(num_generations=n, per_device_train_batch_size=n) for n in (4, 8)]
    section = section_of(tmp_path, specs)
    assert [curve.key for curve in curves(section)] == ["num_generations"]
    (curve,) = curves(section, ["per_device_train_batch_size"])
    assert (curve.method, [value for value, _ in curve.points]) == ("full + checkpointing", [4, 8])


def test_a_key_of_adapters_has_no_point_without_an_adapter(tmp_path):
    specs = [builders.spec(), *(replace(builders.lora(), lora_rank=rank, lora_alpha=2 * rank) for rank in (8, 16))]
    (curve,) = curves(section_of(tmp_path, specs))
    assert (curve.method, curve.key, [value for value, _ in curve.points]) == (
        "LoRA + checkpointing",
        "lora_rank",
        [8, 16],
    )


def test_the_figures_of_each_kind_of_section(tmp_path):
    assert "growth-max_completion_length-2" in names(tmp_path / "lengths", LENGTHS)
    surface = names(tmp_path / "surface", SURFACE)
    # The heat map has the numbers of the comparison and of both curves.
    assert surface == ["categories-2", "heat-2-1", "estimate-2"]
    assert "savings-2" in names(tmp_path / "methods", builders.lora_vs_full_specs())
    # The bars of the categories are the comparison of one model.
    assert names(tmp_path / "one", [builders.spec()])[0] == "categories-2"
    failed = [replace(record, outcome=builders.failed()) for record in builders.records(LENGTHS)]
    (part,) = sweep_report(builders.tables(tmp_path / "failed", failed), grid="made_up").sections
    (only,) = drawings(part, number=2)
    assert (only.name, only.title) == ("comparison-2", "Peak memory of every method")
    assert as_png(only.figure()).startswith(b"\x89PNG")


def test_trials_that_share_no_value_of_either_key_are_no_surface(tmp_path):
    pairs = [(2, 256), (4, 4096), (8, 16384)]
    specs = [
        builders.spec(num_generations=group, per_device_train_batch_size=8, max_completion_length=length)
        for group, length in pairs
    ]
    assert surfaces(section_of(tmp_path / "diagonal", specs)) == ()
    corner = builders.spec(num_generations=2, per_device_train_batch_size=8, max_completion_length=4096)
    assert len(surfaces(section_of(tmp_path / "corner", [*specs, corner]))) == 1


def test_a_long_title_has_lines_for_which_the_figure_is_wide_enough(tmp_path):
    # matplotlib warns, which is an error here, if a title is wider than the figure.
    specs = [
        replace(spec, optim=Optimizer.ADAMW_8BIT if spec.num_generations > 2 else spec.optim, max_prompt_length=length)
        for spec in SURFACE
        for length in (100, 1000)
    ]
    section = section_of(tmp_path, specs)
    for surface in surfaces(section):
        as_png(heat_figure(section, surface, card_limits(section, surface)))
