"""What an engine adds to a trial: the time from one cheap trial to the next, for 1,000 trials that do nothing.

`python -m maintenance.engine_cost [trials=1000] [engine=local|ray] [jobs=1,2,4]` prints a line per number of slots;
`maintenance.bench` shows those of the engines that are installed. Ray starts a cluster of its own on this machine.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from maintenance.many_records import VERSIONS
from profiler.config.run_options import RunOptions
from profiler.domain.address import address_of
from profiler.domain.engine import Engine
from profiler.domain.extras import missing
from profiler.domain.outcome import Outcome, Status, TrialRecord, Verdict
from profiler.domain.sweep_state import Machines
from profiler.domain.trial import Backend, PlannedTrial, TrialSpec
from profiler.execution import WorkerJob, WorkerProgram, run_trials
from profiler.storage.records import RecordStore
from profiler.storage.shared_store import open_shared
from profiler.storage.trial_store import TrialStore

TRIALS = 1_000
JOBS = (1, 2, 4)

ALLOWED_S = 0.1
"""Most time that an engine may add to a trial, next to engine=local."""

_PROGRAM = WorkerProgram(target="maintenance.engine_cost:job", preload=("maintenance.engine_cost",))
_LEASE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class EngineCost:
    """What one engine takes per trial."""

    engine: Engine
    is_shared: bool
    """Whether the records are in a store that machines share."""
    jobs: int
    trials: int
    first_s: float
    """From the start to the first record: processes, imports, and the cluster."""
    each_s: float
    """From one record to the next."""


def job(job: WorkerJob) -> None:
    """Store a record; do nothing else."""
    outcome = Outcome(verdict=Verdict(status=Status.OK))
    RecordStore(Path(job.store_folder)).write(TrialRecord.of(job.trial, versions=job.versions, outcome=outcome))


def cost(engine: Engine, *, jobs: int, trials: int = TRIALS, is_shared: bool = False) -> EngineCost:
    """Run cheap trials on an engine, and measure."""
    plan = [
        PlannedTrial(
            trial_id=f"{number:016x}",
            grid="cheap",
            label="cheap",
            spec=TrialSpec(backend=Backend.CPU, gpu=None, model="tiny", seed=number),
        )
        for number in range(trials)
    ]
    options, watch = RunOptions(jobs=jobs), _Watch()
    with TemporaryDirectory() as folder, _store(Path(folder), is_shared=is_shared) as store:
        started_s = time.monotonic()
        if engine is Engine.LOCAL:
            run_trials(plan, options=options, store=store, versions=VERSIONS, observer=watch, program=_PROGRAM)
        else:
            _run_placed(plan, replace(options, engine=engine, ray_address="local"), store, watch)
    return EngineCost(
        engine=engine,
        is_shared=is_shared,
        jobs=jobs,
        trials=len(watch.ended_s),
        first_s=watch.ended_s[0] - started_s,
        each_s=(watch.ended_s[-1] - watch.ended_s[0]) / (len(watch.ended_s) - 1),
    )


def engines() -> tuple[Engine, ...]:
    """Return the engines that this environment can run by itself; slots of Slurm run engine=local each."""
    return (Engine.LOCAL,) if missing(("ray",)) else (Engine.LOCAL, Engine.RAY)


class _Watch:
    """An observer that notes when trials end."""

    def __init__(self) -> None:
        self.ended_s: list[float] = []

    def started(self, trial: PlannedTrial) -> None:
        """Note nothing."""

    def lost(self, trial: PlannedTrial) -> None:
        """Note nothing."""

    def machines(self, found: Machines) -> None:
        """Note nothing."""

    def waiting(self, reason: str) -> None:
        """Note nothing."""

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:  # noqa: ARG002
        """Note the time."""
        self.ended_s.append(time.monotonic())


@contextmanager
def _store(folder: Path, *, is_shared: bool) -> Iterator[TrialStore]:
    if not is_shared:
        yield RecordStore(folder)
        return
    address = address_of(f"file://{folder}/store")
    assert address is not None
    yield open_shared(address, folder / "own", lease_s=_LEASE_S, notify=print)


def _run_placed(plan: Sequence[PlannedTrial], options: RunOptions, store: TrialStore, watch: _Watch) -> None:
    from profiler.cluster.engines import reach
    from profiler.cluster.placing import PlacedSweep
    from profiler.cluster.slots import SlotKind

    cluster = reach(options)
    assert cluster is not None
    try:
        versions = cluster.nodes()[0].versions
        PlacedSweep(
            plan=plan,
            kind_of=lambda _: SlotKind(),
            slots=cluster.slots(jobs=options.jobs, versions=versions),
            options=options,
            store=store,
            versions=versions,
            observer=watch,
            program=_PROGRAM,
        ).run()
    finally:
        cluster.close()


def main(words: Sequence[str]) -> int:
    """Print the figures."""
    values = dict(word.partition("=")[::2] for word in words)
    chosen = (Engine(values["engine"]),) if "engine" in values else engines()
    for engine in chosen:
        for is_shared in (False, True):
            for jobs in [int(count) for count in values.get("jobs", "1,2,4").split(",")]:
                found = cost(engine, jobs=jobs, trials=int(values.get("trials", TRIALS)), is_shared=is_shared)
                print(found, flush=True)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
