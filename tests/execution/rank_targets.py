"""Jobs of the ranks of a trial in `test_ranks.py`, instead of training."""

import os
import signal
import time
from pathlib import Path

import worker_targets

from profiler.domain.runs.outcome import MeasuredDetails, Outcome, Peaks, Status, TrialRecord, Verdict, Work
from profiler.execution import WorkerJob, beat
from profiler.storage.files.trial_files import snapshot_path, write_memory_snapshot
from profiler.storage.stores.record_store import RecordStore
from profiler.worker.ranks import has_ranks, run_ranks

GIB = 2**30


def _write(job: WorkerJob, status: Status = Status.OK) -> None:
    size = GIB + (3 - job.place.rank) % 3  # ranks 1 and 2 hold more than rank 0, and rank 1 most
    outcome = Outcome(
        verdict=Verdict(status=status, message="" if status is Status.OK else f"CUDA {status}"),
        peaks=Peaks(allocated_bytes=size, reserved_bytes=2 * GIB),
        work=Work(gpu_s=1.0 if job.place.gpu_uuids else None),
        measured=MeasuredDetails(gpu_uuid=next(iter(job.place.gpu_uuids), None)),
    )
    trial = job.trial
    record = TrialRecord.of(trial, versions=job.versions, outcome=outcome)
    write_memory_snapshot(snapshot_path(Path(job.store_folder), trial.trial_id), {"rank": job.place.rank})
    RecordStore(Path(job.store_folder)).write(record)


def _note(job: WorkerJob, word: str) -> None:
    with (_folder(job) / "notes.txt").open("a") as file:
        file.write(f"{job.trial.trial_id} {job.place.rank} {word}\n")


def _folder(job: WorkerJob) -> Path:
    """Return the folder of the grid, from that of a rank."""
    return Path(job.store_folder).parents[1]


def meets(job: WorkerJob) -> None:
    """Sum a number over all ranks, as training would reduce gradients."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    value = torch.tensor(float(os.environ["RANK"]) + 1)
    distributed.all_reduce(value)
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
    _note(job, f"{value.item():g} {' '.join(os.environ.get(name, 'none') for name in names)}")
    distributed.destroy_process_group()
    _write(job)


def _rank_1(job: WorkerJob) -> bool:
    """Return True for rank 1; the others wait for ever, as they would for its part of a sum."""
    if job.place.rank != 1:
        _note(job, f"waits {os.getpid()}")
        while True:
            time.sleep(600)
    return True


def runs_out(job: WorkerJob) -> None:
    if _rank_1(job):
        _write(job, Status.OOM)


def breaks(job: WorkerJob) -> None:
    if _rank_1(job):
        _write(job, Status.DEVICE_FAULT)


def raises(job: WorkerJob) -> None:
    if _rank_1(job):
        raise RuntimeError("the reason it failed")


def is_killed(job: WorkerJob) -> None:
    if _rank_1(job):
        os.kill(os.getpid(), signal.SIGKILL)


def has_no_host_memory(job: WorkerJob) -> None:
    if _rank_1(job):
        raise MemoryError


def hangs(job: WorkerJob) -> None:
    """Hang after one sign of life of each rank."""
    beat(Path(job.heartbeat_path))
    _note(job, f"waits {os.getpid()}")
    time.sleep(600)


def by_label(job: WorkerJob) -> None:
    """Call the function above that the trial's label names, once per rank; others are those of `worker_targets`."""
    if job.trial.spec.num_processes == 1:
        worker_targets.by_label(job)
    elif has_ranks(job):
        run_ranks(job, by_label)
    else:
        globals()[job.trial.label](job)
