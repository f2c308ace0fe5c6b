"""What an emulated process needs before its program imports torch, and ranks that are not there."""

import ctypes
import errno
import importlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NoReturn

from profiler.domain.memory import Phase
from profiler.emulation.card import PROCESSES_VARIABLE
from profiler.emulation.inside.triton_kernels import (
    avoid_special_tokens,
    note_generation,
    note_kernels,
    note_requests,
)
from profiler.emulation.inside.worker_groups import answers_alone, is_of_job, prepare_frameworks
from profiler.seams.patching import around_import

RUNTIME = "libcudart"

ALL_RANKS = "EMULATED_ALL_RANKS"
"""Environment variable: every rank is a process; without it this one is rank 0, and the others are answered for."""

_MOST_CHARACTERS = 380


def find_emulated_runtime(library: Path) -> Callable[[ModuleType], None]:
    """Return what has to be done after the import of vLLM's `cuda_wrapper`.

    vLLM takes the first library of that name that the process has loaded. torchvision's wheel brings one of its own,
    which finds no card behind the emulated driver.
    """

    def after_import(wrapper: ModuleType) -> None:
        find = wrapper.find_loaded_library

        def found(name: str) -> str | None:
            answer: str | None = str(library) if name == RUNTIME else find(name)
            return answer

        wrapper.find_loaded_library = found  # type: ignore[attr-defined]

    return after_import


def refuse_ports_of_others(folder: str) -> None:
    """Let a port count as in use where a process that is not part of the job listens on it, and say which one does.

    The kernel lets two servers of a user share a port if both of them ask for it, as vLLM's do: either one would then
    get the requests of both jobs.
    """
    bind = socket.socket.bind

    def bound(self: socket.socket, address: Any) -> None:
        port = address[1] if self.family in (socket.AF_INET, socket.AF_INET6) else 0
        shares = bool(port) and self.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT)
        if shares and (other := listening_process(port)) is not None and not _is_ours(other, folder):
            raise OSError(errno.EADDRINUSE, _in_use(port, other))
        try:
            bind(self, address)
        except OSError as error:
            if not port or error.errno != errno.EADDRINUSE:
                raise
            raise OSError(errno.EADDRINUSE, _in_use(port, listening_process(port))) from error

    socket.socket.bind = bound  # type: ignore[assignment, method-assign]


def _is_ours(pid: int, folder: str) -> bool:
    with suppress(OSError):
        return is_of_job(Path("/proc", str(pid)), folder)
    return False


def _in_use(port: int, pid: int | None) -> str:
    by = "another process" if not pid else f"process {pid}"
    return f"port {port} is in use by {by}: end it, or choose another port"


def listening_process(port: int, processes: Path = Path("/proc")) -> int | None:
    """Return a process that listens on a TCP port of this machine, 0 if it is of another user; None if none does."""
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            rows = [line.split() for line in (processes / "net" / table).read_text().splitlines()[1:]]
            sockets |= {row[9] for row in rows if row[3] == _LISTENS and int(row[1].rpartition(":")[2], 16) == port}
    for process in processes.glob("[0-9]*") if sockets else ():
        with suppress(OSError):
            if any(_socket_of(file) in sockets for file in (process / "fd").iterdir()):
                return int(process.name)
    return 0 if sockets else None


_LISTENS = "0A"
"""State of a socket in the kernel's tables (`TCP_LISTEN` in linux/net/tcp_states.h)."""


def _socket_of(file: Path) -> str:
    with suppress(OSError):
        return str(file.readlink()).removeprefix("socket:[").removesuffix("]")
    return ""


def note_rank(card: ctypes.CDLL) -> Callable[[ModuleType], None]:
    """Return what has to be done after the import of torch's `distributed_c10d`: note the rank in the whole group.

    The launcher's environment need not have it. A group of NCCL need not be one of equal ranks: a trainer and the
    engine that it sends weights to are one.
    """

    def after_import(c10d: ModuleType) -> None:
        join = c10d.init_process_group

        @wraps(join)
        def joined(*args: Any, **kwargs: Any) -> None:
            join(*args, **kwargs)
            card.em_rank(c10d.get_rank(), c10d.get_world_size())

        c10d.init_process_group = joined  # type: ignore[attr-defined]

    return after_import


def note_errors(card: ctypes.CDLL) -> None:
    """Keep the last sentence of a process that ends by an error, where its job reads it.

    `multiprocessing` and torch's `spawn` end a process themselves, and an error of theirs reaches no hook of Python;
    nor does `sys.exit`, by which uvicorn ends where it has printed its error.
    """
    show, leave = sys.excepthook, sys.exit

    def left(code: Any = None) -> NoReturn:
        if threading.current_thread() is threading.main_thread():
            ending = SystemExit(code)
            ending.__context__ = sys.exc_info()[1]
            _say(card, ending)
        leave(code)

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _say(card, error)
        show(kind, error, trace)

    sys.excepthook, sys.exit = shown, left
    if (loaded := sys.modules.get("multiprocessing.process")) is not None:  # by a .pth file of the environment
        _note_in_children(card, loaded.BaseProcess)
    else:
        around_import("multiprocessing.process", after=lambda module: _note_in_children(card, module.BaseProcess))


