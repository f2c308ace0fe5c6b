"""Keys of trials in a frame: types, numbers, nulls, and the same values however the frame was read."""

import builders
import numpy as np
import pandas as pd
import pytest

from profiler.analysis.compared.cells import is_numeric, trial_keys
from profiler.domain.trials.trial import PLACE_KEYS, SPEC_KEYS, WORKLOAD_KEYS


def rows_of(frame):
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


@pytest.mark.parametrize("spec", [builders.spec(beta=1e-05, alloc_conf="a:1,b:2"), builders.lora(dataset="x,y")])
def test_the_values_of_a_row_are_those_of_the_specification(tmp_path, spec):
    runs = builders.tables(tmp_path, [builders.record(spec, outcome=builders.outcome(spec))]).runs
    expected = {key: getattr(spec, key) for key in SPEC_KEYS}
    with_numpy = runs.astype({"lora_rank": "float64", "steps": "float64", "bf16": object})
    for frame in (runs, with_numpy, runs.astype(object).where(runs.notna(), None)):
        (row,) = rows_of(frame)
        assert trial_keys(row) == expected


def test_counts_and_numbers_are_numeric_and_flags_are_not():
    numeric = {key for key in SPEC_KEYS if is_numeric(key)}
    assert {"lora_rank", "beta", "max_prompt_length", "steps"} <= numeric
    assert not numeric & {"bf16", "gradient_checkpointing", "model", "optim", "alloc_conf"}


@pytest.mark.parametrize("null", [None, float("nan"), np.nan, pd.NA])
def test_nulls_and_missing_columns_are_none(null):
    assert set(trial_keys({"lora_rank": null}).values()) == {None}


def test_a_configuration_leaves_out_where_a_trial_runs():
    assert set(SPEC_KEYS) - set(WORKLOAD_KEYS) == set(PLACE_KEYS) == {"backend", "gpu"}
