"""The engine of a sweep: what it cannot run, and the machines that it offers."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from profiler.cluster.engines import ENGINE
from profiler.cluster.slots import Node
from profiler.config.run_options import RunOptions
from profiler.domain.address import Address, Scheme
from profiler.domain.engine import Engine
from profiler.domain.errors import Fault
from profiler.domain.outcome import Versions
from profiler.domain.trial import Backend
from profiler.measurement.visible import VisibleGpu, VisibleGpus
from profiler.storage.foreign_files import expanded

GPUS = "slurm_gpus_per_node"

_BY_HAND = "Start one sweep per machine, with shard=k/n or an address as results_dir (docs/many_machines.md)."


def engine_faults(points: Iterable[Mapping[str, object]], options: RunOptions) -> list[Fault]:
    """Return the faults of options that the engine has no answer to."""
    if options.engine is Engine.LOCAL:
        return []
    if options.engine is Engine.SLURM and not options.resume:
        problem = "would run each trial once per slot with engine=slurm"
        return [Fault(key="resume", found="false", problem=problem, hint="Choose another results_dir.")]
    if options.python is not None:
        problem = f"is a path of this machine, and engine={options.engine} runs trials on others"
        return [Fault(key="python", found=str(options.python), problem=problem, hint=_BY_HAND)]
    if any(point.get("backend") == Backend.EMULATED for point in points):
        problem = "runs trials in the Python of each node, and emulated ones need an environment of their own"
        return [Fault(key=ENGINE, found=options.engine, problem=problem, hint=_BY_HAND)]
    return []


def for_engine(options: RunOptions) -> RunOptions:
    """Return the options with a folder of results turned into an address, if slots on other nodes share it."""
    if options.engine is not Engine.SLURM or isinstance(options.results_dir, Address):
        return options
    try:
        folder = expanded(str(options.results_dir)).absolute()
    except OSError:  # reported with the other faults of the folder
        return options
    return replace(options, results_dir=Address(scheme=Scheme.FILE, path=str(folder)))


def visible_to_slots(options: RunOptions) -> VisibleGpus:
    """Return the GPUs of a slot of Slurm, as far as they are known before it starts: their number."""
    asked = options.slurm_gpus_per_node
    if asked is None:
        return VisibleGpus(gpus=(), note=f"slots have none without {GPUS}=1")
    one = VisibleGpu(uuid="", name=f"a GPU of {GPUS}={asked}", memory_bytes=sys.maxsize)
    return VisibleGpus(gpus=(one,) * asked.count, note="")


def mixed_versions(nodes: Sequence[Node], versions: Versions) -> list[Fault]:
    """Return the fault of the first node that has installed something else than `versions`."""
    for node in nodes:
        differ = [
            f"{name} {found or 'missing'} and not {wanted or 'missing'}"
            for name, found in vars(node.versions).items()
            if found != (wanted := getattr(versions, name))
        ]
        if differ:
            problem = f"node {node.name} has {', '.join(differ)}"
            hint = "Install the same versions on every node and here."
            return [Fault(key=ENGINE, found="", problem=problem, hint=hint)]
    return []
