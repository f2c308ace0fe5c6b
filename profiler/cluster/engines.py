"""The engines that spread trials over machines: what each needs, and how it is reached."""

from profiler.cluster.arrays.slurm import slurm_faults
from profiler.cluster.slots import Cluster
from profiler.config.options.run_options import RunOptions
from profiler.domain.errors import UsageError
from profiler.domain.machines.engines import Scheduler
from profiler.domain.machines.extras import Extra, require

ENGINE = "engine"

_MODULES = {Scheduler.RAY: ("ray",), Scheduler.SLURM: ("submitit",)}
_EXTRAS = {Scheduler.RAY: Extra.RAY, Scheduler.SLURM: Extra.SLURM}


def reach(options: RunOptions) -> Cluster | None:
    """Return the cluster of the engine; None if the engine is this machine, or starts slots that find their work.

    Raises:
        UsageError: The extra of the engine is not installed, or its cluster does not answer.
    """
    engine = options.engine
    if engine is Scheduler.LOCAL:
        return None
    require(ENGINE, engine, _MODULES[engine], _EXTRAS[engine])
    if engine is Scheduler.SLURM:
        if faults := slurm_faults(options):
            raise UsageError(faults)
        return None
    from profiler.cluster.ray_cluster import reach_ray  # imports ray, an extra

    return reach_ray(options.ray_address, jobs=options.jobs)
