"""What leaves the simulated GPU: activations that are offloaded, a cache that is emptied, and messages to other GPUs.

Activation offloading has streams, addresses of storages and pinned memory of the host. trl's `OffloadActivations` and
torch's `save_on_cpu` run unchanged. Events have always happened: the host is as far as the card, so that
`record_stream` delays no release.

`torch.cuda.empty_cache` is recorded, so that the model of the allocator releases its cache. transformers' trainer calls
it through accelerate when training begins (`Accelerator.free_memory`), and before backward with
`torch_empty_cache_steps`. On a card the first releases the cache that loading left, before the rollout begins.

Of several GPUs one is simulated. DDP, accelerate and trl run unchanged, in a group of processes whose other members
answer at once with what this one sends. NCCL's buffers are outside torch's allocator. Texts and other objects that trl
gathers for its log pass the card in tensors of their own, which are not simulated.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed
from accelerate.utils import memory as accelerate_memory
from transformers import trainer as transformers_trainer

from profiler.seams.patching import patched
from profiler.simulation.tracing.host_values import host_value, set_host_value
from profiler.simulation.tracing.recorder import Recorder

_META = torch.device("meta")
_ADDRESS_BITS = 40
"""Addresses of two storages differ by more than the offset of any view."""


def offloaded_activations(recorder: Recorder) -> AbstractContextManager[None]:
    """While active, `meta` is the accelerator whose activations are offloaded."""
    streams = _Streams(recorder)
    read = torch.UntypedStorage.data_ptr

    def data_ptr(self: Any) -> int:
        return recorder.number_of(self) << _ADDRESS_BITS if self.device.type == _META.type else read(self)

    def device_module(device: Any = None) -> Any:
        return streams if device is None or torch.device(device).type == _META.type else found(device)

    def record_stream(self: Any, stream: Any) -> None:
        # Checkpointing uses views of what comes back, which trl then records on the default stream.
        if not isinstance(stream, _Stream):
            recorded(self, stream)

    found, recorded = torch.get_device_module, torch.Tensor.record_stream
    return patched(
        [
            (torch.UntypedStorage, "data_ptr", data_ptr),
            (torch.Tensor, "record_stream", record_stream),
            (torch, "get_device_module", device_module),
            (torch.accelerator, "is_available", lambda: True),
            (torch.accelerator, "current_accelerator", lambda *_, **__: _META),
        ]
    )


class _Stream:
    """A stream by its number; 0 is the default one."""

    def __init__(self, number: int) -> None:
        self.number = number

    def record_event(self, *_: Any) -> None:
        """Return no event: it has happened."""

    def wait_event(self, _event: Any) -> None:
        """Do nothing: every event has happened."""

    def wait_stream(self, _stream: Any) -> None:
        """Do nothing: the other stream has finished."""

    def synchronize(self) -> None:
        """Do nothing: the card has finished."""


class _Streams:
    """What of `torch.cuda` offloading uses."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._made = 0

    def __getattr__(self, name: str) -> Any:
        """Return what offloading does not use from `torch.cuda`, as a script asks for it."""
        return getattr(torch.cuda, name)

    def Stream(self) -> _Stream:  # noqa: N802  torch's name
        """Make a stream."""
        self._made += 1
        return _Stream(self._made)

    def current_stream(self) -> _Stream:
        """Return the stream on which tensors are made."""
        return _Stream(self._recorder.stream)

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        """A context in which tensors are made on `stream`."""
        with self._recorder.on_stream(stream.number):
            yield

    def empty_cache(self) -> None:
        """Release torch's cache."""
        self._recorder.trace.empty_cache()


def emptied_cache(recorder: Recorder) -> AbstractContextManager[None]:
    """While active, emptying the cache of a CUDA device is recorded."""

    def empty_cache() -> None:
        recorder.trace.empty_cache()

    def clear_device_cache(garbage_collection: bool = False) -> None:
        if garbage_collection:
            gc.collect()
        empty_cache()

    return patched(
        [
            (torch.cuda, "empty_cache", empty_cache),
            (accelerate_memory, "clear_device_cache", clear_device_cache),
            (transformers_trainer, "clear_device_cache", clear_device_cache),
        ]
    )


# ---- several GPUs ----------------------------------------------------------------------------------------------------

# torch types neither how Python overrides a group nor all names that its modules have.
dist: Any = torch.distributed

BACKEND = "one_of_several"


class _Done(dist.Work):
    """A message that has arrived."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._future: torch.futures.Future[Any] = torch.futures.Future()
        self._future.set_result(result)

    def wait(self, _timeout: Any = None) -> bool:
        """Return at once."""
        return True

    def get_future(self) -> Any:
        """Return the result."""
        return self._future


class _OneOfSeveral(dist.ProcessGroup):
    """The group of a process as if all others sent what it sends itself."""

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        """Return the name by which the group is made."""
        return BACKEND

    def allreduce(self, tensors: Sequence[torch.Tensor], _options: Any = None) -> _Done:
        """Return what this process has."""
        return _Done(tensors)

    broadcast = allreduce

    def allgather(self, found: Sequence[Sequence[torch.Tensor]], own: Sequence[torch.Tensor], _: Any = None) -> _Done:
        """Copy what this process has, once for each process."""
        for tensors, tensor in zip(found, own, strict=True):
            for each in tensors:
                each.copy_(tensor)
                _give(each, tensor, 1)
        return _Done(found)

    def all_gather_single(self, found: torch.Tensor, own: torch.Tensor, _: Any = None) -> _Done:
        """Do the same into one tensor."""
        _give(found, own, self.size())
        return _Done(found)

    _allgather_base = all_gather_single  # its name before torch 2.13

    def barrier(self, opts: Any = None) -> _Done:
        """Make the number that NCCL reduces to wait for all (`ProcessGroupNCCL::barrier`)."""
        return _Done(torch.zeros(1, device=_META))


def of_process(_store: Any, rank: int, size: int, _timeout: Any) -> _OneOfSeveral:
    """Return the group of a process, as torch makes groups of a backend."""
    return _OneOfSeveral(rank, size)


def _give(found: torch.Tensor, own: torch.Tensor, times: int) -> None:
    """Give a tensor of the card the host value of another one, so many times, where it has one."""
    value = host_value(own)
    if value is not None:
        set_host_value(found, value if times == 1 else value.flatten().repeat(times))
