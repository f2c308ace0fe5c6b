"""The driver of a sweep on a Ray cluster, with a cheap worker: `python ray_driver.py WORD...`."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cheap_worker
from found import is_answer

import profiler.rendering.figures.catalogue
from profiler.cluster.slots import Cluster
from profiler.config.options.run_options import RunOptions
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import OpenTrials, WorkerJob, WorkerProgram
from profiler.sweep import parts
from profiler.sweep.main import main
from profiler.sweep.parts import ClusterRunner, SweepParts

NOTES = "notes.txt"
RECORDS = "lora_vs_full/records"
"""Both in the folder of results, which nodes of this machine see."""
RAN, AGAIN = "ran", "again"
ON_SCRIPTED_GPUS = "GRPO_VRAM_PROFILER_STRESS_GPUS"
"""Set if nodes declare GPUs that this machine does not have."""


def job(job: WorkerJob) -> None:
    """Run a trial of the cheap worker and note it, and whether the driver had its record before."""
    results = Path(job.options.results_dir)
    record = results / RECORDS / f"{job.trial.trial_id}.json"
    word = AGAIN if record.exists() and is_answer(record.read_bytes()) else RAN
    started_s = time.time()
    cheap_worker.job(job)
    with (results / NOTES).open("a") as file:
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES") or "none"
        file.write(f"{word} {job.trial.trial_id} {started_s} {time.time()} {gpu}\n")


def run(runner: ClusterRunner, plan: Sequence[PlannedTrial], trials: OpenTrials) -> Sequence[str]:
    """Run a plan with the worker of this module."""
    program = WorkerProgram(target="ray_driver:job", preload=("ray_driver",))
    return replace(runner, program=program).run(plan, trials)


def reach(options: RunOptions) -> Cluster | None:
    """Reach the cluster, with slots that have GPUs if that is wanted."""
    if ON_SCRIPTED_GPUS not in os.environ:
        return parts.reach(options)
    from ray_gpus import ScriptedSlot

    from profiler.cluster.ray_cluster import reach_ray

    return reach_ray(options.ray_address, jobs=options.jobs, slot=ScriptedSlot)


if __name__ == "__main__":
    profiler.rendering.figures.catalogue.drawings = lambda *_, **__: ()  # figures take seconds
    sys.exit(main(sys.argv[1:], parts=SweepParts(run=run, reach=reach)))
