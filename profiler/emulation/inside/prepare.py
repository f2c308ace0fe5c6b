"""What an emulated process needs before its program imports torch, and ranks that are not there."""

import ctypes
import importlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from profiler.domain.memory import Phase
from profiler.emulation.card import PROCESSES_VARIABLE
from profiler.emulation.inside.other_jobs import refuse_other_clusters, refuse_ports_of_others
from profiler.emulation.inside.triton_kernels import SPECIAL_TOKENS, note_compiled_launches, note_launches
from profiler.emulation.inside.worker_groups import answers_alone, prepare_frameworks
from profiler.seams.patching import around_import

RUNTIME = "libcudart"

ALL_RANKS = "EMULATED_ALL_RANKS"
"""Environment variable: every rank of the job is a process; without it this one is rank 0 and the others are answered
for."""

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


def note_generation(generation: ModuleType) -> None:
    """Look for special tokens again when a model of transformers begins to generate."""
    generate = generation.GenerationMixin.generate

    @wraps(generate)
    def noted(*args: Any, **kwargs: Any) -> Any:
        SPECIAL_TOKENS.forget()
        return generate(*args, **kwargs)

    generation.GenerationMixin.generate = noted


def note_requests(gpu_worker: ModuleType) -> None:
    """Keep the tokens that end the new requests of a step of vLLM."""
    execute = gpu_worker.Worker.execute_model

    @wraps(execute)
    def noted(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        for request in scheduler_output.scheduled_new_reqs:
            SPECIAL_TOKENS.add(request.sampling_params)
        return execute(self, scheduler_output, *args, **kwargs)

    gpu_worker.Worker.execute_model = noted


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

    `multiprocessing` and torch's `spawn` end a process themselves, and an error of theirs reaches no hook of Python.
    """
    show = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        _say(card, error)
        show(kind, error, trace)

    sys.excepthook = shown
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
    cause = error.__context__ if isinstance(error, SystemExit) and error.code else error
    if cause is None or isinstance(cause, KeyboardInterrupt | SystemExit):
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
    alone = int(environment.get("WORLD_SIZE") or 1) > 1 and not of_job
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
        around_import("ray._private.services", after=refuse_other_clusters(environment[PROCESSES_VARIABLE]))
        refuse_ports_of_others(environment[PROCESSES_VARIABLE])
    around_import("triton.runtime.jit", after=note_launches(card))
    around_import("torch._inductor.runtime.triton_heuristics", after=note_compiled_launches(card))
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


def avoid_special_tokens(values: ctypes.CDLL) -> None:
    """Let each draw that takes the place of a network's choice avoid the special tokens of that time."""
    passed_on: frozenset[int] | None = None

    def before_draw() -> None:
        nonlocal passed_on
        SPECIAL_TOKENS.look()
        if passed_on is not SPECIAL_TOKENS.tokens:  # also where a kernel of vLLM has looked in between
            passed_on = SPECIAL_TOKENS.tokens
            tokens, sizes = _whole(SPECIAL_TOKENS.tokens), _whole(SPECIAL_TOKENS.vocabularies)
            values.emulated_values_special(tokens, len(tokens), sizes, len(sizes))

    callback = ctypes.CFUNCTYPE(None)(before_draw)
    values.emulated_values_on_draw(callback)
    _KEPT.append(callback)


def _whole(numbers: Iterable[int]) -> ctypes.Array[ctypes.c_int64]:
    kept = sorted(each for each in numbers if -(1 << 63) <= each < 1 << 63)
    return (ctypes.c_int64 * len(kept))(*kept)


_KEPT: list[object] = []
"""Functions that the libraries call: ctypes frees those that Python does not keep."""
