"""A trace of the memory of a real device: every operation runs, and what it makes is recorded.

Scratch that a kernel allocates inside an operation is not in the trace, nor is memory that a library gets from the
driver.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from profiler.domain.memory import Category, Phase
from profiler.simulation.tracing.attribution import Attribution, attributed_cache, named_tensors
from profiler.simulation.tracing.backward import IN_PLACE, BackwardMode, without_a_mode
from profiler.simulation.tracing.recorder import Recorder

aten = torch.ops.aten


class TracingMode:
    """A session of training on a real device whose tensors are attributed. One per process."""

    def __init__(self, device: torch.device) -> None:
        self.recorder = Recorder()
        self._device = device
        self._attribution = Attribution(self.recorder, device_type=device.type)

    @property
    def device(self) -> torch.device:
        """Where the trial runs."""
        return self._device

    @property
    def use_cpu(self) -> bool:
        """True for the CPU."""
        return self._device.type == "cpu"

    @property
    def whole_config(self) -> None:
        """None: all layers run."""
        return

    def host_side(self) -> AbstractContextManager[None]:
        """Do nothing: tensors on the host are not on the device."""
        return nullcontext()

    def attributed(self, category: Category) -> AbstractContextManager[None]:
        """A context in which new memory belongs to `category`."""
        return self.recorder.attributed(category)

    def decode_extrapolator(self) -> None:
        """Return None: every decoding step runs."""
        return

    def enter(self, phase: Phase) -> None:
        """Begin `phase`."""
        self.recorder.enter(phase)

    def adopt(self, arguments: Any) -> None:
        """Do nothing: transformers finds the device."""

    def trainer_ready(self, trainer: Any) -> None:
        """Attribute the trainer's tensors; those loaded from a file without an operation are added to the trace."""
        for model in filter(None, (trainer.model, trainer.ref_model)):
            for _, tensor in named_tensors(model):
                if tensor.device.type == self._device.type:
                    self.recorder.made(tensor)
        self._attribution.trainer_ready(trainer)

    def trainer_done(self, trainer: Any) -> None:
        """Attribute the optimizer states."""
        self._attribution.trainer_done(trainer)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While active, tensors that operations make on the device are recorded."""
        with ExitStack() as stack:
            stack.enter_context(attributed_cache(self.recorder))
            stack.enter_context(self.recorder.modules.watching())
            stack.enter_context(_RecordingMode(self.recorder, self._device.type))
            yield


class _RecordingMode(BackwardMode):
    """Runs every operation and records the tensors it makes."""

    def __init__(self, recorder: Recorder, device_type: str) -> None:
        super().__init__()
        self._recorder = recorder
        self._device_type = device_type

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run one operation."""
        self._recorder.operation = func
        if func is aten.add.Tensor or func in IN_PLACE:
            func = without_a_mode(func, args)
        return self._run(func, args, kwargs or {})

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        self._record(result)
        return result

    def _record(self, made: Any) -> None:
        if isinstance(made, torch.Tensor):
            if made.device.type == self._device_type:
                self._recorder.made(made)
        elif isinstance(made, list | tuple):
            for each in made:
                self._record(each)
