"""A question about a recorded history, and the answer: its replay as recorded and under other conditions."""

from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.allocator.histories.held_lines import HeldLines, held_lines
from profiler.allocator.histories.history import RecordedHistory
from profiler.allocator.histories.recorded import RecordedComparison, replay_history
from profiler.allocator.histories.what_if import WhatIf, what_if
from profiler.allocator.settings.alloc_conf import parse_alloc_conf
from profiler.allocator.settings.config import AllocatorConfig
from profiler.domain.cards.context import cuda_context_bytes
from profiler.domain.cards.gpu import Gpu

SUGGESTED = "expandable_segments:True"
"""The setting that is tried by default: PyTorch's own message recommends it against fragmentation."""


class CapacitySource(StrEnum):
    """How the memory that the process could take is known."""

    GPU = "gpu"
    """Memory of a named card without the assumed CUDA context."""
    OOM = "oom"
    """Reserved memory plus the driver's free memory at an out-of-memory error."""
    FULL = "full"
    """A request made the allocator release memory, so the card was full: the most that was ever reserved."""
    UNKNOWN = "unknown"
    """The history does not show it: a card without limit."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Memory that a process can take from the driver."""

    size_bytes: int | None
    """Lower bound; None: no limit."""
    source: CapacitySource
    most_bytes: int | None = None
    """Upper bound if it differs; `FULL` only."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """The conditions to try."""

    alloc_conf: str | None = None
    """Text of PYTORCH_ALLOC_CONF that replaces all recorded settings; None: the recorded ones."""
    gpu: Gpu | None = None
    """None: the card of the recording."""

    @property
    def is_empty(self) -> bool:
        """Whether no condition is given, so that `SUGGESTED` is tried."""
        return self.alloc_conf is None and self.gpu is None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Result of the program under one set of conditions."""

    config: AllocatorConfig
    gpu: Gpu | None
    capacity: Capacity
    result: WhatIf
    might_fit: bool
    """Whether it fits into the upper bound (`Capacity.most_bytes`)."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A history, its replay, and the scenarios that were tried."""

    history: RecordedHistory
    comparison: RecordedComparison
    question: Question
    anew: Scenario | None
    """With the recorded settings, begun with the blocks in use only; None where the recording begins empty.

    What a setting changes shows against this: beginning without cached memory makes a difference of its own.
    """
    held: HeldLines | None
    """Which lines of code hold the memory; None where the entries contradict each other."""
    after: Scenario | None
    """What was asked, or suggested; None where the entries contradict each other, or nothing is left to suggest."""


def answer(history: RecordedHistory, question: Question) -> Answer:
    """Replay a history and try the conditions of the question.

    Raises:
        UsageError: `alloc_conf` is wrong, or the history has private pools, which the model does not have.
    """
    comparison = replay_history(history)
    capacity = recorded_capacity(comparison)
    config = history.config if question.alloc_conf is None else parse_alloc_conf(question.alloc_conf)
    if question.is_empty:
        config = replace(config, expandable_segments=True)
    is_new = config != history.config or question.gpu is not None
    after = anew = None
    if comparison.is_consistent and (is_new or not question.is_empty):
        after = _tried(history, comparison, config=config, gpu=question.gpu, recorded=capacity)
    if comparison.is_consistent and comparison.first.segments:
        anew = _tried(history, comparison, config=history.config, gpu=None, recorded=capacity)
    held = held_lines(history, comparison) if comparison.is_consistent else None
    return Answer(history=history, comparison=comparison, question=question, anew=anew, held=held, after=after)


def recorded_capacity(comparison: RecordedComparison) -> Capacity:
    """Return the known capacity of the recorded card."""
    for refusal in comparison.course.refusals:
        if refusal.driver_free_bytes is not None:
            return Capacity(size_bytes=refusal.reserved_bytes + refusal.driver_free_bytes, source=CapacitySource.OOM)
    if comparison.course.num_alloc_retries:
        held, refused = comparison.recorded_peak_reserved_bytes, comparison.refused_bytes
        # A refusal below the reserved memory was caused by other programs on the card.
        most = None if refused is None or refused <= held else refused - 1
        return Capacity(size_bytes=held, source=CapacitySource.FULL, most_bytes=most)
    return Capacity(size_bytes=None, source=CapacitySource.UNKNOWN)


def _tried(
    history: RecordedHistory,
    comparison: RecordedComparison,
    *,
    config: AllocatorConfig,
    gpu: Gpu | None,
    recorded: Capacity,
) -> Scenario:
    capacity, total_bytes = recorded, None
    if gpu is not None:
        available_bytes = gpu.memory_bytes - cuda_context_bytes(gpu.compute_capability)
        capacity = Capacity(size_bytes=available_bytes, source=CapacitySource.GPU)
        total_bytes = gpu.memory_bytes

    def run(capacity_bytes: int | None) -> WhatIf:
        return what_if(history, comparison, config=config, capacity_bytes=capacity_bytes, total_bytes=total_bytes)

    result = run(capacity.size_bytes)
    might_fit = result.fits or (capacity.most_bytes is not None and run(capacity.most_bytes).fits)
    return Scenario(config=config, gpu=gpu, capacity=capacity, result=result, might_fit=might_fit)
