"""Slots of a Ray cluster: one actor per slot, each with a warmed process of its own.

Actors belong to this process: if it ends, however that may be, Ray ends them, and their workers end with them.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # read at import, and by the processes that Ray starts

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from profiler.cluster.remote import RemoteResult, RemoteTask, TrialPython
from profiler.cluster.slots import EndedTask, Node, Slot, SlotKind
from profiler.domain.errors import EXIT_INTERNAL, Fault, ProfilerError, UsageError
from profiler.domain.machines.engines import Machines
from profiler.domain.machines.extras import DISTRIBUTION, safe_path_flags
from profiler.domain.memory import MIB
from profiler.domain.runs.outcome import Versions
from profiler.execution.slots import postponed_signals

RAY_ADDRESS = "ray_address"
AUTO, LOCAL = "auto", "local"
_CLIENT = "ray"
"""Scheme of an address of Ray's client."""

_PORT, _CLIENT_PORT = 6379, 10001
"""Ray's own, where an address names none."""

CONNECT_S = 8.0
"""Time within which a cluster has to answer, after the import of Ray, which takes a second or two."""

NODE_S = 120.0
"""Time within which every node has to answer."""

LOOK_S = 5.0
"""How often the cluster is asked for its nodes."""

MOST_FAILED_STARTS = 10
"""How many slots in a row may be lost while they start."""

_QUIET = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
_SLICE_S = 0.5
"""Longest time for which a signal is not handled."""

_OBJECT_STORE_BYTES = 100 * MIB
"""Of a cluster that is started here: a record has some 30 kB."""

_CHECK = """
import logging, sys, ray
print(flush=True)
ray.init(sys.argv[1], log_to_driver=False, logging_level=logging.ERROR)
"""

_SAME = f"Install the same version of {DISTRIBUTION}, with the extra ray, on every node."
_ADD_NODE = "Add one with `ray start --address=HEAD:6379`."

_ACCELERATOR = "accelerator_type:"
"""Begins the name of the resource by which Ray knows the cards of a node."""


class NoSlotStartsError(ProfilerError):
    """Slot after slot ends while it starts, or none of them can be used."""

    exit_code = EXIT_INTERNAL


def reach_ray(address: str, *, jobs: int | None, slot: type[Slot] = Slot) -> "RayCluster":
    """Connect to a cluster, or start one on this machine.

    Args:
        address: ``auto``, ``local``, ``host:port`` or ``ray://host:port``.
        jobs: CPU cores of a cluster that is started here; None for all.
        slot: What runs on a slot.

    Raises:
        UsageError: There is no cluster at the address.
    """
    if not _connected:
        _connect(address, jobs=jobs)
    cluster = RayCluster(slot=slot)
    _connected.append(cluster)
    return cluster


def _connect(address: str, *, jobs: int | None) -> None:
    problem = "" if address == LOCAL else _unreachable(address)
    logging.getLogger("ray").setLevel(logging.ERROR)  # of what is logged while it connects; `_QUIET` is for afterwards
    if not problem:
        try:
            with _own_signal_handlers():
                if address == LOCAL:
                    os.environ.setdefault("RAY_worker_niceness", "0")  # as with engine=local
                    ray.init(
                        address=LOCAL,
                        num_cpus=jobs,
                        include_dashboard=False,
                        object_store_memory=_OBJECT_STORE_BYTES,
                        **_QUIET,
                    )
                elif address.startswith(f"{_CLIENT}://"):
                    ray.init(address=address, log_to_driver=False)  # the client passes other options on to the head
                else:
                    ray.init(address=address, **_QUIET)
        except (OSError, ValueError, RuntimeError) as error:
            problem = _first_line(error)
        else:
            return
    hint = f"Start one with `ray start --head`, or write {RAY_ADDRESS}={LOCAL}."
    raise UsageError([Fault(key=RAY_ADDRESS, found=address, problem=f"no Ray cluster answers ({problem})", hint=hint)])


