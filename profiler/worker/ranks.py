"""The ranks of a trial on several GPUs: one process each, started as torchrun does, by torch's elastic launch.

Each rank runs the whole trial on a GPU of its own and stores a record of its own. The largest one is the trial's.
"""

import faulthandler
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from profiler.domain.runs.outcome import Outcome, Status, TrialRecord
from profiler.domain.trials.trial import DistributedType
from profiler.execution import Place, WorkerJob
from profiler.execution.processes.child import STDERR_LINES, last_lines, redirect_output, run_reported
from profiler.storage.files.trial_files import snapshot_path
from profiler.storage.stores.record_store import RecordStore, rank_folder
from profiler.storage.tables.run_tables import samples_path

RunJob = Callable[[WorkerJob], None]

EXIT_ENDS_ALL = 114
"""Exit code of a rank with an answer that the others cannot change: they would wait for it for ever."""

_ENDS_ALL = (Status.OOM, Status.DEVICE_FAULT)

_FIRST = (Status.DEVICE_FAULT, Status.OOM, Status.CONTENDED, Status.OK)
"""Statuses of ranks, by which of them is the trial's."""

_SHUTDOWN_S = 5
"""Time from SIGTERM to SIGKILL for ranks that wait for one that has ended."""

_RANK = "RANK"


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """The first rank that ended before the trial did."""

    rank: int
    exit_code: int
    """The negative signal number for a signal."""


def has_ranks(job: WorkerJob) -> bool:
    """Return whether the job has to be started once per rank."""
    spec = job.trial.spec
    is_launched = spec.distributed_type is not DistributedType.NO
    return is_launched and not spec.backend.names_its_card and job.place.rank is None


def run_ranks(job: WorkerJob, run: RunJob) -> None:
    """Run `job` once per rank, and store the record of the largest rank as that of the trial.

    If a rank ends without a record, this process ends as that rank did, after printing what the rank printed last.
    """
    started_s, count = time.monotonic(), job.trial.spec.num_processes
    jobs = [_job_of(job, rank) for rank in range(count)]
    for each in jobs:
        _forget(each)
    failure = _launch(jobs, run)
    found = [RecordStore(Path(each.store_folder)).find(each.trial.trial_id) for each in jobs]
    rank = rank_of_trial([record.outcome if record else None for record in found])
    record = None if rank is None else found[rank]
    if rank is None or record is None:
        _end_as(failure, jobs)
        return
    _publish(jobs[rank], record, job=job, occupied_s=(time.monotonic() - started_s) * count)
    for each in jobs:
        Path(each.stderr_path).unlink(missing_ok=True)


def rank_of_trial(outcomes: Sequence[Outcome | None]) -> int | None:
    """Return the rank whose outcome is the trial's; None if a rank failed and no other one explains it.

    A broken GPU comes first, then the largest rank that ran out of memory: ranks that wait for it have no outcome.
    """
    for status in _FIRST:
        if status not in _ENDS_ALL and None in outcomes:
            return None
        ranks = [rank for rank, outcome in enumerate(outcomes) if outcome is not None and outcome.status is status]
        if ranks:
            return max(ranks, key=lambda rank: (*_size(outcomes[rank]), -rank))
    return None


def _size(outcome: Outcome | None) -> tuple[int, int]:
    return (0, 0) if outcome is None else (outcome.peaks.allocated_bytes or 0, outcome.peaks.reserved_bytes or 0)


def _job_of(job: WorkerJob, rank: int) -> WorkerJob:
    folder = rank_folder(Path(job.store_folder), rank)
    return replace(
        job,
        store_folder=str(folder),
        stderr_path=str(RecordStore(folder).path(job.trial.trial_id).with_suffix(".stderr")),
        place=Place(gpu_uuids=job.place.gpu_uuids[rank : rank + 1], rank=rank),
    )


