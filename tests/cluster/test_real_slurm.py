"""What a real Slurm says to the slots of a sweep and to the example; skipped where Slurm is not installed."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "stress"))
from slurm_node import GPU, lacking, slurm_node

from profiler.cluster.arrays.slurm import SlurmJobs, slurm_faults
from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.engines import SlurmGpus, SlurmName, SlurmTime

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(lacking()), reason="Debian's slurmctld, slurmd, slurm-client and munge are not installed"),
]
EXAMPLE = Path(__file__).parents[2] / "examples" / "machines" / "slurm.sbatch"
OPTIONS = RunOptions(slurm_time=SlurmTime(minutes=5))


@pytest.fixture(scope="module")
def node():
    with slurm_node() as environment:
        yield environment


@pytest.fixture
def slurm(node, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", node["SLURM_CONF"])


def test_what_slurm_refuses_is_refused_before_anything_starts_in_its_words(slurm):
    assert slurm_faults(OPTIONS) == []
    assert slurm_faults(replace(OPTIONS, slurm_gpus_per_node=SlurmGpus(kind=GPU, count=2))) == []
    for asked, said in (
        ({"slurm_partition": SlurmName("nope")}, "invalid partition specified: nope"),
        ({"slurm_gpus_per_node": SlurmGpus(kind="", count=9)}, "Requested node configuration is not available"),
        ({"slurm_gpus_per_node": SlurmGpus(kind="a100", count=1)}, "Requested node configuration is not available"),
    ):
        (fault,) = slurm_faults(replace(OPTIONS, **asked))
        assert said in fault.sentence()
        assert fault.sentence().startswith("engine=slurm: sbatch refuses the slots (")


def test_the_example_is_one_that_sbatch_takes(slurm):
    done = subprocess.run(["sbatch", "--test-only", EXAMPLE], capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    assert "using 8 processors on nodes" in done.stderr


def test_slots_are_found_by_name_and_cancelled(slurm, tmp_path):
    pytest.importorskip("submitit", reason="submitit is an extra: pip install 'grpo-vram[slurm]'")
    options = replace(OPTIONS, slurm_gpus_per_node=SlurmGpus(kind=GPU, count=4))  # so that one runs and one waits
    jobs = SlurmJobs(folder=tmp_path, function=lambda: time.sleep(60), options=options)
    names = jobs.submit(2)
    assert (tmp_path / "array.json").exists()
    other_process = SlurmJobs(folder=tmp_path, function=lambda: None, options=options)
    until_s = time.monotonic() + 60
    while sorted(other_process.queued().values()) != [False, True] and time.monotonic() < until_s:
        time.sleep(0.1)
    assert dict.fromkeys(other_process.queued()) == dict.fromkeys(names)
    other_process.cancel(waiting_only=True)
    assert list(other_process.queued().values()) == [True]
    other_process.cancel()
    while other_process.queued() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert other_process.queued() == {}