def _unreachable(address: str) -> str:
    """Return why nothing answers at an address; empty if something does.

    Ray ends a process that connects to an address without a cluster, so another process tries it first.
    """
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        usual = _CLIENT_PORT if parts.scheme == _CLIENT else _PORT
        if address != AUTO:
            socket.create_connection((parts.hostname or "", parts.port or usual), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return _first_line(error)
    if parts.scheme == _CLIENT:
        return ""
    command = [sys.executable, *safe_path_flags(), "-c", _CHECK, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as check:
        assert check.stdout is not None
        check.stdout.readline()
        try:
            _, said = check.communicate(timeout=CONNECT_S)
        except subprocess.TimeoutExpired:
            check.kill()
            return f"it did not answer within {CONNECT_S:g} s"
    return "" if check.returncode == 0 else (said.strip().splitlines() or ["it ended"])[-1].rstrip(".")


@contextmanager
def _own_signal_handlers() -> Iterator[None]:
    """Keep the handlers of signals that Ray replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        with suppress(ValueError):  # not the main thread
            for number, handler in before.items():
                signal.signal(number, handler)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")


@dataclass(frozen=True, kw_only=True)
class RayCluster:
    """A Ray cluster that this process is connected to."""

    slot: type[Slot]
    """What runs on a slot."""

    def nodes(self, python: TrialPython | None = None) -> Sequence[Node]:
        """Return the nodes with CPU cores or GPUs, each after it has answered.

        Args:
            python: The Python of the trials; None for that of the slots.

        Raises:
            UsageError: A node does not answer, or cannot run this program; or there is none.
        """
        answers = {_described(node["NodeID"], self.slot, python): node for node in _usable_nodes()}
        ready, late = _wait(list(answers), count=len(answers), most_s=NODE_S)
        found = [self._node(answers[reference], reference) for reference in ready]
        if late:
            name = answers[late[0]]["NodeManagerHostname"]
            raise UsageError([_fault(f"node {name} did not answer within {NODE_S:g} s")])
        nodes = [node for node in found if node is not None]
        if not nodes:
            raise UsageError([_fault("there is no node with CPU cores or GPUs", _ADD_NODE)])
        return nodes

    def slots(self, *, jobs: int | None, versions: Versions, python: TrialPython | None = None) -> "RaySlots":
        """Return the slots; none has been started."""
        return RaySlots(slot=self.slot, jobs=jobs, versions=versions, python=python)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here, unless another sweep of this process uses it."""
        if self in _connected:
            _connected.remove(self)
            if not _connected:
                ray.shutdown()

    def _node(self, described: Mapping[str, Any], reference: object) -> Node | None:
        """Return what a node has answered; None if it ended meanwhile."""
        try:
            node: Node = ray.get(reference)
        except RayTaskError as error:
            problem = f"node {described['NodeManagerHostname']} cannot run this program ({_reason(error)})"
            raise UsageError([_fault(problem)]) from error
        except RayError:
            return None
        count = int(_amount(described, "GPU"))
        gpus = replace(node.gpus, gpus=node.gpus.gpus[:count])
        return replace(node, gpus=gpus, accelerator=_accelerator(described))


_connected: list[RayCluster] = []
"""One per sweep of this process: the environments of `python=A,B` share a connection."""


def _fault(problem: str, hint: str = _SAME) -> Fault:
    return Fault(key="engine", found="ray", problem=problem, hint=hint)


def _usable_nodes() -> list[Mapping[str, Any]]:
    """Return the nodes that are alive and have CPU cores or GPUs; a head often has none."""
    return [node for node in ray.nodes() if node["Alive"] and _amount(node, "CPU", "GPU")]


def _amount(node: Mapping[str, Any], *names: str) -> float:
    return sum(float(node["Resources"].get(name, 0.0)) for name in names)


def _accelerator(node: Mapping[str, Any]) -> str:
    names = (name.removeprefix(_ACCELERATOR) for name in node["Resources"] if name.startswith(_ACCELERATOR))
    return next(names, "")


@ray.remote(num_cpus=0, max_retries=1)  # type: ignore[untyped-decorator]
def _describe(slot: type[Slot], python: TrialPython | None) -> Node:
    return slot.machine(python)


def _described(node_id: str, slot: type[Slot], python: TrialPython | None) -> Any:  # noqa: ANN401, a reference of Ray
    strategy = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
    return _describe.options(scheduling_strategy=strategy).remote(slot, python)


@dataclass(frozen=True, kw_only=True)
class _Actor:
    """A slot: an actor, and what it has."""

    kind: SlotKind
    handle: Any
    node: str = ""
    """The name of its node; empty until it has started."""


@dataclass(kw_only=True)
class RaySlots:
    """Actors of a cluster. An actor that is lost is replaced; Ray places the new one when there is a node for it."""

    slot: type[Slot]
    """What runs on a slot."""
    jobs: int | None
    """Most slots; None for all that the nodes have."""
    versions: Versions
    """What every slot must have installed."""
    python: TrialPython | None = None
    """The Python of the trials; None for that of the slots."""
    notes: list[str] = field(default_factory=list, init=False)
    """One sentence per slot that is retired."""
    _starting: dict[Any, _Actor] = field(default_factory=dict, init=False)
    """By the reference of its first answer."""
    _idle: dict[Hashable, _Actor] = field(default_factory=dict, init=False)
    _busy: dict[Any, tuple[Hashable, _Actor]] = field(default_factory=dict, init=False)
    """By the reference of its result."""
    _retired: list[_Actor] = field(default_factory=list, init=False)
    """They stay alive, so that Ray does not place another slot on the same GPU."""
    _failed_starts: int = field(default=0, init=False)
    """How many slots in a row were lost while they started."""
    _nodes: Sequence[Mapping[str, Any]] = field(default=(), init=False)
    _looked_s: float = field(default=-LOOK_S, init=False)

    def free(self, waiting: Mapping[SlotKind, int]) -> Mapping[Hashable, SlotKind]:
        """Return the slots that can take a task now; start slots for what waits, and end those that nothing needs.

        Raises:
            NoSlotStartsError: Slot after slot ends while it starts, or none can be used.
        """
        for kind, count in waiting.items():
            self._start(kind, count)
        for held in (self._idle, self._starting):
            for key, actor in list(held.items()):
                if not waiting.get(actor.kind):
                    _end(held.pop(key))
        return {key: actor.kind for key, actor in self._idle.items()}

    def run(self, slot: Hashable, task: RemoteTask) -> None:
        """Start a task on a free slot."""
        actor = self._idle.pop(slot)
        self._busy[actor.handle.run.remote(task)] = (slot, actor)

    def wait(self, *, most_s: float) -> Sequence[EndedTask]:
        """Return the tasks that have ended, after `most_s` at most; also wait if no task runs."""
        waited = [*self._busy, *self._starting]
        if not waited:
            time.sleep(most_s)
            return ()
        if not _wait(waited, count=1, most_s=most_s)[0]:
            return ()
        ready, _ = _wait(waited, count=len(waited), most_s=0.0)
        for reference in ready:
            if reference in self._starting:
                self._has_started(reference)
        return [self._ended(reference) for reference in ready if reference in self._busy]

    def retire(self, slot: Hashable, reason: str) -> None:
        """Use a slot no longer. Its actor keeps its GPU, so that Ray does not place another slot there."""
        self._retire(self._idle.pop(slot), reason)

    def machines(self) -> Machines:
        """Return the nodes that trials can run on, those that run a task, and the GPUs of the nodes."""
        gpus = sum(int(_amount(node, "GPU")) for node in self._nodes)
        busy = {actor.node for _, actor in self._busy.values()}
        return Machines(nodes=len(self._nodes), nodes_busy=len(busy), gpus=gpus or None)

    def close(self) -> None:
        """End all slots with their processes."""
        busy = [actor for _, actor in self._busy.values()]
        for actor in (*self._idle.values(), *busy, *self._starting.values(), *self._retired):
            _end(actor)

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _start(self, kind: SlotKind, waiting: int) -> None:
        """Start as many slots of a kind as trials wait for and the nodes have."""
        busy = [actor for _, actor in self._busy.values()]
        unused = [*self._idle.values(), *self._starting.values()]
        alive = [*unused, *busy]
        retired = sum(actor.kind == kind for actor in self._retired)
        places = self._capacity(kind) - retired
        if retired and places <= 0:
            raise NoSlotStartsError(f"No slot is left. {self.notes[-1]}")
        # Of an empty cluster one slot is asked for: it may grow by that.
        left = max(1, places) - sum(actor.kind == kind for actor in alive)
        if self.jobs is not None:
            left = self.jobs - len(alive)
        wanted = waiting - sum(actor.kind == kind for actor in unused)
        for _ in range(min(wanted, left)):
            handle = _actor_class(self.slot, kind).remote(gpus=kind.gpus)
            self._starting[handle.node.remote(self.python)] = _Actor(kind=kind, handle=handle)

    def _capacity(self, kind: SlotKind) -> int:
        """Return how many slots of a kind the nodes have."""
        if time.monotonic() - self._looked_s >= LOOK_S:
            self._nodes = _usable_nodes()
            self._looked_s = time.monotonic()
        if not kind.gpus:
            return sum(int(_amount(node, "CPU")) for node in self._nodes)
        return sum(
            int(_amount(node, "GPU")) // kind.gpus for node in self._nodes if _accelerator(node) == kind.accelerator
        )

    def _has_started(self, reference: object) -> None:
        """Take over a slot that has answered; another one is started in place of one that was lost."""
        actor = self._starting.pop(reference)
        try:
            node: Node = ray.get(reference)
        except RayError as error:
            self._failed_starts += 1
            if self._failed_starts >= MOST_FAILED_STARTS:
                raise NoSlotStartsError(
                    f"{MOST_FAILED_STARTS} slots in a row were lost while they started: {_reason(error)}."
                ) from error
            return
        self._failed_starts = 0
        if node.faults:
            self._retire(actor, f"A slot on node {node.name} is not used: {node.faults[0].sentence()}")
        elif node.versions != self.versions:
            self._retire(actor, f"A slot on node {node.name} is not used: it has other versions than the first node.")
        elif actor.kind.gpus and node.gpus.hardware != actor.kind.hardware:
            found = node.gpus.hardware or node.gpus.note
            self._retire(actor, f"A slot on node {node.name} is not used: its card is {found}.")
        else:
            self._idle[actor.handle._actor_id] = replace(actor, node=node.name)

    def _retire(self, actor: _Actor, reason: str) -> None:
        self._retired.append(actor)
        self.notes.append(reason)

    # ---- ending ------------------------------------------------------------------------------------------------------

    def _ended(self, reference: object) -> EndedTask:
        slot, actor = self._busy.pop(reference)
        try:
            result: RemoteResult = ray.get(reference)
        except RayError as error:
            _end(actor)
            return EndedTask(slot=slot, result=None, reason=_reason(error))
        self._idle[slot] = actor
        return EndedTask(slot=slot, result=result)


def _wait(references: Sequence[object], *, count: int, most_s: float) -> tuple[Sequence[object], Sequence[object]]:
    """Return the references that have a value and the others, after `most_s` at most, or when `count` have one."""
    if not references:
        return [], []
    until_s = time.monotonic() + most_s
    while True:
        left_s = max(0.0, until_s - time.monotonic())
        # Ray replaces the exception of a handler that runs within its call by a KeyboardInterrupt.
        with postponed_signals():
            ready, others = ray.wait(references, num_returns=count, timeout=min(left_s, _SLICE_S))
        if len(ready) >= count or left_s <= _SLICE_S:
            return ready, others


def _actor_class(slot: type[Slot], kind: SlotKind) -> Any:  # noqa: ANN401, a class of Ray
    options: dict[str, Any] = {"num_cpus": 1, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
    if kind.gpus:
        options["num_gpus"] = kind.gpus
    if kind.accelerator:
        options["accelerator_type"] = kind.accelerator
    return ray.remote(slot).options(**options)


def _end(actor: _Actor) -> None:
    with suppress(RayError):
        ray.kill(actor.handle)


def _reason(error: RayError) -> str:
    """Return why an actor was lost: the error that it raised, or what Ray says."""
    cause = getattr(error, "cause", None)
    return _first_line(cause if isinstance(cause, BaseException) else error)
