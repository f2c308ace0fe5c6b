"""The plan of a sweep: trials with their names and labels, in order."""

from collections.abc import Callable, Hashable, Mapping, Sequence

from profiler.config.trials.identity import specification_hash, trial_id
from profiler.config.trials.labels import labels
from profiler.domain.machines.shard import Shard
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import Backend, PlannedTrial, TrialSpec, run_key

FilesOf = Callable[[TrialSpec], Mapping[str, str]]
"""Returns the hashes of the files that a trial names."""

HardwareOf = Callable[[TrialSpec], str]
"""Returns the card and the driver that a measured trial runs on."""


def plan_trials(
    grid: str,
    specs: Sequence[TrialSpec],
    versions: Versions,
    *,
    hardware_of: HardwareOf = lambda _: "",
    files_of: FilesOf = lambda _: {},
) -> list[PlannedTrial]:
    """Return `specs` as trials of `grid`, in order; `hardware_of` is part of the identity of a measured trial."""
    return [
        PlannedTrial(
            trial_id=name_of(spec, versions, hardware_of=hardware_of, files_of=files_of),
            grid=grid,
            label=label,
            spec=spec,
        )
        for spec, label in zip(specs, labels(specs), strict=True)
    ]


def of_shard(plan: Sequence[PlannedTrial], shard: Shard) -> list[PlannedTrial]:
    """Return the trials of one shard, in order. Each trial of `plan` is in exactly one shard.

    Trials that one simulated run answers stay together. These groups are sorted by the smallest hash of their
    specifications, and every n-th is of one shard: versions and the order of the plan do not matter, and the numbers of
    groups differ by at most one.
    """
    groups: dict[Hashable, list[PlannedTrial]] = {}
    for trial in plan:
        groups.setdefault(run_key(trial.spec) or trial.spec, []).append(trial)
    in_order = sorted(groups.values(), key=lambda trials: min(specification_hash(trial.spec) for trial in trials))
    own = {trial.trial_id for trials in in_order[shard.number - 1 :: shard.count] for trial in trials}
    return [trial for trial in plan if trial.trial_id in own]


def name_of(spec: TrialSpec, versions: Versions, *, hardware_of: HardwareOf, files_of: FilesOf) -> str:
    """Return the name of a trial on this machine."""
    measured_on = hardware_of(spec) if spec.backend is Backend.CUDA else ""
    return trial_id(spec, versions, hardware=measured_on, content=files_of(spec))


def order_for_pruning(
    plan: Sequence[PlannedTrial], memory_rank: Callable[[TrialSpec], tuple[float, ...]]
) -> list[PlannedTrial]:
    """Return `plan` with its measured trials in order of memory; other trials keep their places.

    A trial that runs out of memory then runs before all trials that it implies, whatever the order of the axes.

    Args:
        plan: The trials.
        memory_rank: Returns numbers that are not larger for a trial that needs at most another's memory.
    """
    measured = [trial for trial in plan if trial.spec.backend is Backend.CUDA]
    ordered = iter(sorted(measured, key=lambda trial: memory_rank(trial.spec)))
    return [next(ordered) if trial.spec.backend is Backend.CUDA else trial for trial in plan]
