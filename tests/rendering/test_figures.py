"""The numbers that figures draw."""

import io
import warnings
from dataclasses import replace
from functools import partial

import builders
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image, ImageChops, ImageStat

from profiler.analysis.findings import peaks
from profiler.analysis.sweep_report import sweep_report
from profiler.domain.memory import GIB, Category, Origin, Phase, as_gib
from profiler.domain.runs.readings import CategoryShare, StepInstant
from profiler.domain.trials.trial import Backend
from profiler.rendering.figures.catalogue import MOST_FIGURES, chosen, drawings, not_shown, too_much
from profiler.rendering.figures.sweep.categories import BARS_PER_FIGURE, categories_figure, pages
from profiler.rendering.figures.sweep.comparison import comparison_figure
from profiler.rendering.figures.sweep.parity import parity_figure, published_figure
from profiler.rendering.figures.theme import (
    CATEGORY_COLOURS,
    add_note,
    as_png,
    as_svg,
    in_theme,
    legend_below,
    new_figure,
)
from profiler.storage.foreign.published import read_published


@pytest.fixture(autouse=True)
def warnings_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def read(folder, records):
    (part,) = sweep_report(builders.tables(folder, records), read_published(), grid="made_up").sections
    return part


@pytest.fixture(scope="module")
def lora(tmp_path_factory):
    return read(tmp_path_factory.mktemp("lora"), builders.records(builders.lora_vs_full_specs()))


@pytest.fixture(scope="module")
def oxen(tmp_path_factory):
    return read(tmp_path_factory.mktemp("oxen"), builders.records(builders.oxen_specs(), grid="oxen_2025"))


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_each_result_is_at_its_place(lora):
    section = lora.section
    figure = comparison_figure(section, lora.matrix)
    found = {(text.get_text(), *text.get_position()) for text in figure.axes[0].texts}
    at = {(round(x), round(y)): text for text, x, y in found if text in ("38.8", "28.0")}
    assert at == {(2, 0): "38.8", (3, 3): "28.0"}
    assert texts(figure).count("OOM") == 4
    assert "needs 170.4" in texts(figure)
    assert "est 156.7 -8%" in texts(figure)
    assert "Simulated on NVIDIA H100 80GB HBM3 (79.1 GiB)" in texts(figure)


def test_the_fuller_the_card_the_darker_the_cell(lora):
    section = lora.section
    patches = [patch for patch in comparison_figure(section, lora.matrix).axes[0].patches if patch.get_fill()]
    fullness = {
        tuple(round(part + 0.5) for part in patch.get_xy()): sum(patch.get_facecolor()[:3]) for patch in patches
    }
    assert fullness[0, 4] > fullness[1, 4] > fullness[2, 4] > fullness[3, 4] > fullness[4, 4]


def test_each_bar_is_as_long_as_its_category(lora):
    section, found = lora.section, lora.stacks
    axes = categories_figure(section, found).axes[0]
    bars_at = {}
    for container in axes.containers:
        (bar,) = container.patches
        bars_at.setdefault(round(bar.get_y(), 3), []).append((container.get_label(), bar.get_x(), bar.get_width()))
    assert len(bars_at) == 25
    for bars, stack in zip((bars_at[y] for y in sorted(bars_at)), found, strict=True):
        assert not stack.needed
        parts = [(name, width) for name, _, width in bars if name in set(Category)]
        assert parts == [(category.value, pytest.approx(as_gib(size))) for category, size in stack.shares.items()]
        assert sum(width for _, width in parts) == pytest.approx(as_gib(stack.cell.peak_allocated_bytes))


def test_out_of_memory_is_outlined_up_to_what_it_needs(lora):
    section, found = lora.section, lora.stacks
    axes = categories_figure(section, found).axes[0]
    wanted = sorted(as_gib(stack.cell.result_bytes) for stack in found if stack.cell.status == "oom")
    assert outlined(axes) == pytest.approx(wanted)
    assert len(wanted) == 4


def outlined(axes):
    """The lengths of the outlines of trials that ran out of memory."""
    return sorted(
        bar.get_x() + bar.get_width()
        for container in axes.containers
        if container.get_label() == "out of memory: what it needs"
        for bar in container.patches
    )


def test_out_of_memory_has_the_categories_that_it_needs(tmp_path, monkeypatch):
    """Not those of the moment at which the card refused."""
    (record,) = [
        each for each in builders.records(builders.lora_vs_full_specs(["qwen2.5-14b"])) if each.label == "full"
    ]
    sizes = {Category.WEIGHTS: 60, Category.GRADIENTS: 50}
    instants = [
        StepInstant(phase=Phase.BACKWARD, shares=tuple(CategoryShare(category=c, size_bytes=n * GIB) for c, n in each))
        for each in ([(Category.WEIGHTS, 60)], list(sizes.items()), [(Category.GRADIENTS, 90)])
    ]
    shaped = replace(record, outcome=builders.changed(record.outcome, step_shape=tuple(instants)))
    (stack,) = (part := read(tmp_path, [shaped])).stacks
    assert stack.needed == {category: size * GIB for category, size in sizes.items()}
    with monkeypatch.context() as few:
        few.setattr(peaks, "_MOST_NEEDED", 0)
        assert not read(tmp_path / "large", [shaped]).stacks[0].needed  # more are not drawn
    axes = categories_figure(part.section, part.stacks).axes[0]
    widths = {container.get_label(): container.patches[0].get_width() for container in axes.containers}
    assert {name: widths[name] for name in widths if name in set(Category)} == {"weights": 60, "gradients": 50}
    assert outlined(axes) == pytest.approx([as_gib(stack.cell.result_bytes)])
    assert f"OOM, needs {as_gib(stack.cell.result_bytes):.1f}" in [text.get_text() for text in axes.texts]


