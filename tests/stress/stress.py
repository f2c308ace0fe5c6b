"""Random signals to all processes of running sweeps: what has finished stays, and nothing runs twice or is left.

`python tests/stress/stress.py [signals=1000] [worker=cheap|real] [trials=N] [seed=N]` ends with 0 if all is well. With
`plant=loss` it removes a finished record itself, in place of signals, and has to find that.

Two sweeps share a folder. Each starts again, as a user would start it, until all trials have an answer; then both go to
a new folder. A trial that runs twice is seen by the notes of the cheap worker; with the real one, as a replaced record.

This process never starts a thread, because it forks: imports take longer than a sweep of the cheap worker.
"""

import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import cheap_worker
import psutil
from found import is_answer
from processes import GONE_WITHIN_S, MARK, exit_code, left_of, redirect_output, send_to_all

import profiler.rendering.figures.catalogue
from profiler.domain.errors import EXIT_INTERNAL, EXIT_OK, EXIT_SOME_TRIALS_FAILED, EXIT_TOO_MANY_FAILURES
from profiler.execution import WorkerProgram
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.sweep_tables.tables import read_tables
from profiler.sweep.main import main
from profiler.sweep.parts import LocalRunner, SweepParts

GRID = "lora_vs_full"
SWEEPS = 2
"""Sweeps that share a folder."""

SET_UP_S = 0.1

PARENT, WARMED, WORKER, TRACKER = "parent", "warmed process", "worker", "tracker"

