"""`engine=slurm`, where the command runs: start slots, and wait for the card that measured trials are named by."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from profiler.cluster.arrays.slurm import SlotJob
from profiler.command_line import print_line
from profiler.config.options.option import MAX_INCREASE
from profiler.domain.machines.engines import Address, Scheduler, Scheme
from profiler.domain.trials.trial import Backend
from profiler.storage.files.foreign_files import expanded
from profiler.sweep.command import PYTHON, pairs_of
from profiler.sweep.parts import SweepParts
from profiler.sweep.prepared.preparation import Sweep

_FOLDER = "slurm"


def with_slots(sweep: Sweep, words: Sequence[str], parts: SweepParts) -> Sweep:
    """Return the sweep with the array of its slots; without one for other engines and in a dry run.

    The identity of a measured trial has its card and driver, which the first slot reports.

    Args:
        sweep: The sweep.
        words: Its command line.
        parts: Its outside world.
    """
    if sweep.options.engine is not Scheduler.SLURM or sweep.options.dry_run or sweep.address is None:
        return sweep
    # Environments are compared where the command runs.
    own = (
        *(word for word in pairs_of(words) if not word.startswith(f"{MAX_INCREASE}=")),
        *_on_a_node(sweep, sweep.address),
    )
    here = parts.installed_versions()
    key = [*own, *(json.dumps(asdict(versions), sort_keys=True) for versions in (here, sweep.versions))]

    def job_in(folder: Path) -> SlotJob:
        gpus = sweep.options.slurm_gpus_per_node
        return SlotJob(
            target=parts.slot, words=own, versions=here, trial_versions=sweep.versions, folder=str(folder), gpus=gpus
        )

    array = parts.open_array(_base(sweep, sweep.address), job_in, sweep.options, key)
    if array.names:
        print_line(f"{len(array.names)} slots of an earlier start of this command are in the queue; they go on.")
    if not any(spec.backend is Backend.CUDA for spec in sweep.specs):
        return replace(sweep, array=array)
    try:
        array.start_for(len(sweep.specs), jobs=sweep.options.jobs)
        print_line("Waiting for the first slot, whose card is a part of the names of measured trials.")
        hardware = array.hardware()
        prices = replace(sweep.prices, card=array.card)
        return replace(sweep, array=array, hardware_of=lambda _: hardware, prices=prices)
    except BaseException:
        array.close()
        raise


def _on_a_node(sweep: Sweep, address: Address) -> list[str]:
    """Return what a slot has in place of the options of the command. The last of several values of an option counts."""
    results_dir = json.dumps(str(address).removesuffix(f"/{address.name}"))
    # Slots with several GPUs run as many trials at the same time; the others run one.
    jobs = "null" if sweep.options.slurm_gpus_per_node else "1"
    found = [f"engine={Scheduler.LOCAL}", f"results_dir={results_dir}", f"jobs={jobs}"]
    if sweep.options.python is not None:
        # As an absolute path, and one of several that are compared.
        found.append(f"{PYTHON}={json.dumps(str(expanded(str(sweep.options.python)).absolute()))}")
    return found


def _base(sweep: Sweep, address: Address) -> Path:
    """Return a folder that all nodes have mounted: in the results, or else in the cache of the user's home."""
    return (Path(address.path) if address.scheme is Scheme.FILE else sweep.folder) / _FOLDER
