"""How a section is laid out: models across, or a key."""

from dataclasses import replace

import builders
import pytest

from profiler.analysis.answers import limits
from profiler.analysis.comparison import Section, compare
from profiler.analysis.matrix import matrix
from profiler.domain.outcome import Status
from profiler.rendering.wording import answer_sentences, column_names, corner


def section_of(folder, specs):
    (section,) = compare(builders.tables(folder, builders.records(specs)).runs)
    return section


def grid(models=("qwen2.5-0.5b",), groups=(2, 10), lengths=(256, 1024, 4096)):
    return [
        builders.spec(model=model, num_generations=group, per_device_train_batch_size=10, max_completion_length=length)
        for model in models
        for group in groups
        for length in lengths
    ]


@pytest.fixture
def two_keys(tmp_path) -> Section:
    return section_of(tmp_path, grid())


def with_status(section: Section, statuses) -> Section:
    cells = {place: replace(cell, status=statuses.get(place[0], Status.OK)) for place, cell in section.cells.items()}
    return replace(section, cells=cells)


def test_two_keys_of_one_model_stand_against_each_other(two_keys):
    table = matrix(two_keys)
    assert table.rows == ("full + checkpointing, num_generations=2", "full + checkpointing, num_generations=10")
    assert table.columns == ("256", "1024", "4096")
    assert (table.key, corner(table)) == ("max_completion_length", "method; across: max_completion_length")
    assert column_names(table)["1024"] == "1024"
    # Every trial has its place.
    assert sorted(cell.trial_id for cell in table.cells.values()) == sorted(
        cell.trial_id for cell in two_keys.cells.values()
    )
    (label,) = (label for (label, _), cell in two_keys.cells.items() if cell is table.cells[table.rows[1], "1024"])
    assert label == "full + checkpointing, num_generations=10, max_completion_length=1024"


@pytest.mark.parametrize(
    "specs",
    [
        grid(models=("qwen2.5-0.5b", "qwen2.5-3b")),
        grid(groups=(2,)),
        [*grid(), *(replace(spec, beta=0.5) for spec in grid())],
    ],
    ids=["models", "one key", "three keys"],
)
def test_else_models_stand_across(tmp_path, specs):
    section = section_of(tmp_path, specs)
    table = matrix(section)
    assert (table.rows, table.columns, table.cells) == (section.rows, section.models, section.cells)
    assert (table.key, corner(table)) == (None, "method")
    assert limits(section) == ()


def test_how_far_each_row_goes(two_keys):
    label = "full + checkpointing, num_generations={}, max_completion_length={}"
    ran_out = {label.format(2, 4096): Status.OOM, label.format(10, 256): Status.OOM}
    found = limits(with_status(two_keys, ran_out))
    assert [(limit.values, limit.fits, limit.reaches_end) for limit in found] == [
        (("2",), "1024", False),
        (("10",), None, False),
    ]
    assert answer_sentences(with_status(two_keys, ran_out)) == [
        "On 79.1 GiB: full + checkpointing with num_generations=2 fits up to max_completion_length=1024; "
        "full + checkpointing with num_generations=10 fits with no max_completion_length."
    ]


def test_values_that_go_as_far_are_told_together(two_keys):
    (limit,) = limits(with_status(two_keys, {}))
    assert (limit.values, limit.fits, limit.reaches_end) == (("2", "10"), "4096", True)
    assert answer_sentences(with_status(two_keys, {})) == [
        "On 79.1 GiB: full + checkpointing with num_generations=2, 10 fits up to max_completion_length=4096 "
        "(the highest tried)."
    ]
