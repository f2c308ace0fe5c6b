"""A trial on several GPUs in real processes: its ranks, their records, and how the end of one decides the trial."""

import pickle
import re
from dataclasses import replace

import builders
import pytest
from scripted import ScriptedNvml
from witness import LIMIT_S, VERSIONS, Witness, is_gone, on_cuda, planned

from profiler.config.options.run_options import RunOptions
from profiler.domain.runs.outcome import Outcome, Peaks, Status
from profiler.domain.trials.trial import DistributedType
from profiler.execution import GpuPool, GpuUnusableError, WorkerProgram, run_trials
from profiler.storage.files.trial_files import snapshot_path
from profiler.storage.stores.record_store import RecordStore, rank_folder
from profiler.worker.ranks import rank_of_trial

BY_LABEL = WorkerProgram(target="rank_targets:by_label", preload=("torch.distributed.launcher.api",))

DDP = {"distributed_type": DistributedType.MULTI_GPU}

ENDS = {
    "meets": (Status.OK, r"^$"),
    "runs_out": (Status.OOM, r"^CUDA oom \(Rank 1 of 2\.\)$"),
    "raises": (Status.FAILED, r"(?s)code 70\.\nRank 1 of 2 failed:\n.*Unforeseen RuntimeError: the reason it failed"),
    "is_killed": (Status.KILLED, r"ended by SIGKILL\.\nRank 1 of 2 failed:$"),
    "has_no_host_memory": (Status.HOST_OOM, r"(?s)MemoryError.*Rank 1 of 2 failed"),
    "hangs": (Status.STALLED, r"made no progress for 2 s"),
}


def on_gpus(trial_id, label, count=2):
    return on_cuda(trial_id, label, num_processes=count, **DDP)


def run(folder, plan, *uuids, witness=None, **options):
    """Run a plan of trials by `rank_targets`."""
    witness = witness or Witness()
    witness.given_up = run_trials(
        plan,
        options=RunOptions(timeout_s=LIMIT_S, **options),
        store=RecordStore(folder),
        versions=VERSIONS,
        observer=witness,
        gpus=GpuPool(uuids, nvml=ScriptedNvml(), lock_folder=folder / "locks"),
        program=BY_LABEL,
    )
    return witness


def notes(folder, trial_id):
    """Return what the ranks of a trial have noted, by rank."""
    lines = [line.split() for line in (folder / "notes.txt").read_text().splitlines()]
    return {int(words[1]): words[2:] for words in lines if words[0] == trial_id}


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return a folder with one trial per kind of end, and the witness of its sweep."""
    folder = tmp_path_factory.mktemp("ranks")
    names = [*ENDS, "meets_again"]
    plan = [on_gpus(name, name.removesuffix("_again")) for name in names]
    plan.append(replace(planned("cpu", "meets"), spec=replace(planned("cpu").spec, num_processes=3, **DDP)))
    return folder, run(folder, plan, "GPU-a", "GPU-b", stall_s=2.0)


@pytest.mark.parametrize("name", ENDS)
def test_the_end_of_a_rank_decides_the_trial(ended, name):
    folder, witness = ended
    status, said = ENDS[name]
    outcome = witness.records[name].outcome
    assert outcome.status is status
    assert re.search(said, outcome.message), outcome.message
    assert RecordStore(folder).find(name) == witness.records[name]


@pytest.mark.parametrize("name", [name for name in ENDS if name != "meets"])
def test_no_rank_outlives_its_trial(ended, name):
    found = notes(ended[0], name)
    assert found
    assert all(words[0] == "waits" and is_gone(int(words[1])) for words in found.values())


def test_each_rank_has_a_gpu_of_its_own_and_meets_the_others(ended):
    assert notes(ended[0], "meets") == {
        0: ["3", "0", "0", "2", "GPU-a"],
        1: ["3", "1", "0", "2", "GPU-b"],
    }
    assert {words[0] for words in notes(ended[0], "cpu").values()} == {"6"}


def test_the_largest_rank_is_the_trial_and_every_rank_is_kept(ended):
    folder, witness = ended
    own = [RecordStore(rank_folder(folder, rank)).find("cpu").outcome.peaks for rank in range(3)]
    assert witness.records["cpu"].outcome.peaks == own[1]
    assert own[1].allocated_bytes > own[2].allocated_bytes > own[0].allocated_bytes
    assert pickle.loads(snapshot_path(folder, "cpu").read_bytes()) == {"rank": 1}


def test_time_counts_on_every_gpu(ended):
    _, witness = ended
    works = {name: record.outcome.work for name, record in witness.records.items()}
    assert works["cpu"].gpu_s is None
    assert works["hangs"].gpu_s == pytest.approx(2 * works["hangs"].wall_s)
    assert 0 < works["meets"].gpu_s < LIMIT_S


def test_gpus_are_free_again_after_any_end(ended):
    folder, witness = ended
    assert witness.records["meets_again"].outcome.status is Status.OK
    assert witness.given_up == ()
    assert not list((folder / "locks").iterdir())


def test_a_broken_gpu_leaves_too_few_for_a_trial(tmp_path):
    witness = Witness()
    plan = [on_gpus("a", "breaks"), on_cuda("b", "ok")]
    with pytest.raises(GpuUnusableError, match=r"1 trial was not run: fewer GPUs are left than they need.*GPU GPU-b"):
        run(tmp_path, plan, "GPU-a", "GPU-b", witness=witness)
    assert RecordStore(tmp_path).find("a").outcome.status is Status.DEVICE_FAULT
    assert witness.records["b"].outcome.status is Status.OK


def test_gpus_of_one_trial_are_taken_together_or_not_at_all(tmp_path):
    pool = GpuPool(("GPU-a", "GPU-b", "GPU-c"), nvml=ScriptedNvml(), lock_folder=tmp_path)
    first = pool.take_together(2)
    assert [slot.uuid for slot in first] == ["GPU-a", "GPU-b"]
    assert pool.take_together(2) == ()
    assert pool.take_together(1)[0].uuid == "GPU-c"
    pool.give_back(first[0])
    assert pool.take_together(2) == ()
    pool.give_back(first[1])
    assert len(pool.take_together(2)) == 2


def ended_as(status, size=1):
    return Outcome(verdict=builders.outcome_of(status).verdict, peaks=Peaks(allocated_bytes=size))


@pytest.mark.parametrize(
    ("outcomes", "rank"),
    [
        ([ended_as(Status.OK, 1), ended_as(Status.OK, 2), ended_as(Status.OK, 2)], 1),
        ([None, ended_as(Status.OOM)], 1),
        ([ended_as(Status.OOM, 1), ended_as(Status.OOM, 2), None], 1),
        ([ended_as(Status.OOM), ended_as(Status.DEVICE_FAULT)], 1),
        ([ended_as(Status.OK, 2), ended_as(Status.CONTENDED, 1)], 1),
        ([ended_as(Status.OK), None], None),
        ([ended_as(Status.CONTENDED), None], None),
        ([None, None], None),
    ],
)
def test_the_rank_that_is_the_trial(outcomes, rank):
    assert rank_of_trial(outcomes) == rank
