"""Everything that is checked before the first trial starts."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path, PurePath
from typing import TypeVar

from profiler.allocator import parse_alloc_conf
from profiler.cluster.arrays.array import SlotArray
from profiler.cluster.arrays.slurm import SlotJob
from profiler.cluster.remote import trial_python
from profiler.cluster.slots import Cluster, KindOf
from profiler.command_line import print_line
from profiler.commands import COMMANDS
from profiler.config.models.architecture import read_architecture
from profiler.config.models.context import context_line
from profiler.config.models.lookup import builtin_architecture
from profiler.config.options.option import MAX_INCREASE
from profiler.config.options.run_options import RunOptions, read_run_options
from profiler.config.trials.grid import Grid, expand, read_grid
from profiler.config.trials.specification import ArchitectureLookup, attention_line, kernels_line, parse_points
from profiler.constraints.table import faults_in_a_sweep
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.engines import Address, Scheduler, Scheme, is_address
from profiler.domain.machines.extras import missing_fault
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import Backend, TrialSpec, Weights
from profiler.emulation.interpreter import cache_folder
from profiler.execution.job import TRIAL_WORKER
from profiler.execution.pythons import InterpreterOf
from profiler.storage.files.foreign_files import expanded, reason
from profiler.storage.foreign.model_config import check_weights, content_of
from profiler.storage.stores.record_store import folder_faults, writable_faults
from profiler.storage.stores.shared_store import shared_faults, work_folder
from profiler.sweep.command import PYTHON, Command, for_each_python, pairs_of
from profiler.sweep.parts import ArrayRunner, ClusterRunner, LocalRunner, Runner, SweepParts, import_report
from profiler.sweep.prepared.backend import (
    gpus_alike,
    missing_deepspeed,
    missing_engine,
    other_python_faults,
    resolve_auto,
)
from profiler.sweep.prepared.composition import compose
from profiler.sweep.prepared.engine import SweepHosts, for_engine, hosts_of, slots_of
from profiler.sweep.prepared.plan import FilesOf, GpuPrices, HardwareOf, gpu_prices

Result = TypeVar("Result")

ConfigLookup = Callable[[str], Mapping[str, object]]
"""Contents of `config.json` by model."""


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep that can run."""

    grid: Grid
    options: RunOptions
    folder: Path
    """Where workers write, and tables and pages are made."""
    address: Address | None
    """Where several machines share the results; None if `folder` is where they stay."""
    specs: tuple[TrialSpec, ...]
    versions: Versions
    gpu_uuids: tuple[str, ...]
    """GPUs to measure on."""
    hardware_of: HardwareOf
    """Card and driver that a measured trial runs on; empty without a GPU."""
    files_of: FilesOf
    """Hashes of the files that a trial names."""
    interpreter_of: InterpreterOf
    """The Python that a trial runs in."""
    prices: GpuPrices
    cluster: Cluster | None
    """Where trials run; None for this machine."""
    kind_of: KindOf
    """The slots of the cluster that a trial needs."""
    array: SlotArray | None
    """Slots that find their work in the store; None for other engines."""
    lines: tuple[str, ...]
    """Lines to print first: which backend `auto` became and why, and which GPUs are left out."""
    knows_ids: bool = True
    """False in a dry run without the environment or the card that are a part of the ids of trials."""

    @property
    def runner(self) -> Runner:
        """What runs the trials on the engine."""
        if self.array is not None:
            return ArrayRunner(array=self.array)
        if self.cluster is not None:
            return ClusterRunner(cluster=self.cluster, kind_of=self.kind_of)
        program = replace(TRIAL_WORKER, interpreter_of=self.interpreter_of, meanwhile=import_report)
        return LocalRunner(gpu_uuids=self.gpu_uuids, program=program)

    @property
    def place(self) -> str:
        """Where the results are, for sentences."""
        return str(self.address or self.folder)


def architecture_lookup(config_of: ConfigLookup) -> ArchitectureLookup:
    """Return a function from models to their architectures."""
    return remembering(lambda model: builtin_architecture(model) or read_architecture(config_of(model), model=model))


def remembering(read: Callable[[str], Result]) -> Callable[[str], Result]:
    """Return `read` with a cache of its results, including faults: a sweep asks for the same few models repeatedly."""

    @cache
    def found_or_fault(model: str) -> Result | UsageError:
        try:
            return read(model)
        except UsageError as error:
            return error

    def remembered(model: str) -> Result:
        found = found_or_fault(model)
        if isinstance(found, UsageError):
            raise found
        return found

    return remembered


