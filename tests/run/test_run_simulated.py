"""`python -m profiler.run backend=simulated` as a process of its own, which any machine can run."""

import subprocess
import sys
from pathlib import Path

import pytest

from profiler.domain.runs.outcome import Status
from profiler.storage.records.record_folder import SCRIPTS, RecordFolder

pytestmark = pytest.mark.slow

SCRIPT = str(Path(__file__).parent / "programs" / "matrices.py")


def test_a_script_runs_in_a_process_of_its_own_and_leaves_its_record(tmp_path):
    keys = ("backend=simulated", "gpu=l40s-48gb", "steps=2", f"results_dir={tmp_path}")
    command = (sys.executable, "-m", "profiler.run", *keys, SCRIPT, "--width=1024")
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("backend=simulated on NVIDIA L40S.\n")
    assert "torch's compiler is imported: False" in done.stdout
    assert "Simulated on NVIDIA L40S (44.4 GiB): matrices.py" in done.stdout
    problems = []
    (record,) = RecordFolder(tmp_path / "scripts" / "matrices", SCRIPTS, notify=problems.append).read_all()
    assert not problems
    assert record.outcome.status is Status.OK
    assert record.ending is not None
    assert record.ending.by_steps
    weight = 1024 * 1024 * 4
    peaks = {peak.phase.value: peak.peak_allocated_bytes for peak in record.outcome.peaks.phases}
    assert list(peaks) == ["load", "forward", "backward", "optimizer"]
    assert weight <= peaks["load"] < 1.1 * weight
    assert 4 * weight <= peaks["optimizer"] < 10 * weight
    assert (record.outcome.work.steps_run, record.outcome.work.parameters) == (2, 1024 * 1024)
