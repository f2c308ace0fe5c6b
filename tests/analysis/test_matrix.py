"""The layout of a section: models across, or a key."""

from dataclasses import replace

import builders
import pytest

from profiler.analysis.sweep_report import SectionReport, sweep_report
from profiler.domain.runs.outcome import Status
from profiler.rendering.sweep.words import answer_sentences, column_names, corner


def part_of(folder, specs, failing=()) -> SectionReport:
    """The report of `specs`, of which those in `failing` ran out of memory and the others fit."""
    records = [
        replace(
            record, outcome=builders.changed(record.outcome, status=Status.OOM if record.spec in failing else Status.OK)
        )
        for record in builders.records(specs)
    ]
    (part,) = sweep_report(builders.tables(folder, records), grid="made_up").sections
    return part


def grid(models=("qwen2.5-0.5b",), groups=(2, 10), lengths=(256, 1024, 4096)):
    return [
        builders.spec(model=model, num_generations=group, per_device_train_batch_size=10, max_completion_length=length)
        for model in models
        for group in groups
        for length in lengths
    ]


def test_two_keys_of_one_model_are_rows_and_columns(tmp_path):
    part = part_of(tmp_path, grid())
    table = part.matrix
    assert table.rows == ("full + checkpointing, num_generations=2", "full + checkpointing, num_generations=10")
    assert table.columns == ("256", "1024", "4096")
    assert (table.key, corner(table)) == ("max_completion_length", "method; across: max_completion_length")
    assert column_names(table)["1024"] == "1024"
    # Every trial has its place.
    trial_ids = sorted(cell.trial_id for cell in part.section.cells.values())
    assert sorted(cell.trial_id for cell in table.cells.values()) == trial_ids
    cell = table.cells[table.rows[1], "1024"]
    assert cell.label == "full + checkpointing, num_generations=10, max_completion_length=1024"


@pytest.mark.parametrize(
    "specs",
    [
        grid(models=("qwen2.5-0.5b", "qwen2.5-3b")),
        grid(groups=(2,)),
        [*grid(), *(replace(spec, beta=0.5) for spec in grid())],
    ],
    ids=["models", "one key", "three keys"],
)
def test_otherwise_models_are_columns(tmp_path, specs):
    part = part_of(tmp_path, specs)
    section, table = part.section, part.matrix
    assert (table.rows, table.columns, table.cells) == (section.rows, section.models, section.cells)
    assert (table.key, corner(table)) == (None, "method")


def test_how_far_each_row_goes(tmp_path):
    failing = [spec for spec in grid() if (spec.num_generations, spec.max_completion_length) in ((2, 4096), (10, 256))]
    part = part_of(tmp_path, grid(), failing)
    assert [(limit.other_values, limit.fits, limit.reaches_end) for limit in part.answers.limits] == [
        ((2,), 1024, False),
        ((10,), None, False),
    ]
    assert answer_sentences(part) == [
        "On 79.1 GiB: full + checkpointing with num_generations=2 fits up to max_completion_length=1024; "
        "full + checkpointing with num_generations=10 fits with no max_completion_length."
    ]


def test_values_with_the_same_limit_are_described_together(tmp_path):
    part = part_of(tmp_path, grid())
    (limit,) = part.answers.limits
    assert (limit.other_values, limit.fits, limit.reaches_end) == ((2, 10), 4096, True)
    assert answer_sentences(part) == [
        "On 79.1 GiB: full + checkpointing with num_generations=2, 10 fits up to max_completion_length=4096 "
        "(the highest tried)."
    ]


def test_one_key_has_a_limit_for_each_model(tmp_path):
    models = ("qwen2.5-0.5b", "qwen2.5-3b")
    specs = [builders.spec(model=model, beta=0.5, max_completion_length=n) for model in models for n in (256, 1024)]
    part = part_of(
        tmp_path, specs, [spec for spec in specs if spec.model == models[1] and spec.max_completion_length == 1024]
    )
    assert [(limit.model, limit.key, limit.fits, limit.reaches_end) for limit in part.answers.limits] == [
        (models[0], "max_completion_length", 1024, True),
        (models[1], "max_completion_length", 256, False),
    ]
    assert (
        "On 79.1 GiB: full + checkpointing of qwen2.5-0.5b fits up to max_completion_length=1024 (the highest tried); "
        "full + checkpointing of qwen2.5-3b fits up to max_completion_length=256."
    ) in answer_sentences(part)
