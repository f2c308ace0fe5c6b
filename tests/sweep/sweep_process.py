"""A sweep in its own process: real workers, tables and pages; only the job of the workers is a fake.

`python sweep_process.py [break=run|tables] WORD...`. Trials of seed 0 end immediately, others hang.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import builders

from profiler.execution import WorkerJob, WorkerProgram
from profiler.storage.records.versioned import installed_versions
from profiler.storage.stores.record_store import RecordStore
from profiler.sweep.main import main
from profiler.sweep.parts import LocalRunner, SweepParts


def job(job: WorkerJob) -> None:
    """The job of a worker."""
    folder = Path(job.store_folder)
    if job.trial.spec.seed:
        (folder / f"{job.trial.trial_id}.hangs").write_text(f"{os.getpid()}")
        time.sleep(3600)
    outcome = builders.outcome(replace(job.trial.spec, model="qwen2.5-0.5b"))
    record = builders.record(job.trial.spec, outcome=outcome, label=job.trial.label, versions=job.versions)
    RecordStore(folder).write(replace(record, trial_id=job.trial.trial_id))


def _run(runner, plan, trials):
    interpreter_of = runner.program.interpreter_of
    program = WorkerProgram(target="sweep_process:job", interpreter_of=interpreter_of)
    found = LocalRunner(program=program).run(plan, trials)
    if "break=run" in sys.argv:
        raise LookupError("this was unforeseen")
    return found


def _write_tables(*positional, **how):
    if "break=tables" in sys.argv:
        raise LookupError("this was unforeseen")
    return SweepParts().write_tables(*positional, **how)


def run_sweep() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("break=")]
    parts = SweepParts(run=_run, write_tables=_write_tables, installed_versions=installed_versions)
    sys.exit(main(words, parts=parts))


if __name__ == "__main__":
    run_sweep()