def prepare_each(
    command: Command, parts: SweepParts, architecture_of: ArchitectureLookup, config_of: ConfigLookup
) -> tuple[Sweep, ...]:
    """Return the sweeps of a command, one per environment that it compares, after all that can be checked.

    Raises:
        UsageError: Carries every fault that was found.
    """
    faults = _Faults(())
    found = [
        faults.collect(partial(prepare, each, parts, architecture_of, config_of)) for each in for_each_python(command)
    ]
    if faults.found:
        raise UsageError(tuple(dict.fromkeys(faults.found)))
    return tuple(sweep for sweep in found if sweep is not None)


def prepare(command: Command, parts: SweepParts, architecture_of: ArchitectureLookup, config_of: ConfigLookup) -> Sweep:
    """Return the sweep of a command after checking all that can be checked before the first trial.

    Raises:
        UsageError: Carries every fault that was found.
    """
    faults = _Faults(command.faults)
    values = faults.collect(lambda: compose(command))
    if values is None:
        raise UsageError(faults.found)
    name = command.grids[0]
    options = faults.collect(lambda: for_engine(read_run_options(values)))
    grid = faults.collect(lambda: read_grid(name, values))
    points = faults.collect(lambda: expand(grid, command.axes)) if grid else None
    machines = _machines(options, points or (), faults, parts)
    visible, versions = machines.visible, machines.versions
    points, backend_line = resolve_auto(points or [], visible, torch_version=versions.torch)
    specs = faults.collect(lambda: parse_points(points, architecture_of=architecture_of)) or ()
    faults.found.extend(faults_in_a_sweep(specs, architecture_of))
    if options is not None and not options.dry_run:
        faults.found.extend(_uninstalled(specs) if options.python is None and machines.cluster is None else ())
        faults.found.extend(missing_engine(specs, Backend.CUDA, versions))
        faults.found.extend(missing_deepspeed(specs, Backend.CUDA, versions))
    mixed = other_python_faults(points, options)
    faults.found.extend(mixed)
    # A sweep can be planned where there is no GPU.
    only_planned = options is not None and options.dry_run and not visible.gpus
    faults.found.extend(() if only_planned else machines.gpu_faults(points, specs))
    for settings in dict.fromkeys(spec.alloc_conf for spec in specs if spec.backend is Backend.SIMULATED):
        # Only what the model of the allocator supports; a real allocator reports its own faults.
        faults.collect(partial(parse_alloc_conf, settings))
    faults.found.extend(_folder_faults(name, values, options))
    prices = faults.collect(partial(gpu_prices, options, visible)) if options is not None else None
    files_of = _files_lookup(config_of)
    for model, dataset in dict.fromkeys((spec.model, spec.dataset) for spec in specs):
        faults.collect(partial(files_of, model, dataset))
    for model in dict.fromkeys(spec.model for spec in specs if spec.weights is Weights.PRETRAINED):
        faults.collect(partial(check_weights, model))
    workers, lacking = None, ""
    python = trial_python(options, [spec.backend for spec in specs]) if options is not None and not mixed else None
    if python is not None and specs and machines.cluster is None:
        try:
            workers = (parts.emulated_workers if python.is_emulated else parts.simulated_workers)(python.options)
        except UsageError as error:
            is_named_here = python.options.python is not None and python.options.engine is not Scheduler.RAY
            if not python.options.dry_run or is_named_here:
                faults.found.extend(error.faults)
            lacking = f"Trial ids are not known: {error.faults[0].problem}."
    versions = workers.versions if workers else versions
    if workers or machines.cluster is not None:
        faults.found.extend(missing_deepspeed(specs, Backend.EMULATED, versions))
        faults.found.extend(missing_engine(specs, Backend.EMULATED, versions))
    if faults.found or options is None or grid is None or prices is None:
        machines.close()
        raise UsageError(tuple(dict.fromkeys(faults.found)))
    if only_planned and any(spec.backend is Backend.CUDA for spec in specs):
        lacking = "Trial ids are not known: no GPU is visible here, and a measured trial is named after its card."
    gpus, gpu_line = gpus_alike(visible)
    measured = any(spec.backend is Backend.CUDA for spec in specs)
    attention = dict.fromkeys(
        line(spec, architecture_of(spec.model))
        for spec in specs
        for line in (attention_line, kernels_line, context_line)
    )
    return Sweep(
        grid=grid,
        options=options,
        folder=_folder(options.results_dir, name),
        address=options.results_dir / name if isinstance(options.results_dir, Address) else None,
        specs=specs,
        versions=versions,
        gpu_uuids=tuple(gpu.uuid for gpu in gpus) if measured and not machines.are_slots else (),
        hardware_of=machines.hardware_of,
        files_of=lambda spec: files_of(spec.model, spec.dataset),
        interpreter_of=workers.interpreter_of if workers else lambda _: None,
        prices=prices[0],
        cluster=machines.cluster,
        kind_of=machines.kind_of,
        array=None,
        lines=tuple(
            line
            for line in (
                machines.line,
                backend_line,
                gpu_line if measured and machines.cluster is None and not machines.are_slots else "",
                *attention,
                lacking,
                prices[1],
            )
            if line
        ),
        knows_ids=not lacking and not (measured and machines.are_slots),
    )


