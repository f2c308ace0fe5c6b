"""The time from one cheap trial to the next, by engine, store, nodes and slots."""

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from maintenance.benchmarks.many_records import VERSIONS
from maintenance.engine_cost.cheap import PROGRAM, CheapSlot, Unseen, cheap_plan, shared_store
from profiler.config.options.run_options import RunOptions
from profiler.domain.machines.engines import Scheduler
from profiler.domain.machines.extras import missing
from profiler.domain.runs.outcome import TrialRecord
from profiler.domain.trials.trial import PlannedTrial
from profiler.execution import OpenTrials, run_trials
from profiler.storage.files.trial_files import RECORDS
from profiler.storage.stores.record_store import RecordStore
from profiler.storage.stores.trial_store import TrialStore

ALLOWED_S = 0.1
"""Most time that an engine may add to a trial, next to engine=local."""

_MIB = 2**20
_OBJECT_STORE_BYTES = 100 * _MIB


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where cheap trials run."""

    engine: Scheduler
    is_shared: bool = False
    """Whether the records are in a store that machines share."""
    nodes: int | None = None
    """Nodes of Ray on this machine; None for one that the sweep itself starts."""
    jobs: int


@dataclass(frozen=True, kw_only=True)
class EngineCost:
    """What one engine takes per trial."""

    setting: Setting
    trials: int
    first_s: float
    """From the start to the first record: processes, imports, and the cluster."""
    each_s: float
    """From one record to the next."""


def cost(setting: Setting, *, trials: int) -> EngineCost:
    """Run cheap trials, at least two, and measure."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        started_s = time.time()
        ended_s = (_on_slurm if setting.engine is Scheduler.SLURM else _from_here)(setting, folder, trials)
    return EngineCost(
        setting=setting,
        trials=len(ended_s),
        first_s=ended_s[0] - started_s,
        each_s=(ended_s[-1] - ended_s[0]) / (len(ended_s) - 1),
    )


def engines() -> tuple[Scheduler, ...]:
    """Return the engines that are at hand: Ray where it is installed, Slurm where it answers."""
    from profiler.cluster.arrays.slurm import slurm_faults

    found = [Scheduler.LOCAL]
    if not missing(("ray",)):
        found.append(Scheduler.RAY)
    if shutil.which("sbatch") and not missing(("submitit",)) and not slurm_faults(RunOptions(engine=Scheduler.SLURM)):
        found.append(Scheduler.SLURM)
    return tuple(found)


def settings(
    chosen: Sequence[Scheduler], *, jobs: Sequence[int], nodes: Sequence[int], shared: Sequence[bool] = (False, True)
) -> Iterator[Setting]:
    """Return what is measured: each engine in each store with each number of slots, and Ray on several nodes.

    Slots of Slurm always share their store.
    """
    for engine in dict.fromkeys((Scheduler.LOCAL, *chosen)):
        for is_shared in shared:
            if is_shared or engine is not Scheduler.SLURM:
                yield from (Setting(engine=engine, is_shared=is_shared, jobs=count) for count in jobs)
    if Scheduler.RAY in chosen:
        for count in nodes:
            yield from (Setting(engine=Scheduler.RAY, nodes=count, jobs=slots) for slots in jobs if slots >= count)


def where(setting: Setting) -> str:
    """Return where trials run, as a line shows it."""
    nodes = "" if setting.nodes is None else f", {setting.nodes} node{'s' * (setting.nodes != 1)}"
    store = ", shared store" * setting.is_shared
    return f"engine={setting.engine}{store}{nodes}, {setting.jobs} slot{'s' * (setting.jobs != 1)}"


def added_s(found: EngineCost, every: Sequence[EngineCost]) -> float | None:
    """Return what an engine adds to engine=local with the same slots and store; None for engine=local itself."""
    setting = found.setting
    alone = Setting(engine=Scheduler.LOCAL, is_shared=setting.is_shared, jobs=setting.jobs)
    if setting == alone:
        return None
    return next((found.each_s - each.each_s for each in every if each.setting == alone), None)


class _Watch(Unseen):
    """An observer that notes when trials end."""

    def __init__(self) -> None:
        self.ended_s: list[float] = []

    def finished(self, trial: PlannedTrial, record: TrialRecord) -> None:  # noqa: ARG002
        """Note the time."""
        self.ended_s.append(time.time())


def _from_here(setting: Setting, folder: Path, trials: int) -> Sequence[float]:
    """Run trials with this process as their driver, and return when it knew that they had ended."""
    store = shared_store(folder / "store", folder / "own") if setting.is_shared else RecordStore(folder / "own")
    plan, watch, options = cheap_plan(trials), _Watch(), RunOptions(jobs=setting.jobs)
    if setting.engine is Scheduler.LOCAL:
        run_trials(plan, options=options, store=store, versions=VERSIONS, observer=watch, program=PROGRAM)
        return watch.ended_s
    with _ray_nodes(setting.nodes, cores=-(-setting.jobs // (setting.nodes or 1))) as address:
        _run_on_ray(plan, replace(options, engine=setting.engine, ray_address=address), store, watch)
    return watch.ended_s


@contextmanager
def _ray_nodes(count: int | None, *, cores: int) -> Iterator[str]:
    """Start a cluster of Ray with this many nodes during the block, which gets its address.

    Args:
        count: Nodes next to a head without cores; None for a cluster that the sweep starts by itself.
        cores: Of each node.
    """
    if count is None:
        yield "local"
        return
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read at import
    from ray.cluster_utils import Cluster

    common = {"object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    try:
        for _ in range(count):
            cluster.add_node(num_cpus=cores, **common)
        yield cluster.address
    finally:
        cluster.shutdown()


def _run_on_ray(plan: Sequence[PlannedTrial], options: RunOptions, store: TrialStore, watch: _Watch) -> None:
    from profiler.cluster.placing import run_placed
    from profiler.cluster.slots import SlotKind, reach

    cluster = reach(options)
    assert cluster is not None
    try:
        versions = cluster.nodes()[0].versions
        run_placed(
            plan,
            kind_of=lambda _: SlotKind(),
            slots=cluster.slots(jobs=options.jobs, versions=versions),
            trials=OpenTrials(options=options, store=store, versions=versions, observer=watch),
            program=PROGRAM,
        )
    finally:
        cluster.close()


def _on_slurm(setting: Setting, folder: Path, trials: int) -> Sequence[float]:
    """Run trials on an array of slots, and return when records were written; the command only looks now and then."""
    from profiler.cluster.arrays.slurm import open_array

    shared, options = folder / "store", RunOptions(engine=Scheduler.SLURM, jobs=setting.jobs)
    store, plan = shared_store(shared, folder / "own"), cheap_plan(trials)
    array = open_array(folder / "slurm", lambda _: CheapSlot(store=shared, trials=trials), options, ())
    try:
        array.start_for(len(plan), jobs=options.jobs)
        array.run(plan, store=store, options=options, observer=Unseen())
    finally:
        array.close()
    return sorted(path.stat().st_mtime for path in (shared / RECORDS).iterdir())