def test_no_number_is_on_the_line_of_the_card(tmp_path):
    part = read(tmp_path, builders.records(builders.lora_vs_full_specs(["qwen2.5-7b", "qwen2.5-14b"])))
    figure = categories_figure(part.section, part.stacks)
    figure.draw_without_rendering()
    axes = figure.axes[0]
    line = axes.transData.transform((as_gib(builders.H100.memory_bytes), 0))[0]
    numbers = [text.get_window_extent() for text in axes.texts if text.get_text().endswith(" GiB")]
    crossed = [box for box in numbers if box.x0 < line < box.x1]
    assert len(numbers) > 5
    assert crossed == []


def test_one_model_without_categories_has_bars(tmp_path):
    part = read(tmp_path, builders.records(builders.lora_vs_full_specs(["qwen2.5-14b"])))
    bare = replace(part, stacks=())
    (first, *others) = drawings(bare, number=1)
    assert first.name == "comparison"
    axes = first.figure().axes[0]
    lengths = [bar.get_width() for container in axes.containers for bar in container.patches]
    assert lengths == pytest.approx([as_gib(cell.result_bytes) for cell in part.section.in_order()])
    assert "OOM 170.4" in [text.get_text() for text in axes.texts]
    assert [drawing.name for drawing in drawings(part, number=1)] == [
        "categories",
        *(each.name for each in others if not each.name.startswith("comparison")),
    ]


def test_a_figure_says_which_trials_it_leaves_out(tmp_path):
    records = builders.records(builders.lora_vs_full_specs())
    failed = replace(records[3], outcome=builders.failed())
    part = read(tmp_path, [failed, *(record for record in records if record is not records[3])])
    notes = {drawing.name: drawing.note for drawing in drawings(part, number=1)}
    name = f"{failed.label}, {failed.spec.model}, failed"
    assert notes["comparison"] == ""
    assert notes["savings"] == f"Not shown: 1 of 25 trials: {name}."
    assert notes["categories"] == f"Not shown: 1 of 25 trials (their categories are unknown): {name}."
    (drawing,) = [drawing for drawing in drawings(part, number=1) if drawing.name == "categories"]
    assert "Not shown: 1 of 25 trials" in drawing.figure().axes[0].get_xlabel()
    assert not_shown(part.section, []) == "Not shown: 25 of 25 trials."


def test_a_note_of_several_panels_is_below_their_heading(tmp_path):
    figure = Figure()
    figure.subplots(2, 1)
    figure.suptitle("A heading", x=0.02, ha="left")
    add_note(figure, "Not shown: 1 of 2 trials.")
    (heading,) = figure.texts
    assert (heading.get_text(), heading.get_ha()) == ("A heading\nNot shown: 1 of 2 trials.", "left")


@pytest.mark.parametrize(("characters", "columns"), [(10, 4), (25, 2), (120, 1)])
def test_a_legend_has_the_columns_that_fit(characters, columns):
    figure, axes = new_figure(8.2, 3.0)
    for number in range(4):
        axes.plot([0, 1], [0, number], label="m" * characters)
    with in_theme():
        legend_below(figure, ncols=4)
    (legend,) = figure.legends
    assert legend._ncols == columns
    assert (legend.get_window_extent().width <= figure.bbox.width) == (characters < 120)


def test_the_cards_memory_is_a_line(lora):
    section, found = lora.section, lora.stacks
    (line,) = [line for line in categories_figure(section, found).axes[0].lines if line.get_label() == "capacity"]
    assert list(line.get_xdata()) == pytest.approx([as_gib(builders.H100.memory_bytes)] * 2)


def test_a_card_far_beyond_the_bars_is_named_without_a_line(tmp_path):
    part = read(tmp_path, builders.records([builders.spec(gpu="b200-180gb")]))
    axes = categories_figure(part.section, part.stacks).axes[0]
    assert axes.get_xlim()[1] < 20
    assert "the card: 178.3 GiB →" in [text.get_text() for text in axes.texts]


def test_every_category_has_a_colour_of_its_own():
    assert set(CATEGORY_COLOURS) == set(Category)
    assert len({to_hex(colour) for colour in CATEGORY_COLOURS.values()}) == len(Category)


