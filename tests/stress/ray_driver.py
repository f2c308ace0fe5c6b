"""The driver of a sweep on a Ray cluster, with a cheap worker: `python ray_driver.py WORD...`."""

import os
import re
import sys
import time
from pathlib import Path

import cheap_worker

import profiler.rendering.figures.catalogue
from profiler.cluster.placing import PlacedSweep
from profiler.execution import WorkerJob, WorkerProgram
from profiler.sweep.main import main
from profiler.sweep.parts import SweepParts

RECORDS = "GRPO_VRAM_PROFILER_STRESS_RECORDS"
NOTES = "GRPO_VRAM_PROFILER_STRESS_NOTES"
RAN, AGAIN = "ran", "again"


def is_answer(content: bytes) -> bool:
    """Return whether a file is the record of a trial that has an answer."""
    return re.search(rb'"status": ?"ok"', content) is not None


def job(job: WorkerJob) -> None:
    """Run a trial of the cheap worker and note it, and whether the driver had its record before."""
    record = Path(os.environ[RECORDS]) / f"{job.trial.trial_id}.json"
    word = AGAIN if record.exists() and is_answer(record.read_bytes()) else RAN
    started_s = time.time()
    cheap_worker.job(job)
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(f"{word} {job.trial.trial_id} {started_s} {time.time()} {os.getpid()}\n")


def run_placed(plan: object, *, cluster: object, options: object, versions: object, **how: object) -> object:
    """Run a plan with the worker of this module."""
    program = WorkerProgram(target="ray_driver:job", preload=("ray_driver",))
    slots = cluster.slots(jobs=options.jobs, versions=versions)
    return PlacedSweep(plan=plan, slots=slots, options=options, versions=versions, program=program, **how).run()


if __name__ == "__main__":
    profiler.rendering.figures.catalogue.drawings = lambda *_, **__: ()  # figures take seconds
    sys.exit(main(sys.argv[1:], parts=SweepParts(run_placed=run_placed)))
