"""A few signals to all processes of running sweeps (`make stress`: 1,000), and what the count finds."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # where `stress` and `cheap_worker` are

import builders
import processes
import stress

from profiler.domain.runs.outcome import Status
from profiler.storage.records.record_folder import TRIALS
from profiler.storage.stores.record_store import RecordStore

RECORDS = [
    replace(record, outcome=builders.outcome_of(status))
    for record, status in zip(
        builders.records(builders.lora_vs_full_specs(["qwen2.5-0.5b"])),
        (Status.OK, Status.OOM, Status.FAILED),
        strict=False,
    )
]
SIGNALS = 8
LIMIT_S = 300.0


def test_signals_to_any_process_lose_nothing_run_nothing_twice_and_leave_nothing():
    command = [sys.executable, str(Path(stress.__file__)), f"signals={SIGNALS}", "trials=12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    line = done.stdout.splitlines()[-1]
    assert re.search(rf"^cheap worker: {SIGNALS} signals \(.*\) to \d+ sweeps in \d+ s: ", line), line
    zeros = "0 finished trials lost, 0 trials run twice, 0 tracebacks, 0 processes left, 0 other problems"
    assert zeros in line


# ---- the count -------------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path):
    """A run that has sent no signals, and the folder of its results."""
    run = stress.Stress(stress.KINDS["cheap"], signals=0, seed=0, folder=tmp_path)
    records = tmp_path / stress.GRID / "records"
    # Written by the store, because a count that knows another spelling finds no loss at all.
    for record, name in zip(RECORDS, ("ok", "oom", "failed"), strict=True):
        RecordStore(tmp_path / stress.GRID).write(record)
        RecordStore(tmp_path / stress.GRID).path(record.trial_id).rename(records / f"{name}.json")
    run._check_records()
    assert set(run._known) == {"ok.json", "oom.json"}
    assert run.found.problems() == []
    return run, records


@pytest.mark.parametrize("name", ["ok.json", "oom.json"])
@pytest.mark.parametrize(
    "lose", [Path.unlink, lambda path: path.write_bytes(TRIALS.content(RECORDS[2]))], ids=["gone", "replaced"]
)
def test_a_finished_trial_that_is_gone_or_replaced_is_lost(made, lose, name):
    run, records = made
    (records / "failed.json").unlink()  # has no answer, so it may run again
    lose(records / name)
    run._check_records()
    assert run.found.lost == [name]
    run._check_records()
    assert run.found.lost == [name], "counted once, however often it is looked for"


def test_a_loss_in_a_running_sweep_is_found():
    """The whole tool, with a record that vanishes behind the back of the sweeps."""
    command = [sys.executable, str(Path(stress.__file__)), "signals=1", "trials=6", "plant=loss"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 finished trials lost" in done.stdout


def test_a_process_that_outlives_its_sweep_is_found_and_ended(monkeypatch):
    monkeypatch.setattr(processes, "GONE_WITHIN_S", 0.2)
    with subprocess.Popen(["sleep", "600"], env={**os.environ, processes.MARK: "left"}) as process:
        (found,) = processes.left_of("left")
        assert str(process.pid) in found
    assert processes.left_of("left") == []


@pytest.mark.parametrize("text", ["Traceback (most recent call last):\n", "x\nUnforeseen LookupError: made up.\n"])
def test_tracebacks_and_odd_exit_codes_are_found(made, tmp_path, text):
    run, _ = made
    log = tmp_path / "0.log"
    log.write_text(text)
    run._ended(stress.RunningSweep(pid=0, mark="nobody", log=log, started_s=0.0), 1)
    assert run.found.tracebacks == [text]
    assert run.found.other == [f"exit code 1: {text}"]