def _note_in_children(card: ctypes.CDLL, process: Any) -> None:
    start = process._bootstrap

    def bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        run = self.run

        def noted() -> None:
            try:
                run()
            except BaseException as error:
                _say(card, error)
                raise

        self.run = noted
        return start(self, *args, **kwargs)

    process._bootstrap = bootstrap


def _say(card: ctypes.CDLL, error: BaseException) -> None:
    """Keep an error, or the one that a library has turned into an exit code; not an interruption or a success."""
    speaks = isinstance(error, SystemExit) and isinstance(error.code, str)
    cause = error.__context__ if isinstance(error, SystemExit) and error.code and not speaks else error
    if cause is None or (isinstance(cause, KeyboardInterrupt | SystemExit) and not speaks):
        return
    words = " ".join(str(cause).split())
    sentence = f"{type(cause).__name__}: {words}" if words else type(cause).__name__
    card.em_said(sentence[:_MOST_CHARACTERS].encode(errors="replace"))


def answer_for_other_ranks(rendezvous: ModuleType) -> None:
    """Replace the rendezvous by environment variables and by TCP with one that needs no other process."""
    for scheme in ("env", "tcp"):
        rendezvous._rendezvous_handlers[scheme] = _meet_nobody


def join_groups_alone(c10d: ModuleType) -> None:
    """Replace gloo, which connects to real processes, by torch's group that has only this one.

    vLLM has such groups for messages of its ranks. A rank hears from the others what it said itself.
    """
    fake: Any = importlib.import_module("torch._C._distributed_c10d").FakeProcessGroup

    class Kind(type):
        def __instancecheck__(cls, group: object) -> bool:
            return isinstance(group, fake)

    class LoneGloo(metaclass=Kind):
        """Stands where torch would make a group of gloo, or ask whether a group is one."""

        def __new__(cls, _store: Any, rank: int, size: int, **_options: Any) -> Any:
            return fake._create_internal(rank, size)

    fake._set_sequence_number_for_group = lambda _group: None  # torch numbers the messages of gloo
    c10d.ProcessGroupGloo = LoneGloo  # type: ignore[attr-defined]


def _meet_nobody(url: str, timeout: timedelta | None = None, **_options: Any) -> Iterator[tuple[Any, int, int]]:
    del url, timeout
    world_size, rank = int(os.environ["WORLD_SIZE"]), int(os.environ.get("RANK", "0"))
    yield new_store(world_size, rank), rank, world_size
    raise RuntimeError("Ranks that are not there cannot meet a second time")


def new_store(world_size: int, rank: int = 0) -> Any:
    """Return a store of torch.distributed for this process; torch is imported by then."""
    store_type: Any = importlib.import_module("torch.distributed").Store

    class LoneRankStore(store_type):  # type: ignore[misc]
        """What torch asks of a store, answered by `Answers`."""

        def __init__(self) -> None:
            super().__init__()
            self.answers = Answers(world_size, rank)

        def set(self, key: str, value: str | bytes) -> None:
            self.answers.put(key, value.encode() if isinstance(value, str) else bytes(value))

        def get(self, key: str) -> bytes:
            return self.answers.value(key)

        def add(self, key: str, amount: int) -> int:
            return self.answers.add(key, amount)

        def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
            found = self.answers.own(key)
            if found is None or found == (expected.encode() if isinstance(expected, str) else bytes(expected)):
                self.set(key, desired)
            return self.answers.value(key)

        def check(self, keys: Sequence[str]) -> bool:
            return all(self.answers.has(key) for key in keys)

        def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
            missing = [key for key in keys if not self.answers.wait_for(key, timeout or timedelta(seconds=_WAIT_S))]
            if missing:
                raise RuntimeError(f"No rank sets {', '.join(missing)}: ranks other than 0 are emulated")

        def delete_key(self, key: str) -> bool:
            return self.answers.remove(key)

        def num_keys(self) -> int:
            return len(self.answers.kept)

        def clone(self) -> Any:
            return self

        def has_extended_api(self) -> bool:
            return False

    store = LoneRankStore()
    _STORES.append(store)
    return store


_STORES: list[Any] = []
"""Stores that were handed out: torch keeps the half of them that is written in C++, and calls this one."""


_WAIT_S = 30
"""How long a key that no rank sets is waited for; another thread of this process may set it."""

_LOOK_AGAIN_S = 0.01