def _machines(
    options: RunOptions | None, points: Iterable[Mapping[str, object]], faults: "_Faults", parts: SweepParts
) -> SweepHosts:
    """Return where trials run; this machine also in a dry run, and where the command has faults.

    Raises:
        UsageError: The cluster does not answer, or its nodes cannot run one sweep.
    """
    versions = parts.installed_versions()
    if options is not None and not options.dry_run and not faults.found:
        cluster = parts.reach(options)
        if cluster is not None:
            python = trial_python(options, [point.get("backend") for point in points])
            return hosts_of(cluster, options.engine, versions, python)
    if options is not None and options.engine is Scheduler.SLURM:
        return slots_of(options, versions)
    return SweepHosts(visible=parts.visible_gpus(), versions=versions)


def _uninstalled(specs: Iterable[TrialSpec]) -> list[Fault]:
    """Return the faults of the backends that train in this Python, where what they import is not installed."""
    backends = dict.fromkeys(spec.backend for spec in specs if spec.backend is not Backend.EMULATED)
    needs = {backend: COMMANDS["sweep"].uses[f"backend={backend}"] for backend in backends}
    found = [missing_fault("backend", backend, each.imports, each.extra) for backend, each in needs.items()]
    return [fault for fault in found if fault is not None]


class _Faults:
    """Faults of several steps, so that the user sees all of them at once."""

    def __init__(self, found: tuple[Fault, ...]) -> None:
        self.found = list(found)

    def collect(self, step: Callable[[], Result]) -> Result | None:
        """Return the result of a step; None after collecting its faults."""
        try:
            return step()
        except UsageError as error:
            self.found.extend(error.faults)
            return None


def _folder(results_dir: PurePath | Address, name: str) -> Path:
    """Return the folder of this machine for a grid."""
    if isinstance(results_dir, Address):
        return work_folder(results_dir / name, cache_folder())
    return expanded(str(results_dir)) / name


def _folder_faults(name: str, values: Mapping[str, object], options: RunOptions | None) -> list[Fault]:
    """Return the faults of the folder of results."""
    results_dir = values.get("results_dir")
    if not isinstance(results_dir, str) or values.get("dry_run") is True:
        return []
    address = options.results_dir if options is not None else None
    if is_address(results_dir) or isinstance(address, Address):
        return shared_faults(address / name, writes=True) if isinstance(address, Address) else []
    try:
        folder = expanded(results_dir) / name
    except OSError as error:
        return [Fault(key="results_dir", found=results_dir, problem=f"cannot be used, because {reason(error)}")]
    return writable_faults(folder) or folder_faults(folder)


def _files_lookup(config_of: ConfigLookup) -> Callable[[str, str | None], Mapping[str, str]]:
    """Return a function from a model and a data set to the hashes of their files; each file is read once."""

    @cache
    def files_of(model: str, dataset: str | None) -> Mapping[str, str]:
        return content_of(model, dataset, model_config=config_of)

    return files_of


# ---- engine=slurm, where the command runs ----------------------------------------------------------------------------

_SLURM_FOLDER = "slurm"


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
    return (Path(address.path) if address.scheme is Scheme.FILE else sweep.folder) / _SLURM_FOLDER
