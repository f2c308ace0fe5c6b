"""Trials that are kept are found under their names by every version of this program."""

from dataclasses import replace
from pathlib import Path

import pytest

from profiler.config.trials.identity import trial_id
from profiler.storage.sweep_tables.carried import stored_trials
from profiler.storage.tables.table_files import open_tables

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
FOLDERS = sorted(path.parent.name for path in REFERENCE.glob("*/runs.parquet"))


def test_there_are_kept_tables_of_both_origins():
    assert {"lora_vs_full", "fsdp"} < set(FOLDERS)


@pytest.mark.parametrize("name", FOLDERS)
def test_a_release_does_not_rename_kept_trials(name):
    trials = stored_trials(open_tables(REFERENCE / name, required=True)["runs"].rows())
    assert trials
    for version in ("0.1.0", "0.2.0", "7.0"):
        found = [trial_id(each.spec, replace(each.versions, profiler=version)) for each in trials]
        assert found == [each.trial_id for each in trials], version
