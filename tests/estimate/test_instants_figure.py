"""The figure of phases has the numbers of the estimate."""

import pytest

from profiler.analytical.explanation.explained import explain
from profiler.config.models.lookup import builtin_architecture
from profiler.config.trials.specification import parse_point
from profiler.domain.memory import as_gib
from profiler.rendering.figures.sweep.categories import instants_figure


def test_the_bars_are_the_phases_and_their_parts_the_categories():
    spec = parse_point(
        {"backend": "simulated", "model": "qwen2.5-0.5b", "beta": 0.04}, architecture_of=builtin_architecture
    )
    explained = explain(spec, builtin_architecture("qwen2.5-0.5b"))
    (axes,) = instants_figure(explained).axes
    ends = {}
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends.get(row, 0.0), bar.get_x() + bar.get_width())

    assert [label.get_text() for label in axes.get_yticklabels()] == [phase.phase.value for phase in explained.phases]
    assert [ends[row] for row in sorted(ends)] == pytest.approx(
        [as_gib(phase.peak_allocated_bytes) for phase in explained.phases]
    )
    assert len(axes.patches) == sum(len(phase.shares) for phase in explained.phases)
