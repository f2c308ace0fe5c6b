"""The page of what each GPU of `+grid=fsdp` holds."""

import pandas as pd
import pytest

from maintenance.pages.sharding_page import held_by_trials, page, sharding_figure

ROWS = [
    ("qwen2.5-0.5b", 2, "deepspeed", 2.0, "ok", 6_510_228_992, None),
    ("qwen2.5-7b", 2, "deepspeed", 2.0, "oom", 80_000_000_000, 91_462_000_000),
    ("qwen2.5-32b", 2, "deepspeed", 3.0, "failed", None, None),
]
COLUMNS = ("model", "num_processes", "distributed_type", "zero_stage", "status")
PEAKS = ("peak_allocated_bytes", "required_allocated_bytes")


@pytest.fixture(scope="module")
def found():
    return held_by_trials(pd.DataFrame(ROWS, columns=[*COLUMNS, *PEAKS]))


def test_each_trial_of_the_grid_has_a_row(found):
    text = page(found)
    assert sum(line.startswith("| qwen2.5-") for line in text.splitlines()) == len(found) == 78
    assert "| qwen2.5-0.5b | 2 | ZeRO-2 | 6.1 | 6.1 | 4.1 | 1.9 | a bucket and a copy of what is left | 0.1 |" in text
    assert "| qwen2.5-7b | 2 | ZeRO-2 | 85.2 (out of memory) | 85.2 |" in text


def test_trials_without_a_peak_are_named_with_their_status(found):
    (line,) = [line for line in page(found).splitlines() if line.startswith("Without an emulated peak: ")]
    assert "qwen2.5-32b on 2 by ZeRO-3 (failed)" in line
    assert "qwen2.5-0.5b on 1 by one GPU (not run)" in line
    assert line.count("(not run)") == 75


def test_the_figure_has_a_panel_per_model_and_a_point_per_emulated_peak(found):
    panels = {axes.get_title(loc="left"): axes for axes in sharding_figure(found).axes}
    points = {name: axes.get_lines()[0].get_ydata() for name, axes in panels.items()}
    assert len(panels) == 6
    assert [int(pd.notna(points[name]).sum()) for name in ("qwen2.5-7b", "qwen2.5-14b")] == [1, 0]
    assert len(panels["qwen2.5-7b"].patches) == 3 * 13
