"""Jobs of the workers in these tests, instead of training."""

import ctypes
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Thread

from profiler.domain.memory import Phase
from profiler.domain.runs.outcome import Outcome, Peaks, Status, TrialRecord, Verdict, Work
from profiler.domain.runs.readings import PhasePeak
from profiler.execution import EndOfSweepError, WorkerJob, beat
from profiler.storage.stores.record_store import RecordStore


def _write(job: WorkerJob, status: Status = Status.OK, *, outcome: Outcome | None = None) -> None:
    record = TrialRecord.of(
        job.trial,
        versions=job.versions,
        outcome=outcome or _outcome(status, os.getpid()),
    )
    RecordStore(Path(job.store_folder)).write(record)


def _outcome(status: Status, allocated_bytes: int) -> Outcome:
    return Outcome(
        verdict=Verdict(status=status, message="by the worker"), peaks=Peaks(allocated_bytes=allocated_bytes)
    )


def _note(job: WorkerJob, word: str) -> None:
    with (Path(job.store_folder) / "notes.txt").open("a") as file:
        file.write(f"{word} {job.trial.trial_id} {os.getpid()}\n")


def ok(job: WorkerJob) -> None:
    _note(job, "ran")
    print(f"main module is {sys.modules['__main__'].__dict__.get('__file__')}")
    _write(job)


def answers_siblings(job: WorkerJob) -> None:
    """Answer siblings, as a simulated run does, except those with the label "forgotten"."""
    _note(job, "ran")
    _write(job)
    for sibling in job.siblings:
        if sibling.label != "forgotten":
            _write(replace(job, trial=sibling))


forgotten = answers_siblings


def unfit(job: WorkerJob) -> None:
    raise EndOfSweepError("No worker can do it.")


def slow_ok(job: WorkerJob) -> None:
    _note(job, "ran")
    time.sleep(0.5)
    _write(job)
    _note(job, "done")


def waits_for_go(job: WorkerJob) -> None:
    """Note the id of the warmed process, and write the record when the test allows it."""
    folder = Path(job.store_folder)
    (folder / f"{job.trial.trial_id}.warm").write_text(f"{os.getppid()}")
    _note(job, "ran")
    while not (folder / "go").exists():
        time.sleep(0.02)
    _write(job)


def dies_with_the_warmed_process(job: WorkerJob) -> None:
    """Kill the warmed process and this one in the first run; in the second run write the record.

    Not before the sweep knows that it runs: a worker that never started is none that is lost.
    """
    folder = Path(job.store_folder)
    again = (folder / "notes.txt").exists()
    _note(job, "ran")
    if again:
        _write(job)
        return
    while not (folder / "go").exists():
        time.sleep(0.02)
    warmed = os.getppid()
    os.kill(warmed, signal.SIGKILL)
    while os.getppid() == warmed:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)


def no_record(job: WorkerJob) -> None:
    pass


def raises(job: WorkerJob) -> None:
    raise RuntimeError("the reason it failed")


def exits_with_3(job: WorkerJob) -> None:
    print("some last words", file=sys.stderr)
    sys.exit(3)


def exits_hard(job: WorkerJob) -> None:
    os.write(2, b"hard words\n")
    os._exit(4)


def segfaults(job: WorkerJob) -> None:
    ctypes.string_at(0)


def dies_while_writing(job: WorkerJob) -> None:
    os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    _write(job)


def hangs_while_writing(job: WorkerJob) -> None:
    def hang(_: int) -> None:
        (Path(job.store_folder) / "pids.txt").write_text(f"{os.getpid()}")
        time.sleep(600)

    os.fsync = hang
    _write(job)


def killed(job: WorkerJob) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def interrupts_itself(job: WorkerJob) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)


def host_out_of_memory(job: WorkerJob) -> None:
    raise MemoryError


def ok_then_segfault(job: WorkerJob) -> None:
    _write(job, Status.OOM)
    ctypes.string_at(0)


