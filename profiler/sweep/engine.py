"""The engine of a sweep: what it cannot run, and the machines that it offers."""

from collections.abc import Iterable, Mapping, Sequence

from profiler.cluster.engines import ENGINE
from profiler.cluster.slots import Node
from profiler.config.run_options import RunOptions
from profiler.domain.engine import Engine
from profiler.domain.errors import Fault
from profiler.domain.outcome import Versions
from profiler.domain.trial import Backend

_BY_HAND = "Start one sweep per machine, with shard=k/n or an address as results_dir (docs/many_machines.md)."


def engine_faults(points: Iterable[Mapping[str, object]], options: RunOptions) -> list[Fault]:
    """Return the faults of trials that run in an environment of their own, which nodes do not have."""
    if options.engine is Engine.LOCAL:
        return []
    if options.python is not None:
        problem = f"is a path of this machine, and engine={options.engine} runs trials on others"
        return [Fault(key="python", found=str(options.python), problem=problem, hint=_BY_HAND)]
    if any(point.get("backend") == Backend.EMULATED for point in points):
        problem = "runs trials in the Python of each node, and emulated ones need an environment of their own"
        return [Fault(key=ENGINE, found=options.engine, problem=problem, hint=_BY_HAND)]
    return []


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