_COMMUNICATOR = re.compile(r"//cuda//\d+$")
"""End of the key under which rank 0 of a group puts the identifier of NCCL's communicator."""
_NO_IDENTIFIER = bytes(128)
"""As many bytes as `ncclUniqueId` has (nccl.h). A rank that is alone meets nobody by it."""


class Answers:
    """Keys and values of all ranks. Only this rank puts any; the others would have put the same."""

    def __init__(self, world_size: int, rank: int = 0) -> None:
        self.world_size, self.rank = world_size, rank
        self.kept: dict[str, bytes] = {}
        self._lock = threading.RLock()

    def put(self, key: str, value: bytes) -> None:
        """Keep a value of this rank."""
        with self._lock:
            self.kept[key] = value

    def own(self, key: str) -> bytes | None:
        """Return what this rank put under this key, or under its own key of the same kind."""
        with self._lock:
            for each in (key, *own_keys(key, self.rank)):
                if each in self.kept:
                    return self.kept[each]
        return _NO_IDENTIFIER if self.rank and _COMMUNICATOR.search(key) else None

    def value(self, key: str) -> bytes:
        """Return the value of a key that some rank has set, waiting for it as torch's stores do."""
        if not self.wait_for(key, timedelta(seconds=_WAIT_S)):
            raise RuntimeError(f"No rank sets {key}: ranks other than 0 are emulated")
        return self.own(key) or b""

    def has(self, key: str) -> bool:
        """Whether a rank has set the key."""
        return self.own(key) is not None

    def wait_for(self, key: str, timeout: timedelta) -> bool:
        """Wait until a rank has set the key; False if none does."""
        end = time.monotonic() + timeout.total_seconds()
        while not (found := self.has(key)) and time.monotonic() < end:
            time.sleep(_LOOK_AGAIN_S)
        return found

    def add(self, key: str, amount: int) -> int:
        """Add what all ranks add: each of them the same."""
        with self._lock:
            total = int(self.kept.get(key, b"0")) + amount * self.world_size
            self.put(key, str(total).encode())
            return total

    def remove(self, key: str) -> bool:
        """Remove a key."""
        with self._lock:
            return self.kept.pop(key, None) is not None


def own_keys(key: str, rank: int = 0) -> list[str]:
    """Return the keys under which a rank put what another one would have put under `key`: one number is its own."""
    return [f"{key[: match.start()]}{rank}{key[match.end() :]}" for match in re.finditer(r"\d+", key)]


def prepare(environment: Mapping[str, str], *, follow: Callable[[Callable[[Any], None]], None]) -> None:
    """Register what happens around the imports of the program.

    Args:
        environment: Of this process.
        follow: Calls its argument from then on when a phase begins. A job of several processes has one per process; the
            process of a single script follows its phases by itself.
    """
    of_job = bool(environment.get(ALL_RANKS))
    alone = bool(environment.get("WORLD_SIZE")) and not of_job
    if of_job and answers_alone(environment):
        os.environ.pop(ALL_RANKS, None)  # the driver reads it too
        alone = True
    libraries = Path(environment["EMULATED_LIBRARIES"])
    built = json.loads((libraries / "built.json").read_text())
    card = ctypes.CDLL(str(libraries / built["card"]), mode=ctypes.RTLD_GLOBAL)
    around_import("torch", before=lambda: _load(libraries, built["load"]))
    if environment.get("EMULATED_VALUES") != "0":
        around_import("torch", after=lambda _torch: _install_values(libraries / built["values"]))
    if of_job:
        around_import("torch", after=lambda _torch: follow(lambda phase: card.em_phase(tuple(Phase).index(phase))))
    around_import("transformers.generation.utils", after=note_generation)
    around_import("vllm.v1.worker.gpu_worker", after=note_requests)
    if of_job:
        prepare_frameworks(environment)
        around_import("torch.distributed.distributed_c10d", after=note_rank(card))
        refuse_ports_of_others(environment[PROCESSES_VARIABLE])
    note_kernels(card)
    runtime = next(name for name in built["load"] if name.startswith(f"{RUNTIME}."))
    around_import(
        "vllm.distributed.device_communicators.cuda_wrapper", after=find_emulated_runtime(libraries / runtime)
    )
    card.em_join()
    note_errors(card)
    if alone:
        around_import("torch.distributed.rendezvous", after=answer_for_other_ranks)
        around_import("torch.distributed.distributed_c10d", after=join_groups_alone)


def _load(libraries: Path, names: list[str]) -> None:
    """Load the emulated libraries, so that torch finds these even if the vendor's are installed."""
    for name in names:
        ctypes.CDLL(str(libraries / name), mode=ctypes.RTLD_GLOBAL)


def _install_values(path: Path) -> None:
    values = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    values.emulated_values_install()
    avoid_special_tokens(values)
