"""Streams, events and graphs of `torch.cuda` for a script: the simulated GPU has one stream and no time."""

from typing import Any

import torch

from profiler.seams.patching import Patch
from profiler.simulation.script.torch_cuda.card_names import UnknownReads, nothing, refused, refused_class


def stream_calls(reads: UnknownReads) -> list[Patch]:
    """Return the patches of streams, events and graphs, under all names that torch has for them."""
    classes = _classes(reads)
    functions = {
        "synchronize": nothing,
        "current_stream": lambda *_: _Stream(),
        "default_stream": lambda *_: _Stream(),
        "get_stream_from_external": lambda *_: classes["ExternalStream"](),
        "stream": lambda *_: _Nothing(),
        "set_stream": nothing,
        "StreamContext": _Nothing,
    }
    graphs = {
        "CUDAGraph": refused_class("torch.cuda.CUDAGraph"),
        "graph": refused_class("torch.cuda.graph"),
        "make_graphed_callables": refused("torch.cuda.make_graphed_callables"),
        "graph_pool_handle": refused("torch.cuda.graph_pool_handle"),
        "is_current_stream_capturing": lambda: False,
    }
    return [
        *((torch.cuda, name, answer) for name, answer in (classes | functions | graphs).items()),
        *((torch.cuda.streams, name, answer) for name, answer in classes.items()),
        *((torch.cuda.graphs, name, answer) for name, answer in graphs.items()),
        (torch._C, "_accelerator_getStream", lambda *_: _Stream()),
        (torch._C, "_accelerator_setStream", nothing),
        (torch._C, "_accelerator_synchronizeDevice", nothing),
    ]


def _classes(reads: UnknownReads) -> dict[str, type]:
    """Return classes, as torch's own are: libraries write `torch.cuda.Stream | None`."""

    class Stream(_Stream):
        """A stream that the script makes."""

        def __init__(self, *_: Any, **__: Any) -> None:
            reads.note("what several streams change: all work of the script is on one")

    class ExternalStream(Stream):
        """A stream of another library."""

    class Event(_Event):
        """An event that the script makes."""

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__(reads)

    return {"Stream": Stream, "ExternalStream": ExternalStream, "Event": Event}


class _Nothing:
    """A context that changes nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class _Stream:
    """The only stream."""

    cuda_stream = stream_id = device_index = priority = 0
    device_type = 1

    @property
    def device(self) -> torch.device:
        """The card."""
        return torch.device("cuda", 0)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority."""
        return 0, -5

    def is_capturing(self) -> bool:
        """Return False: graphs are refused."""
        return False

    def synchronize(self) -> None:
        """Do nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing."""

    def wait_event(self, event: Any) -> None:
        """Do nothing."""

    def record_event(self, event: Any = None) -> Any:
        """Return the event, or a new one."""
        return torch.cuda.Event() if event is None else event

    def query(self) -> bool:
        """Return True: everything is done."""
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Stream)

    def __hash__(self) -> int:
        return 0

    def __enter__(self) -> "_Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Event:
    """An event. Reading a time from it is noted."""

    def __init__(self, reads: UnknownReads) -> None:
        self._reads = reads

    def record(self, *_: Any) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def wait(self, *_: Any) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Return True: everything is done."""
        return True

    def elapsed_time(self, _end: Any) -> float:
        """Return one millisecond: the simulated GPU has no time."""
        self._reads.note("times that the script reads from the card")
        return 1.0

    def ipc_handle(self) -> bytes:
        """Refuse: other processes are not simulated."""
        return bytes(refused("torch.cuda.Event.ipc_handle")())
