"""A sweep that is SIGKILLed repeatedly at random times: 50 times with `make stress`, by default 4 times."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
from witness import LIMIT_S, is_gone

from profiler.measurement.samples.host_usage import process_tree
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import read_tables
from profiler.storage.tables.schema import TABLES

KILLS = int(os.environ.get("STRESS_KILLS", "4"))
SEED = int(os.environ.get("STRESS_SEED", str(random.randrange(10**6))))
TRIALS_PER_KILL = 10
"""Enough that a sweep seldom ends before it is killed."""
LATEST_KILL_S = 1.5
"""A sweep starts its first workers within a third of this."""

TIMES = ["wall_s"]
"""Columns that may differ between two runs of the same plan."""

_SWEEP = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from witness import BY_LABEL, VERSIONS, Witness, planned
from profiler.config.options.run_options import RunOptions
from profiler.execution import run_trials
from profiler.storage.files.atomic import remove_abandoned
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import write_tables

remove_abandoned(Path({folder!r}))  # as a sweep does: one that was killed while it wrote tables leaves parts of them
store = RecordStore(Path({folder!r}))
run_trials(
    [planned(f"{{number:016x}}", "depends_on_its_name") for number in range({trials})],
    options=RunOptions(jobs=2, timeout_s=300), store=store, versions=VERSIONS, observer=Witness(), program=BY_LABEL,
)
write_tables(Path({folder!r}), store.read_all(), {{}})
"""


def _start(folder: Path) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    program = _SWEEP.format(tests=str(Path(__file__).parent), folder=str(folder), trials=KILLS * TRIALS_PER_KILL)
    return subprocess.Popen([sys.executable, "-c", program], start_new_session=True)


def _finished(folder: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in (folder / "records").glob("*.json")}


def _workers(folder: Path) -> set[int]:
    notes = folder / "notes.txt"
    return {int(line.split()[2]) for line in notes.read_text().splitlines()} if notes.exists() else set()


def _tables(folder: Path) -> dict[str, pd.DataFrame]:
    tables = read_tables(folder)
    return {name: getattr(tables, name).drop(columns=TIMES, errors="ignore") for name in TABLES}


def test_killed_at_random_times_no_record_is_lost_and_no_process_is_left(tmp_path):
    print(f"STRESS_KILLS={KILLS} STRESS_SEED={SEED}")
    random_times = random.Random(SEED)
    disturbed, undisturbed = tmp_path / "disturbed", tmp_path / "undisturbed"
    before: dict[str, bytes] = {}
    for _ in range(KILLS):
        sweep = _start(disturbed)
        time.sleep(random_times.uniform(0, LATEST_KILL_S))
        family = process_tree(sweep.pid) - {sweep.pid}
        sweep.kill()
        sweep.wait(LIMIT_S)
        assert all(is_gone(pid) for pid in family | _workers(disturbed))
        after = _finished(disturbed)
        assert before.items() <= after.items()
        assert len(RecordStore(disturbed).read_all()) == len(after)
        before = after
    assert _start(disturbed).wait(LIMIT_S) == 0
    assert before.items() <= _finished(disturbed).items()
    assert not (disturbed / "records" / "set_aside").exists()

    assert _start(undisturbed).wait(LIMIT_S) == 0
    one, other = _tables(disturbed), _tables(undisturbed)
    for name in TABLES:
        pd.testing.assert_frame_equal(one[name], other[name])
    assert len(one["runs"]) == KILLS * TRIALS_PER_KILL
    assert not list(disturbed.rglob("*.part"))
    assert not list(disturbed.rglob("*.lock"))