SIGNALS: Mapping[str, Sequence[signal.Signals]] = {
    PARENT: (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    WARMED: (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV),
    WORKER: (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV, signal.SIGABRT),
    TRACKER: (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV),
}

ENDS = {
    EXIT_OK,
    EXIT_SOME_TRIALS_FAILED,
    EXIT_TOO_MANY_FAILURES,
    EXIT_INTERNAL,  # the warmed process was ended too often; an unforeseen error is found by its sentence
    *(128 + number for number in SIGNALS[PARENT]),
    *(-number for number in SIGNALS[PARENT]),  # for a shell the same as 128 + number
}
"""Exit codes of a disturbed sweep."""

TRACEBACK = re.compile(r"Traceback \(most recent call last\)|^Unforeseen |^Exception ignored", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What the sweeps run, and how often they are disturbed."""

    words: Sequence[str]
    trials: int
    """Trials in a folder."""
    parts: Callable[[], SweepParts]
    pause_s: float
    """Mean time between two signals."""
    weights: Mapping[str, int]


def _cheap_parts() -> SweepParts:
    profiler.rendering.figures.catalogue.drawings = lambda *_, **__: ()  # figures take seconds

    runner = LocalRunner(program=WorkerProgram(target="cheap_worker:job", preload=("cheap_worker",)))
    return SweepParts(run=lambda _, plan, trials: runner.run(plan, trials))


_KEYS = ("tuning=full", "optim=adamw_torch", "gradient_checkpointing=false", "backend=simulated")

KINDS = {
    "cheap": Kind(
        words=(*_KEYS, "model=qwen2.5-0.5b", "jobs=2"),
        trials=120,
        parts=_cheap_parts,
        pause_s=0.08,
        weights={PARENT: 2, WARMED: 2, WORKER: 5, TRACKER: 2},
    ),
    "real": Kind(
        words=(*_KEYS, "model=tiny", "jobs=1"),
        trials=10,
        parts=SweepParts,
        pause_s=1.0,
        weights={PARENT: 1, WARMED: 1, WORKER: 3, TRACKER: 1},
    ),
}


@dataclass(kw_only=True)
class Found:
    """What the run has counted; all lists are empty if all is as it must be."""

    signals: Counter[str] = field(default_factory=Counter)
    sweeps: int = 0
    ends: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)

    def line(self, *, worker: str, took_s: float, seed: int) -> str:
        """Return the result as a line."""
        to = ", ".join(f"{name} {count}" for name, count in sorted(self.signals.items()))
        return (
            f"{worker} worker: {self.signals.total():,} signals ({to}) to {self.sweeps} sweeps in {took_s:.0f} s: "
            f"{len(self.lost)} finished trials lost, {len(self.twice)} trials run twice, "
            f"{len(self.tracebacks)} tracebacks, {len(self.left)} processes left, {len(self.other)} other problems "
            f"(seed={seed})"
        )

    def problems(self) -> list[str]:
        """Return every problem as a line."""
        named = {"lost": self.lost, "twice": self.twice, "traceback": self.tracebacks, "left": self.left}
        return [f"{name}: {line}" for name, lines in {**named, "other": self.other}.items() for line in lines]


@dataclass(frozen=True, kw_only=True)
class RunningSweep:
    """A sweep in a process of its own."""

    pid: int
    mark: str
    log: Path
    started_s: float

    def targets(self) -> dict[str, list[int]]:
        """Return the processes of the sweep by their role."""
        # Before that time it has not come to its own handlers: a user's sweep would still be importing.
        is_set_up = time.monotonic() > self.started_s + SET_UP_S
        found: dict[str, list[int]] = {PARENT: [self.pid] if is_set_up else []}
        with suppress(psutil.Error):
            for child in psutil.Process(self.pid).children():
                with suppress(psutil.Error):
                    role = _role(child)
                    if role:
                        found.setdefault(role, []).append(child.pid)
                    if role == WARMED:
                        found.setdefault(WORKER, []).extend(each.pid for each in child.children())
        return {role: pids for role, pids in found.items() if pids}


def _role(process: psutil.Process) -> str:
    line = " ".join(process.cmdline())
    return (
        WARMED
        if "multiprocessing.forkserver" in line
        else TRACKER
        if "multiprocessing.resource_tracker" in line
        else ""
    )


class Stress:
    """One run of signals."""

    def __init__(self, kind: Kind, *, signals: int, seed: int, folder: Path, plants_loss: bool = False) -> None:
        self.found = Found()
        self._kind = kind
        self._signals = signals
        self._plants_loss = plants_loss
        self._random = random.Random(seed)
        self._folder = folder
        self._results = folder
        self._role: str | None = None
        self._known: dict[str, bytes] = {}
        """Finished trials, with their records."""

    def run(self) -> Found:
        """Send all signals, in as many folders as it takes."""
        number = 0
        while self.found.signals.total() < self._signals and not self.found.problems():
            number += 1
            self._results = self._folder / str(number)
            self._known = {}
            self._disturb()
            self._conclude()
            if not self.found.problems():
                shutil.rmtree(self._results)
        return self.found

    # ---- one folder --------------------------------------------------------------------------------------------------

    def _disturb(self) -> None:
        """Run sweeps in the folder until each has ended with every trial answered."""
        running = [self._start() for _ in range(SWEEPS)]
        while running:
            time.sleep(min(self._random.expovariate(1 / self._kind.pause_s), 4 * self._kind.pause_s))
            for sweep in list(running):
                code = exit_code(sweep.pid)
                if code is not None:
                    running.remove(sweep)
                    self._ended(sweep, code)
                    if code != EXIT_OK:
                        running.append(self._start())
            if running and self.found.signals.total() < self._signals:
                self._lose(running) if self._plants_loss else self._send(self._random.choice(running))

    def _lose(self, running: Sequence[RunningSweep]) -> None:
        """Remove the record of a finished trial behind the back of the sweeps."""
        self._check_records()
        if not self._known:
            return
        # Sweeps that stand still cannot run the trial again before its loss is seen: the new record would be equal.
        send_to_all((sweep.pid for sweep in running), signal.SIGSTOP)
        (self._grid / "records" / min(self._known)).unlink()
        self.found.signals["planted"] += 1
        self._check_records()
        send_to_all((sweep.pid for sweep in running), signal.SIGCONT)

    def _send(self, sweep: RunningSweep) -> None:
        """Send a signal to a process of a random role; if the sweep has none, the next sweep with one gets it."""
        if self._role is None:
            (self._role,) = self._random.choices(list(self._kind.weights), list(self._kind.weights.values()))
        pids = sweep.targets().get(self._role)
        if not pids:
            return
        with suppress(ProcessLookupError):
            os.kill(self._random.choice(pids), self._random.choice(SIGNALS[self._role]))
            self.found.signals[self._role] += 1
        self._role = None

    def _start(self) -> RunningSweep:
        self.found.sweeps += 1
        mark = f"{os.getpid()}-{self.found.sweeps}"
        log = self._folder / f"{mark}.log"
        log.touch()
        pid = os.fork()
        if pid == 0:
            os.setsid()
            os.environ[MARK] = mark
            redirect_output(log)
            raise SystemExit(main(self._words(), parts=self._kind.parts()))
        return RunningSweep(pid=pid, mark=mark, log=log, started_s=time.monotonic())

    def _words(self) -> list[str]:
        seeds = f"seed=range(1,{self._kind.trials + 1})"
        return [f"+grid={GRID}", f"results_dir={self._results}", seeds, *self._kind.words]

    def _ended(self, sweep: RunningSweep, code: int) -> None:
        """Check what an ended sweep left."""
        self.found.ends[code] += 1
        text = sweep.log.read_text(errors="replace")
        if code not in ENDS:
            self.found.other.append(f"exit code {code}: {text}")
        if TRACEBACK.search(text):
            self.found.tracebacks.append(text)
        self.found.left += [f"{process} of {sweep.mark}" for process in left_of(sweep.mark)]
        self._check_records()
        if not self.found.problems():
            sweep.log.unlink()

    def _check_records(self) -> None:
        now = {path.name: path.read_bytes() for path in self._grid.glob("records/*.json")}
        self.found.lost += [name for name, content in self._known.items() if now.get(name) != content]
        # Only what is there now: each loss is counted once, however often this runs until the trial has run again.
        self._known = {name: content for name, content in now.items() if is_answer(content)}

    @property
    def _grid(self) -> Path:
        return self._results / GRID

    def _conclude(self) -> None:
        """Run the sweep once more without signals, and check what is there at the end."""
        before = self._notes()
        sweep = self._start()
        code = exit_code(sweep.pid, within_s=GONE_WITHIN_S)
        self._ended(sweep, code if code is not None else EXIT_INTERNAL)
        if code != EXIT_OK or self._notes() != before:
            self.found.other.append(
                f"The last sweep ended with {code}, and ran {len(self._notes()) - len(before)} trials."
            )
        runs = Counter(line.split()[1] for line in before if line.startswith(cheap_worker.DONE))
        self.found.twice += [trial_id for trial_id, times in runs.items() if times > 1]
        self.found.twice += [line for line in before if line.startswith(cheap_worker.AGAIN)]
        self.found.tracebacks += [str(path) for path in self._results.rglob("*-error-*.txt")]
        self.found.other += [str(path) for path in self._results.rglob("*.part")]
        self.found.other += [str(path) for path in self._results.rglob("set_aside/*")]
        if problem := _problem_of_tables(self._grid):
            self.found.other.append(problem)

    def _notes(self) -> list[str]:
        path = self._grid / cheap_worker.NOTES
        return path.read_text().splitlines() if path.exists() else []


def _problem_of_tables(grid: Path) -> str:
    """Return what is wrong with the tables. In a process of its own: reading parquet starts threads."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            os.write(writing, _compare_tables(grid).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        problem = pipe.read()
    return problem if exit_code(pid, within_s=GONE_WITHIN_S) == 0 else f"The tables were not read. {problem}"


def _compare_tables(grid: Path) -> str:
    try:
        records, runs = RecordStore(grid).read_all(), read_tables(grid).runs
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    stored = {
        record.trial_id: (record.outcome.status.value, record.outcome.peaks.allocated_bytes) for record in records
    }
    rows = zip(runs["trial_id"], zip(runs["status"], runs["peak_allocated_bytes"], strict=True), strict=True)
    return "" if stored and dict(rows) == stored else "The tables are not those of the records."


def run(words: Sequence[str]) -> int:
    """Run the command."""
    given = dict(word.split("=", 1) for word in words)
    seed = int(given.get("seed", random.randrange(10**6)))
    name = given.get("worker", "cheap")
    kind = KINDS[name]
    kind = replace(kind, trials=int(given.get("trials", kind.trials)))
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # where workers find `cheap_worker`
    folder = Path(tempfile.mkdtemp(prefix="stress-"))
    began_s = time.monotonic()
    loses = given.get("plant") == "loss"
    signals = int(given.get("signals", "1000"))
    found = Stress(kind, signals=signals, seed=seed, folder=folder, plants_loss=loses).run()
    problems = found.problems()
    print("\n".join([*problems, f"exit codes: {dict(sorted(found.ends.items()))}"]))
    print(found.line(worker=name, took_s=time.monotonic() - began_s, seed=seed))
    if problems:
        print(f"All files are in {folder}.")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