def test_parity_draws_estimate_over_result_and_names_the_worst(lora):
    section = lora.section
    figure = parity_figure(section, lora.accuracies)
    scatters = {c.get_label().split(":")[0]: c for c in figure.axes[0].collections if isinstance(c, PathCollection)}
    wanted = [(as_gib(c.result_bytes), as_gib(c.estimated_bytes)) for c in section.in_order()]
    assert scatters["estimate"].get_offsets().tolist() == [pytest.approx(pair) for pair in wanted]
    rules = [(as_gib(c.result_bytes), as_gib(c.rule_bytes)) for c in section.in_order()]
    assert scatters["published rule of thumb"].get_offsets().tolist() == [pytest.approx(pair) for pair in rules]
    assert "worst: -8%\nfull, qwen2.5-0.5b" in texts(figure)


def test_published_figures_are_where_they_were_printed(oxen):
    section = oxen.section
    axes = published_figure(section).axes[0]

    def marks(origin):
        return sorted(float(line.get_xdata()[0]) for line in axes.lines if line.get_label() == origin.value)

    assert marks(Origin.PUBLISHED) == [13, 15, 16, 16, 24, 25, 26, 32, 38, 41, 52, 58, 58, 69, 72]
    assert marks(Origin.SIMULATED) == pytest.approx(sorted(as_gib(cell.result_bytes) for cell in section.in_order()))
    assert [text.get_text() for text in axes.texts].count("published: OOM") == 5


def test_axes_name_their_unit_and_origin(lora, oxen):
    section, found = lora.section, lora.stacks
    assert categories_figure(section, found).axes[0].get_xlabel().endswith("GiB (simulated)")
    parity = parity_figure(section, lora.accuracies).axes[0]
    assert "GiB (simulated" in parity.get_xlabel()
    assert parity.get_ylabel().endswith("GiB (estimated)")
    assert "GiB" in published_figure(oxen.section).axes[0].get_xlabel()


def test_the_same_numbers_give_the_same_files(lora):
    section, found = lora.section, lora.stacks
    for draw in (partial(comparison_figure, section, lora.matrix), partial(categories_figure, section, found)):
        assert as_png(draw()) == as_png(draw())
        assert as_svg(draw()) == as_svg(draw())
    assert b"<dc:date>" not in as_svg(comparison_figure(section, lora.matrix))


def test_failed_cpu_and_partial_sections_have_fewer_figures(tmp_path):
    failed = [replace(record, outcome=builders.failed()) for record in builders.records(builders.lora_vs_full_specs())]
    cpu = builders.record(builders.spec(backend=Backend.CPU, gpu=None, model="tiny"), outcome=builders.on_cpu())
    for number, records in enumerate([failed, [cpu], builders.records(builders.lora_vs_full_specs())[:7]]):
        found = drawings(read(tmp_path / str(number), records), number=2)
        names = [drawing.name for drawing in found]
        assert names == (
            ["comparison-2"] if number < 2 else ["comparison-2", "categories-2", "savings-2", "estimate-2"]
        )
        for drawing in found:
            assert as_png(drawing.draw()).startswith(b"\x89PNG")


def test_many_trials_are_split_into_several_figures_and_too_many_are_left_out(tmp_path):
    def specs(seeds):
        return [builders.spec(model=model, seed=seed) for model in builders.QWEN for seed in range(seeds)]

    part = read(tmp_path / "a", builders.records(specs(20)))
    assert [len(page) for page in pages(part.stacks)] == [60, 40]
    assert max(len(page) for page in pages(part.stacks)) <= BARS_PER_FIGURE
    assert too_much(part, number=1, shown=len(drawings(part, number=1))) == ()
    many = read(tmp_path / "b", builders.records(specs(61)))
    assert "61 rows" in too_much(many, number=1, shown=len(drawings(many, number=1)))[0]


def test_a_report_of_many_sections_draws_the_first_figures_of_each(tmp_path):
    part = read(tmp_path, builders.records(builders.lora_vs_full_specs()))
    every = [drawing.name for drawing in drawings(part, number=1)]
    assert [[each.name for each in own] for own in chosen([part])] == [every]
    found = chosen([part] * 5)
    assert [len(own) for own in found] == [3, 3, 2, 2, 2]
    assert [[each.title for each in own][:2] for own in found] == [[each.title for each in found[0][:2]]] * 5
    assert sum(map(len, found)) == MOST_FIGURES
    assert too_much(part, number=2, shown=3) == (
        f"{len(every) - 3} more figure of this section is left out: a report has at most {MOST_FIGURES}. The report of "
        "a smaller grid has them.",
    )


def test_a_palette_changes_no_color_visibly():
    figure = Figure(figsize=(4, 3))
    shown = figure.add_axes((0.1, 0.1, 0.8, 0.8)).imshow([[0, 1], [2, 3]], interpolation="bilinear", cmap="Blues")
    figure.colorbar(shown)
    sink = io.BytesIO()
    figure.savefig(sink, format="png", dpi=150)
    with Image.open(io.BytesIO(as_png(figure))) as small, Image.open(sink) as whole:
        assert (small.mode, small.size) == ("P", whole.size)
        differences = ImageChops.difference(small.convert("RGB"), whole.convert("RGB"))
    assert max(ImageStat.Stat(differences).mean) < 1.0  # of 255
    assert len(as_png(figure)) < len(sink.getvalue()) / 2
