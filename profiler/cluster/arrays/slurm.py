"""Slurm: what it refuses, and arrays of slots that are submitted through submitit."""

import json
import logging
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from profiler.cluster.arrays.array import SlotArray
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import EXIT_INTERNAL, Fault, ProfilerError
from profiler.domain.machines.engines import Scheduler, SlurmGpus
from profiler.domain.runs.outcome import Versions
from profiler.storage.stores.objects import FolderObjects

if TYPE_CHECKING:
    from submitit.helpers import DelayedSubmission


@dataclass(kw_only=True)
class SlotJob:
    """The job of a slot. submitit pickles it, calls it on a node, and requeues it at its time limit."""

    target: str
    """Dotted name of a function that takes this job: ``"package.module:function"``."""
    words: tuple[str, ...]
    """The command line of the sweep on a node."""
    versions: Versions
    """What a node must have installed."""
    trial_versions: Versions
    """What the Python of the trials must have installed there; `python` may name another one."""
    folder: str
    """Where slots write their reports."""
    gpus: SlurmGpus | None
    """The GPUs of the slot."""
    finished: int = 0
    """How many trials it has run since it was started."""
    problem: str = ""
    """Why it is not requeued."""

    def __call__(self) -> None:
        """Run the slot."""
        self.finished = 0
        module, _, name = self.target.partition(":")
        getattr(import_module(module), name)(self)

    def checkpoint(self) -> "DelayedSubmission | None":
        """Return what to run after the time limit; None if no trial fits within it."""
        from submitit.helpers import DelayedSubmission

        if not self.finished:
            self.problem = "The time limit of the slot ended before its first trial. Raise slurm_time."
            return None
        return DelayedSubmission(self)


ANSWER_S = 9.0
"""Time within which Slurm has to answer before anything starts."""

_QUEUE_S = 60.0
"""Time limit of one look at the queue, which a busy Slurm answers slowly."""

_SIGNAL_S = 60
"""How long before its time limit a slot is asked to end and to be requeued."""

_MOST_REQUEUES = 1000
"""How often a slot is requeued at its time limit. Each time it has finished a trial."""

_ENDING = "COMPLETING"
"""The state of jobs that were cancelled and whose processes are about to end, or that have just ended."""

_DESCRIPTION = "array.json"
_JOBS = "jobs"
_NAME = "grpo-vram-"


class SubmissionError(ProfilerError):
    """Slurm took no slots."""

    exit_code = EXIT_INTERNAL


def slurm_faults(options: RunOptions, *, answer_s: float = ANSWER_S) -> list[Fault]:
    """Return why Slurm would not run the slots: it is not here, does not answer, or refuses what they ask for."""
    if shutil.which("sbatch") is None:
        problem = "needs Slurm's command sbatch, which is not on the path"
        hint = "Run the sweep on a login node of the cluster."
        return [Fault(key="engine", found=Scheduler.SLURM, problem=problem, hint=hint)]
    asked = [f"--{name.replace('_', '-')}={value}" for name, value in _parameters(options).items()]
    command = ["sbatch", "--test-only", *asked, f"--time={options.slurm_time}", "--wrap=true"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=answer_s, check=False)
    except subprocess.TimeoutExpired:
        problem = f"Slurm did not answer within {answer_s:g} s"
        return [Fault(key="engine", found=Scheduler.SLURM, problem=problem, hint="`sinfo` shows whether it runs.")]
    if done.returncode == 0:
        return []
    lines = dict.fromkeys(line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines())
    said = "; ".join(lines) or f"exit code {done.returncode}"
    hint = "Check slurm_partition, slurm_account, slurm_time and slurm_gpus_per_node."
    return [Fault(key="engine", found=Scheduler.SLURM, problem=f"sbatch refuses the slots ({said})", hint=hint)]


