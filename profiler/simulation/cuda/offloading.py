"""What leaves the simulated GPU: activations that are offloaded, and a cache that is emptied.

Activation offloading has streams, addresses of storages and pinned memory of the host. trl's `OffloadActivations` and
torch's `save_on_cpu` run unchanged. Events have always happened: the host is as far as the card, so that
`record_stream` delays no release.

`torch.cuda.empty_cache` is recorded, so that the model of the allocator releases its cache. transformers' trainer calls
it through accelerate when training begins (`Accelerator.free_memory`), and before backward with
`torch_empty_cache_steps`. On a card the first releases the cache that loading left, before the rollout begins.
"""

import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from accelerate.utils import memory as accelerate_memory
from transformers import trainer as transformers_trainer

from profiler.seams.patching import patched
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
