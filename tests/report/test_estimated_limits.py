"""Limit lines of cards from estimates between the trials."""

from dataclasses import replace

import builders
import numpy as np
import pytest

from profiler.analysis.compared.axes import surfaces
from profiler.analysis.compared.comparison import compare
from profiler.analysis.findings.answers import LIMIT_CARDS, EstimatedLimit, card_limits
from profiler.analytical.explanation.explained import card_verdict
from profiler.config.models.architecture import read_architecture
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.models.builtin_models import find_builtin
from profiler.domain.trials.kernels import missing_kernel
from profiler.domain.trials.trial import Attention
from profiler.rendering.figures.heat import heat_figure
from profiler.report.estimated_limits import POINTS, estimated_limits

GROUPS, LENGTHS = (2, 4, 8), (256, 4096, 16384)


def specs(**changes):
    return [
        builders.spec(
            **{
                "num_generations": group,
                "per_device_train_batch_size": group,
                "max_completion_length": length,
                "model": "qwen2.5-3b",
                **changes,
            }
        )
        for group in GROUPS
        for length in LENGTHS
    ]


def surface_of(folder, found):
    (section,) = compare(builders.tables(folder, builders.records(found)).runs)
    return section, surfaces(section, [("num_generations", "max_completion_length")])[0]


def test_each_point_is_the_verdict_of_the_trial_with_its_values(tmp_path):
    _, surface = surface_of(tmp_path, specs())
    limits = estimated_limits(surface)
    assert [limit.gpu for limit in limits] == list(LIMIT_CARDS)
    assert 0.9 * POINTS < sum(limit.left_bytes.size for limit in limits) <= POINTS
    architecture = read_architecture(find_builtin("qwen2.5-3b").config, model="qwen2.5-3b")
    for limit in limits[:2]:
        groups, lengths = limit.values
        assert (groups[0], groups[-1], lengths[0], lengths[-1]) == (2, 8, 256, 16384)
        for row, column in ((0, 0), (3, 700), (6, len(lengths) - 1)):
            group, length = int(groups[row]), int(lengths[column])
            trial = builders.spec(
                num_generations=group,
                per_device_train_batch_size=group,
                max_completion_length=length,
                model="qwen2.5-3b",
            )
            assert limit.left_bytes[row, column] == card_verdict(trial, architecture, limit.gpu).left_bytes


def changed(surface, change):
    """The surface with `change(field)` in the keys of each field."""
    cells = {field: replace(cell, keys={**cell.keys, **change(field)}) for field, cell in surface.cells.items()}
    return replace(surface, cells=cells, model=str(cells[GROUPS[0], LENGTHS[0]].keys["model"]))


@pytest.mark.parametrize(
    "change",
    [
        {"model": "/no/longer/there"},
        {"max_prompt_length": 2**20},
    ],
)
def test_there_is_no_line_without_a_closed_form(tmp_path, change):
    _, surface = surface_of(tmp_path, specs())
    assert estimated_limits(surface)
    assert estimated_limits(changed(surface, lambda _: change)) == ()


def test_there_is_no_line_if_another_key_varies_by_itself(tmp_path):
    _, surface = surface_of(tmp_path, specs())
    assert estimated_limits(changed(surface, lambda field: {"max_prompt_length": 100 * field[0]}))
    assert estimated_limits(changed(surface, lambda field: {"max_prompt_length": 100 + field[0]})) == ()


def test_there_is_no_line_over_numbers_of_micro_batches(tmp_path):
    _, surface = surface_of(tmp_path, specs())
    keys = ("num_generations", "steps_per_generation")
    assert estimated_limits(replace(surface, keys=keys)) == ()


def test_no_trial_misses_a_kernel_on_the_cards_with_a_line():
    for spec in specs(attn_implementation=Attention.FLASH_ATTENTION_2) + specs(bf16=True):
        assert all(missing_kernel(spec, gpu.chip) is None for gpu in LIMIT_CARDS)


def test_the_line_is_where_nothing_is_left(tmp_path):
    section, surface = surface_of(tmp_path, specs())
    # By hand: free memory falls by 1 per completion, and is 0 at 4, the middle of the three fields.
    groups, lengths = np.arange(2, 9), np.array(LENGTHS)
    left = np.repeat(4 - groups[:, None], len(lengths), axis=1)
    limit = EstimatedLimit(gpu=KNOWN_GPUS["h100-80gb"], values=(groups, lengths), left_bytes=left)
    axes = heat_figure(section, surface, card_limits(section, surface), [limit]).axes[0]
    paths = [path for line in axes.collections for path in line.get_paths()]
    assert paths
    assert all(x == pytest.approx(1) for path in paths for x, _ in path.vertices)
    without = EstimatedLimit(gpu=limit.gpu, values=limit.values, left_bytes=left - 100)
    assert not heat_figure(section, surface, card_limits(section, surface), [without]).axes[0].collections
