"""What `VramCallback` costs per optimizer step: its phases, its hooks of the model, its log, and its samples."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from profiler.callback.recording import Recording, instruments_of_this_machine
from profiler.callback.vram_callback import PERIOD_S
from profiler.domain.memory import Phase
from profiler.scripts.hooks import watched
from profiler.scripts.phase_watch import PhaseWatch

ACCUMULATION, NEW_TOKENS, HOOKED_MODULES = 8, 256, 2
"""Of the step: micro-batches, decoding steps, and modules with hooks (a causal model and its decoder)."""

ALLOWED_SHARE = 0.005
"""Most of a step's time that the callback may take."""

_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class CallbackCost:
    """Seconds of the callback."""

    step_s: float
    """Per optimizer step, without samples."""
    has_gpu: bool
    """Whether torch's counters and the driver were read; without a GPU there are none."""

    @property
    def shortest_step_s(self) -> float:
        """Return the shortest step of which this is at most the allowed share."""
        return self.step_s / ALLOWED_SHARE


def callback_cost() -> CallbackCost:
    """Measure the callback's part of a step on this machine."""
    instruments = instruments_of_this_machine(PERIOD_S)
    if instruments.card is not None:
        torch.zeros(1, device="cuda")
    recording = Recording(instruments)
    model = torch.nn.Linear(1, 1)
    x = torch.zeros(1, 1)
    bare_s = _seconds(lambda: _decode(model, x))
    watch = PhaseWatch(recording.session, steps=None)
    with watched(watch, models=[model]), watch.during(Phase.ROLLOUT):
        hooked_s = _seconds(lambda: _decode(model, x))
    step_s = _seconds(lambda: _phases_of_a_step(recording))
    recording.finished(completed=True)
    return CallbackCost(step_s=step_s + max(0.0, hooked_s - bare_s), has_gpu=instruments.card is not None)


def _phases_of_a_step(recording: Recording) -> None:
    for phase in (Phase.ROLLOUT, Phase.SCORE, Phase.REWARD, *(Phase.FORWARD, Phase.BACKWARD) * ACCUMULATION):
        recording.enter(phase)
    recording.enter(Phase.OPTIMIZER)
    recording.step_ended()
    recording.metrics()


def _decode(model: torch.nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        for _ in range(NEW_TOKENS * HOOKED_MODULES):
            model(x)


def _seconds(action: Callable[[], object]) -> float:
    """Return the mean CPU time of a call in this thread, after one that does not count."""
    action()
    started = time.thread_time()
    for _ in range(_STEPS):
        action()
    return (time.thread_time() - started) / _STEPS