def open_array(
    base: Path, function_of: Callable[[Path], Callable[[], None]], options: RunOptions, key: Sequence[str]
) -> SlotArray:
    """Return the array of an earlier process that still is in the queue, or else a new one without slots.

    Args:
        base: Folder that all nodes share, for the files of arrays.
        function_of: Returns what a slot runs, for the folder of an array. Picklable.
        options: What Slurm is asked for.
        key: What an earlier array must have been started for.

    Raises:
        SubmissionError: Slurm does not answer.
    """
    for description in sorted(base.glob(f"*/{_DESCRIPTION}")):
        if _key_of(description) != list(key):
            continue
        folder = description.parent
        jobs = SlurmJobs(folder=folder, function=function_of(folder), options=options, key=tuple(key))
        states = jobs.states()
        if states is None:
            raise SubmissionError("Slurm does not say which slots are in its queue (squeue failed).")
        if alive := {name for name, state in states.items() if state != _ENDING}:
            return _array(jobs, names=alive)
        # Slots that were cancelled take a while to end, and may still write to their folder.
        if not states:
            shutil.rmtree(folder, ignore_errors=True)
    folder = base / secrets.token_hex(4)
    return _array(SlurmJobs(folder=folder, function=function_of(folder), options=options, key=tuple(key)), names=set())


def _array(jobs: "SlurmJobs", names: set[str]) -> SlotArray:
    return SlotArray(jobs=jobs, reports=FolderObjects(jobs.folder), place=str(jobs.folder), names=names)


def _key_of(description: Path) -> object:
    try:
        return json.loads(description.read_text())
    except (OSError, ValueError):
        return None


def _parameters(options: RunOptions) -> dict[str, str]:
    """Return what the slots ask for beyond their time, by Slurm's names."""
    asked = {
        "partition": options.slurm_partition,
        "account": options.slurm_account,
        "gpus_per_node": options.slurm_gpus_per_node,
    }
    return {name: str(value) for name, value in asked.items() if value is not None}


@dataclass(kw_only=True)
class SlurmJobs:
    """The jobs of one array. All have its name, by which another process finds them."""

    folder: Path
    function: Callable[[], None]
    options: RunOptions
    key: tuple[str, ...] = ()
    """What they were started for."""

    @property
    def name(self) -> str:
        """The name of the jobs."""
        return f"{_NAME}{self.folder.name}"

    def submit(self, count: int) -> Sequence[str]:
        """Submit slots.

        Raises:
            SubmissionError: Slurm refuses them.
        """
        import submitit

        # Before the jobs, so that they are found if this process ends right after they were submitted.
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / _DESCRIPTION).write_text(json.dumps(self.key))
        logging.getLogger("submitit").setLevel(logging.ERROR)
        executor = submitit.SlurmExecutor(folder=self.folder / _JOBS, max_num_timeout=_MOST_REQUEUES)
        executor.update_parameters(
            job_name=self.name,
            time=self.options.slurm_time.minutes,
            signal_delay_s=_SIGNAL_S,
            array_parallelism=count,
            stderr_to_stdout=True,
            additional_parameters={"requeue": True},
            **_parameters(self.options),
        )
        try:
            jobs = executor.submit_array([self.function] * count)
        except (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError, OSError) as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            raise SubmissionError(f"Slurm takes no slots ({said}).") from error
        return [str(job.job_id) for job in jobs]

    def queued(self) -> Mapping[str, bool] | None:
        """Return the slots that wait or run, and whether they run; None if Slurm does not answer now."""
        states = self.states()
        return None if states is None else {name: state != "PENDING" for name, state in states.items()}

    def states(self) -> Mapping[str, str] | None:
        """Return the slots in the queue with their states, in Slurm's words; None if Slurm does not answer now."""
        command = ["squeue", f"--user={os.getuid()}", f"--name={self.name}", "--array", "--noheader", "--format=%i %T"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_QUEUE_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
        found = (line.split() for line in done.stdout.splitlines())
        return {words[0]: words[1] for words in found if len(words) == len(("id", "state"))}

    def cancel(self, *, waiting_only: bool = False) -> None:
        """Cancel all slots, or only those that wait."""
        state = ["--state=PENDING"] if waiting_only else []
        command = ["scancel", f"--user={os.getuid()}", f"--name={self.name}", *state]
        subprocess.run(command, capture_output=True, timeout=_QUEUE_S, check=False)

    def forget(self) -> None:
        """Remove the folder of the array."""
        shutil.rmtree(self.folder, ignore_errors=True)