def _forget(job: WorkerJob) -> None:
    """Remove what an earlier run of the trial left of this rank."""
    store = RecordStore(Path(job.store_folder))
    store.remove_partial(job.trial.trial_id)
    store.path(job.trial.trial_id).unlink(missing_ok=True)
    Path(job.stderr_path).unlink(missing_ok=True)


def _launch(jobs: Sequence[WorkerJob], run: RunJob) -> RankFailure | None:
    """Run all ranks to their end, and return the first that failed; the others are ended then.

    Each rank sees its own GPU only, as device 0 (`torchrun --virtual-local-rank`).
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryDirectory() as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=len(jobs),
            run_id=jobs[0].trial.trial_id,
            # The static rendezvous starts no Python thread: this process forks its ranks.
            rdzv_backend="static",
            rdzv_endpoint=f"127.0.0.1:{_free_port()}",
            rdzv_configs={"rank": 0},
            local_addr="127.0.0.1",
            max_restarts=0,
            start_method="fork",
            logs_specs=DefaultLogsSpecs(log_dir=folder),
            virtual_local_rank=True,
            shutdown_timeout=_SHUTDOWN_S,
        )
        config.numa_options = None  # it would ask CUDA for the node of each GPU, and memory of a GPU has none
        logging.disable()  # what the launcher says of a failed rank; the rank says it itself
        try:
            elastic_launch(config, _run_rank)(list(jobs), run)
        except ChildFailedError as error:
            rank, first = error.get_first_failure()
            return RankFailure(rank=rank, exit_code=first.exitcode)
        finally:
            logging.disable(logging.NOTSET)
    return None


def _run_rank(jobs: Sequence[WorkerJob], run: RunJob) -> None:
    """Run one rank in its process."""
    job = jobs[int(os.environ[_RANK])]
    # The handler of the launcher would wait for a kernel that never ends.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    logging.disable(logging.NOTSET)
    redirect_output(job.stderr_path)
    run_reported(job, run)
    record = RecordStore(Path(job.store_folder)).find(job.trial.trial_id)
    if record is not None and record.outcome.status in _ENDS_ALL:
        sys.stderr.flush()
        # Not sys.exit: NCCL's clean-up waits for the other ranks.
        os._exit(EXIT_ENDS_ALL)


def _publish(largest: WorkerJob, record: TrialRecord, *, job: WorkerJob, occupied_s: float) -> None:
    """Store the record of a rank, with its samples and its snapshot, as that of the trial."""
    trial_id = job.trial.trial_id
    for path_of in (samples_path, snapshot_path):
        _copy(path_of(Path(largest.store_folder), trial_id), path_of(Path(job.store_folder), trial_id))
    outcome = record.outcome
    rank = f"Rank {largest.place.rank} of {job.trial.spec.num_processes}."
    message = f"{outcome.message} ({rank})" if outcome.message else ""
    gpu_s = None if outcome.work.gpu_s is None else occupied_s
    kept = replace(outcome, verdict=replace(outcome.verdict, message=message), work=replace(outcome.work, gpu_s=gpu_s))
    # Last, because it marks the trial as done.
    RecordStore(Path(job.store_folder)).write(replace(record, outcome=kept))


def _copy(source: Path, target: Path) -> None:
    if source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def _end_as(failure: RankFailure | None, jobs: Sequence[WorkerJob]) -> None:
    """Print the last lines of the rank that failed, and end this process as it ended: the parent judges that."""
    if failure is None:
        return
    lines = last_lines(Path(jobs[failure.rank].stderr_path)).splitlines()[1 - STDERR_LINES :]
    sys.stderr.write("\n".join((f"Rank {failure.rank} of {len(jobs)} failed:", *lines, "")))
    sys.stderr.flush()
    if failure.exit_code < 0:
        faulthandler.disable()  # the stack of this process explains nothing
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(signal.Signals(-failure.exit_code), signal.SIG_DFL)
        os.kill(os.getpid(), -failure.exit_code)
    os._exit(failure.exit_code)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
