"""The composition of a trial's peak on a real device, from a second run under the tracing mode.

The traced peak is smaller than the measured one: scratch that kernels allocate inside an operation is not traced.
"""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from profiler.allocator import AllocatorConfig, Trace, replay_on_card
from profiler.allocator.traces.replay import largest_groups
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.outcome import Breakdown, Outcome
from profiler.domain.runs.readings import CategoryShare, TensorGroup
from profiler.domain.trials.trial import TrialSpec
from profiler.seams.checked import check_seams
from profiler.simulation.tracing.attribution import Attribution, attributed_cache, named_tensors
from profiler.simulation.tracing.backward import IN_PLACE, BackwardMode, without_a_mode
from profiler.simulation.tracing.recorder import Recorder
from profiler.training.run import run_training

aten = torch.ops.aten


class TracingMode:
    """A session of training on a real device whose tensors are attributed. One per process."""

    def __init__(self, device: torch.device, beat: Callable[[], None]) -> None:
        self.recorder = Recorder()
        self._device, self._beat = device, beat
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
        """Begin `phase`, with a sign of life."""
        self._beat()
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
        result = func(*args, **(kwargs or {}))
        self._record(result)
        return result

    def _record(self, made: Any) -> None:
        if isinstance(made, torch.Tensor):
            if made.device.type == self._device_type:
                self._recorder.made(made)
        elif isinstance(made, list | tuple):
            for each in made:
                self._record(each)


@dataclass(frozen=True, kw_only=True)
class Attributed:
    """Memory in use at the peak of a trace."""

    trace: Trace
    peak_allocated_bytes: int
    peak_phase: Phase
    breakdown: Mapping[Category, int]
    largest: tuple[TensorGroup, ...]


def attribute(
    spec: TrialSpec, model_config: Mapping[str, Any], device: torch.device, *, beat: Callable[[], None] = lambda: None
) -> Attributed:
    """Run the trial on `device` and attribute every tensor; `beat` is called at each phase."""
    tracing_mode = TracingMode(device, beat)
    trained = run_training(spec, model_config, tracing_mode)
    trace = tracing_mode.recorder.finished()
    del trained  # It keeps the trainer's tensors in use until the trace is read.
    replayed = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    return Attributed(
        trace=trace,
        peak_allocated_bytes=replayed.peak_allocated_bytes,
        peak_phase=replayed.peak_phase,
        breakdown=replayed.breakdown,
        largest=largest_groups(trace, replayed.live_bytes),
    )


def with_attribution(outcome: Outcome, found: Attributed) -> Outcome:
    """Return a measured outcome with the composition of its peak; its own numbers stay.

    Bytes of the counters that are not in the trace are `other`. If the trace's peak is larger, or in another phase, it
    is not the peak that was measured: the outcome has no breakdown and gives the reason.
    """
    peak = outcome.peaks.allocated_bytes
    if peak is None:
        return outcome
    beyond = peak - found.peak_allocated_bytes
    if beyond < 0 or outcome.peaks.phase is not found.peak_phase:
        reason = (
            f"the trace has its peak of {found.peak_allocated_bytes} bytes in {found.peak_phase}, "
            f"the counters have theirs of {peak} in {outcome.peaks.phase}"
        )
        return without_breakdown(outcome, reason)
    shares = dict(found.breakdown)
    if beyond:
        shares[Category.OTHER] = shares.get(Category.OTHER, 0) + beyond
    return replace(
        outcome,
        breakdown=Breakdown(
            shares=tuple(CategoryShare(category=category, size_bytes=size) for category, size in shares.items()),
            largest=found.largest,
        ),
    )


def without_breakdown(outcome: Outcome, reason: str) -> Outcome:
    """Return a measured outcome with the reason why it has no breakdown."""
    return replace(outcome, breakdown=Breakdown(problem=reason))


def breakdown_of(
    outcome: Outcome, spec: TrialSpec, model_config: Mapping[str, Any], *, beat: Callable[[], None]
) -> Outcome:
    """Return a measured outcome with its breakdown, from a second run on the same GPU.

    If that run fails, the outcome gives the reason and keeps everything that was measured.
    """
    # Free what the measured trial left behind.
    gc.collect()
    torch.cuda.empty_cache()
    try:
        check_seams(spec.backend, breakdown=True)
        return with_attribution(outcome, attribute(spec, model_config, torch.device("cuda", 0), beat=beat))
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        return without_breakdown(outcome, f"the second run ended with {type(error).__name__}: {first_line}")
