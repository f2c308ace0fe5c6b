"""One machine of a sweep that several share: `python shared_machine.py NAME ADDRESS NOTES WORD...`.

Its worker takes milliseconds, needs no torch, and notes in a file when it began and ended each run, and whether the
result of the trial was in the store before.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import cheap_worker
from found import is_answer

import profiler.rendering.figures.catalogue
import profiler.sweep.slot
from profiler.cluster.arrays.slurm import SlotJob
from profiler.domain.machines.engines import address_of
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import OpenTrials, WorkerJob, WorkerProgram
from profiler.storage.stores import leases
from profiler.storage.stores.shared_store import _objects
from profiler.sweep.main import main
from profiler.sweep.parts import LocalRunner, Runner, SweepParts

NOTES = "GRPO_VRAM_PROFILER_STRESS_NOTES"
STORE = "GRPO_VRAM_PROFILER_STRESS_STORE"
GATE = "GRPO_VRAM_PROFILER_STRESS_GATE"
"""A file that trials wait for once a trial has ended; not set: they wait for nothing."""

RAN, AGAIN = "ran", "again"


def job(job: WorkerJob) -> None:
    """Run a trial of the cheap worker and note it."""
    address = address_of(os.environ[STORE])
    assert address is not None
    is_stored = is_answer(_objects(address).read(f"records/{job.trial.trial_id}.json") or b"")
    started_s = time.time()
    _wait_at_the_gate()
    cheap_worker.job(job)
    word = AGAIN if is_stored else RAN
    with Path(os.environ[NOTES]).open("a") as file:
        file.write(f"{word} {job.trial.trial_id} {started_s} {time.time()} {os.getpid()}\n")


def _wait_at_the_gate() -> None:
    gate, until_s = os.environ.get(GATE), time.monotonic() + 120
    while gate and Path(os.environ[NOTES]).read_text() and not Path(gate).exists() and time.monotonic() < until_s:
        time.sleep(0.05)


def _run(runner: Runner, plan: Sequence[PlannedTrial], trials: OpenTrials) -> Sequence[str]:
    if isinstance(runner, LocalRunner):
        program = WorkerProgram(target="shared_machine:job", preload=("shared_machine",))
        runner = LocalRunner(program=program)
    return runner.run(plan, trials)


def slot(job: SlotJob) -> None:
    """Run a slot of engine=slurm, as if it were on a machine of its own."""
    leases.host_place = lambda: os.environ.get("SLURM_JOB_ID", str(os.getpid()))
    profiler.sweep.slot.run(job, SweepParts(run=_run))


if __name__ == "__main__":
    name, address, notes, *words = sys.argv[1:]
    os.environ |= {NOTES: notes, STORE: f"{address}/lora_vs_full"}
    leases.host_place = lambda: name  # as if it were a machine of its own
    profiler.rendering.figures.catalogue.drawings = lambda *_, **__: ()  # figures take seconds
    parts = SweepParts(run=_run, slot="shared_machine:slot")
    sys.exit(main(["+grid=lora_vs_full", f"results_dir={address}", *words], parts=parts))