def hangs_with_grandchildren(job: WorkerJob) -> None:
    """Hang, and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (Path(job.store_folder) / "pids.txt").write_text(f"{os.getpid()} {grandchild.pid}")
    time.sleep(600)


def leaves_a_grandchild(job: WorkerJob) -> None:
    grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (Path(job.store_folder) / "pids.txt").write_text(f"{grandchild.pid}")
    _write(job)


def notes_gpu(job: WorkerJob) -> None:
    """Note the GPU that CUDA would see, at the start and at the end."""
    _note(job, f"began-on-{os.environ.get('CUDA_VISIBLE_DEVICES')}")
    time.sleep(0.4)
    _write(job)
    _note(job, f"ended-on-{os.environ.get('CUDA_VISIBLE_DEVICES')}")


def notes_its_python(job: WorkerJob) -> None:
    packages = next((Path(each).name for each in sys.path if "packages-" in Path(each).name), "none")
    words = (job.trial.trial_id, Path(sys.executable).name, os.environ.get("WHICH", "none"), packages)
    with (Path(job.store_folder) / "pythons.txt").open("a") as file:
        file.write(f"{' '.join(words)}\n")
    _write(job)


def runs_out(job: WorkerJob) -> None:
    _note(job, "ran")
    _write(job, Status.OOM)


def device_fault(job: WorkerJob) -> None:
    """Report a fault of the device on one GPU only."""
    broken = os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-bad"
    _note(job, f"ran-on-{os.environ['CUDA_VISIBLE_DEVICES']}")
    _write(job, Status.DEVICE_FAULT if broken else Status.OK)


def contended(job: WorkerJob) -> None:
    _write(job, Status.CONTENDED)


def beats_and_hangs(job: WorkerJob) -> None:
    """Hang after one heartbeat, while another thread continues."""
    (Path(job.store_folder) / "pids.txt").write_text(f"{os.getpid()}")
    beat(Path(job.heartbeat_path))
    Thread(target=lambda: [time.sleep(0.01) for _ in range(100_000)], daemon=True).start()
    time.sleep(600)


def beats_on(job: WorkerJob) -> None:
    """Run for longer than `stall_s`, which is far longer than any pause between two heartbeats."""
    for _ in range(90):
        beat(Path(job.heartbeat_path))
        time.sleep(0.1)
    _write(job)


def never_beats(job: WorkerJob) -> None:
    time.sleep(1.0)
    _write(job)


def notes_oom_score(job: WorkerJob) -> None:
    (Path(job.store_folder) / "score.txt").write_text(Path("/proc/self/oom_score_adj").read_text())
    _write(job)


def cannot_be_killed(job: WorkerJob) -> None:
    """Hang, and ignore the end of the parent; the test withholds signals."""
    fcntl.fcntl(multiprocessing.parent_process().sentinel, fcntl.F_SETFL, 0)
    (Path(job.store_folder) / "pids.txt").write_text(f"{os.getpid()}")
    time.sleep(600)


def depends_on_its_name(job: WorkerJob) -> None:
    """Run a short trial whose results depend only on its name, except for the time."""
    started_s = time.monotonic()
    _note(job, "ran")
    number = int(job.trial.trial_id, 16)
    time.sleep(0.005 * (number % 5))
    peak = PhasePeak(phase=Phase.FORWARD, peak_allocated_bytes=number * 1000, peak_reserved_bytes=number * 2000)
    outcome = Outcome(
        verdict=Verdict(status=Status.OOM if number % 3 == 0 else Status.OK),
        work=Work(wall_s=time.monotonic() - started_s),
        peaks=Peaks(allocated_bytes=number * 1000, phases=(peak,)),
    )
    _write(job, outcome=outcome)


def by_label(job: WorkerJob) -> None:
    """Call the function above that the trial's label names."""
    globals()[job.trial.label](job)
