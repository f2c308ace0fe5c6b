"""A trial on a real device with the books kept: what its memory is at its peak. A run of its own, beside the measured.

Its peak is not the trial's: what kernels take inside is not seen.
"""

import gc
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from profiler.allocator import AllocatorConfig, Trace, replay_on_card
from profiler.allocator.largest import largest_groups
from profiler.domain.memory import Category, Phase
from profiler.domain.outcome import NO_BREAKDOWN, CategoryShare, Outcome, TensorGroup
from profiler.domain.trial import TrialSpec
from profiler.seams.checking import check_seams
from profiler.simulation.tracing.tracing_mode import TracingMode
from profiler.training.job import build_trainer


@dataclass(frozen=True, kw_only=True)
class Attributed:
    """What stood at the peak of the books."""

    trace: Trace
    peak_allocated_bytes: int
    peak_phase: Phase
    breakdown: Mapping[Category, int]
    largest: tuple[TensorGroup, ...]


def attribute(
    spec: TrialSpec, model_config: Mapping[str, Any], device: torch.device, *, beat: Callable[[], None] = lambda: None
) -> Attributed:
    """Run the trial on `device` and attribute every tensor."""
    tracing_mode = _Beating(device, beat)
    with tempfile.TemporaryDirectory() as folder, tracing_mode.running():
        trainer = build_trainer(
            spec, model_config=model_config, placement=tracing_mode, observer=tracing_mode, output_dir=Path(folder)
        )
        tracing_mode.trainer_ready(trainer)
        trainer.train()
        tracing_mode.trainer_done(trainer)
    trace = tracing_mode.recorder.finished()
    replayed = replay_on_card(trace, capacity_bytes=None, config=AllocatorConfig())
    return Attributed(
        trace=trace,
        peak_allocated_bytes=replayed.peak_allocated_bytes,
        peak_phase=replayed.peak_phase,
        breakdown=replayed.breakdown,
        largest=largest_groups(trace, replayed.live_bytes),
    )


def with_attribution(outcome: Outcome, found: Attributed) -> Outcome:
    """A measured outcome with what the books say of its peak; its own figures stay.

    What the counters have beyond the books is `other`. Books that have more, or another phase, say nothing of that
    peak: then there is no breakdown, and the outcome says why.
    """
    peak = outcome.peak_allocated_bytes
    if peak is None:
        return outcome
    beyond = peak - found.peak_allocated_bytes
    if beyond < 0 or outcome.peak_phase is not found.peak_phase:
        reason = (
            f"the books have {found.peak_allocated_bytes} bytes in {found.peak_phase} at their peak, "
            f"the counters {peak} in {outcome.peak_phase}"
        )
        return without_breakdown(outcome, reason)
    shares = dict(found.breakdown)
    if beyond:
        shares[Category.OTHER] = shares.get(Category.OTHER, 0) + beyond
    return replace(
        outcome,
        breakdown=tuple(CategoryShare(category=category, size_bytes=size) for category, size in shares.items()),
        largest=found.largest,
    )


def without_breakdown(outcome: Outcome, reason: str) -> Outcome:
    """A measured outcome that says why it has no breakdown."""
    return replace(outcome, not_measured="; ".join(filter(None, (outcome.not_measured, NO_BREAKDOWN + reason))))


def breakdown_of(
    outcome: Outcome, spec: TrialSpec, model_config: Mapping[str, Any], *, beat: Callable[[], None]
) -> Outcome:
    """A measured outcome with its breakdown, after a run of its own on the same GPU.

    Whatever goes wrong there is a reason why there is none: what was measured stays.
    """
    # What the measured trial left behind goes first.
    gc.collect()
    torch.cuda.empty_cache()
    try:
        check_seams(spec.backend, breakdown=True)
        return with_attribution(outcome, attribute(spec, model_config, torch.device("cuda", 0), beat=beat))
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        return without_breakdown(outcome, f"its own run ended with {type(error).__name__}: {first_line}")


class _Beating(TracingMode):
    """A ledger that gives a sign of life at each phase."""

    def __init__(self, device: torch.device, beat: Callable[[], None]) -> None:
        super().__init__(device)
        self._beat = beat

    def enter(self, phase: Phase) -> None:
        self._beat()
        super().enter(phase)
