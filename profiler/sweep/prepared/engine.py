"""The engine of a sweep: what it cannot run, and what the machines that it offers have."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from profiler.cluster.remote import TrialPython
from profiler.cluster.slots import ENGINE, Cluster, Node, SlotKind
from profiler.config.options.run_options import RunOptions
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.errors import Fault, UsageError
from profiler.domain.machines.engines import Address, Scheduler, Scheme
from profiler.domain.machines.extras import DISTRIBUTION, Extra, install_hint, listed
from profiler.domain.runs.outcome import Versions
from profiler.domain.trials.trial import Backend, TrialSpec
from profiler.measurement.driver.visible import VisibleGpu, VisibleGpus
from profiler.storage.files.foreign_files import expanded
from profiler.sweep.prepared.backend import real_gpu_faults, too_few_gpus

GPUS = "slurm_gpus_per_node"

_SAME = "Install the same versions everywhere."


def for_engine(options: RunOptions) -> RunOptions:
    """Return the options as other machines need them: with paths from the root.

    A folder of results that slots of Slurm share becomes an address.
    """
    if options.engine is Scheduler.RAY and options.python is not None and not str(options.python).startswith("~"):
        options = replace(options, python=Path(options.python).absolute())
    if options.engine is not Scheduler.SLURM or isinstance(options.results_dir, Address):
        return options
    try:
        folder = expanded(str(options.results_dir)).absolute()
    except OSError:  # reported with the other faults of the folder
        return options
    return replace(options, results_dir=Address(scheme=Scheme.FILE, path=str(folder)))


def version_faults(node: Node, engine: Scheduler, wanted: Versions) -> list[Fault]:
    """Return the fault of a node that has installed something else than `wanted`, where the command was started."""
    problem = _differs(node, wanted, "where the command was started")
    return [Fault(key=ENGINE, found=engine, problem=problem, hint=_SAME)] if problem else []


def node_faults(nodes: Sequence[Node], engine: Scheduler, own: Versions) -> list[Fault]:
    """Return why the nodes cannot run one sweep: no Python for trials, other versions, or modules that they lack.

    Args:
        nodes: The nodes, of which there is at least one.
        engine: The engine that they are of.
        own: What is installed here; of it only this program has to be the same there.
    """
    if unfit := next((node for node in nodes if node.faults), None):
        return [replace(fault, problem=f"{fault.problem} on node {unfit.name}") for fault in unfit.faults]
    wanted = replace(nodes[0].versions, profiler=own.profiler)
    found = [_differs(node, wanted, "here" if node is nodes[0] else f"on node {nodes[0].name}") for node in nodes]
    if problem := next(filter(None, found), ""):
        return [Fault(key=ENGINE, found=engine, problem=problem, hint=_SAME)]
    lacking = next((node for node in nodes if node.lacks), None)
    if lacking is None:
        return []
    problem = f"node {lacking.name} lacks {listed(lacking.lacks)}"
    return [Fault(key=ENGINE, found=engine, problem=problem, hint=install_hint(Extra.SIMULATE))]


def _differs(node: Node, wanted: Versions, where: str) -> str:
    """Return which versions of a node are not those of `wanted`, and `where` those are; empty if all are."""
    pairs = [
        (name, found, getattr(wanted, name))
        for name, found in vars(node.versions).items()
        if found != getattr(wanted, name)
    ]
    if not pairs:
        return ""
    there = listed([_version(name, found) for name, found, _ in pairs])
    others = listed([_version(name, other) for name, _, other in pairs])
    return f"node {node.name} has {there}, and {where} it is {others}"


def _version(name: str, version: str | None) -> str:
    name = DISTRIBUTION if name == "profiler" else name
    return f"no {name}" if version is None else f"{name} {version}"


@dataclass(frozen=True, kw_only=True)
class SweepHosts:
    """Where the trials of a sweep run: this machine, or the nodes of a cluster."""

    visible: VisibleGpus
    """The GPUs, of all nodes."""
    versions: Versions
    cluster: Cluster | None = None
    """None for this machine."""
    nodes: Sequence[Node] = ()
    are_slots: bool = False
    """Whether these are slots that have not started, so that their card is not known."""

    def gpu_faults(self, points: Sequence[Mapping[str, object]], specs: Iterable[TrialSpec]) -> list[Fault]:
        """Return why measured trials cannot run for want of a GPU."""
        if self.cluster is not None and self.visible.gpus:
            return _placing_faults(specs, self.nodes)
        faults = real_gpu_faults(points, self.visible, torch_version=self.versions.torch)
        return [*faults, *too_few_gpus(specs, self.visible)]

    def kind_of(self, spec: TrialSpec) -> SlotKind:
        """Return the slots of the cluster that a trial needs."""
        return _kind_of(spec, self.nodes) or SlotKind()

    def hardware_of(self, spec: TrialSpec) -> str:
        """Return card and driver of a measured trial; empty without a GPU."""
        if self.are_slots:
            return ""
        return self.visible.hardware if self.cluster is None else self.kind_of(spec).hardware

    @property
    def line(self) -> str:
        """What the cluster has; empty for this machine."""
        if self.cluster is None:
            return ""
        nodes, gpus = len(self.nodes), len(self.visible.gpus)
        return f"The cluster has {nodes} node{'s' * (nodes != 1)} with {gpus} GPU{'s' * (gpus != 1)}."

    def close(self) -> None:
        """Leave the cluster, if there is one."""
        if self.cluster is not None:
            self.cluster.close()


def slots_of(options: RunOptions, versions: Versions) -> SweepHosts:
    """Return the slots of Slurm, as far as they are known before they start: the number of their GPUs."""
    asked = options.slurm_gpus_per_node
    if asked is None:
        visible = VisibleGpus(gpus=(), note=f"slots have none without {GPUS}=1")
    else:
        one = VisibleGpu(uuid="", name=f"a GPU of {GPUS}={asked}", memory_bytes=sys.maxsize)
        visible = VisibleGpus(gpus=(one,) * asked.count, note="")
    return SweepHosts(visible=visible, versions=versions, are_slots=True)


def hosts_of(cluster: Cluster, engine: Scheduler, own: Versions, python: TrialPython | None = None) -> SweepHosts:
    """Return the nodes of a cluster after they have answered.

    Args:
        cluster: The cluster. It is left if its nodes cannot run the sweep.
        engine: Its engine.
        own: What is installed here; of it only this program has to be the same there.
        python: The Python of the trials; None for that of the slots.

    Raises:
        UsageError: The nodes cannot run one sweep.
    """
    with ExitStack() as undo:
        undo.callback(cluster.close)
        nodes = cluster.nodes(python)
        if faults := node_faults(nodes, engine, own):
            raise UsageError(faults)
        undo.pop_all()
    return SweepHosts(visible=_gpus_of(nodes), versions=nodes[0].versions, cluster=cluster, nodes=nodes)


def _gpus_of(nodes: Sequence[Node]) -> VisibleGpus:
    found = [node.gpus for node in nodes if node.gpus.gpus]
    if not found:
        return VisibleGpus(gpus=(), note="no node of the cluster has one")
    gpus = tuple(gpu for each in found for gpu in each.gpus)
    return VisibleGpus(gpus=gpus, note="", driver_version=found[0].driver_version)


def _kind_of(spec: TrialSpec, nodes: Sequence[Node]) -> SlotKind | None:
    """Return the slots that a trial needs; None if no node has its card, or has it often enough.

    A measured trial that names a card runs on that card. Without one it runs on the first card of the cluster that
    there are enough of in one node.
    """
    if spec.backend is not Backend.CUDA:
        return SlotKind()
    for node in nodes:
        if len(node.gpus.gpus) >= spec.num_processes and _has_card(node, spec.gpu):
            return SlotKind(gpus=spec.num_processes, accelerator=node.accelerator, hardware=node.gpus.hardware)
    return None


def _has_card(node: Node, card: str | None) -> bool:
    if card is None or not node.gpus.gpus:
        return bool(node.gpus.gpus)
    known = KNOWN_GPUS.get(card)
    return known is not None and all(known.is_called(gpu.name, gpu.memory_bytes) for gpu in node.gpus.gpus)


def _placing_faults(specs: Iterable[TrialSpec], nodes: Sequence[Node]) -> list[Fault]:
    """Return a fault for each card and number of GPUs that no node has."""
    unplaced = dict.fromkeys((spec.gpu, spec.num_processes) for spec in specs if _kind_of(spec, nodes) is None)
    faults = []
    for card, count in unplaced:
        most = max((len(node.gpus.gpus) for node in nodes if _has_card(node, card)), default=0)
        if most:
            problem = f"needs {count} GPUs of one kind in one node, and the largest has {most}"
            hint = f"Use at most num_processes={most}."
            faults.append(Fault(key="num_processes", found=str(count), problem=problem, hint=hint))
            continue
        cards = listed(list(dict.fromkeys(gpu.name for node in nodes for gpu in node.gpus.gpus)))
        problem = f"no node of the cluster has this card; they have {cards}"
        hint = "On a cluster gpu names the card to measure on. A larger one is capped to it only with engine=local."
        faults.append(Fault(key="gpu", found=card or "null", problem=problem, hint=hint))
    return faults
