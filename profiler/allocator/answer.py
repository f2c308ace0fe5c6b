"""What a user asks about a recorded history, and the answer: it as it was, and as it would have been."""

from dataclasses import dataclass, replace
from enum import StrEnum

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.allocator.config import AllocatorConfig
from profiler.allocator.history import RecordedHistory
from profiler.allocator.recorded import RecordedComparison, replay_history
from profiler.allocator.what_if import WhatIf, what_if
from profiler.domain.context import cuda_context_bytes
from profiler.domain.gpu import Gpu

SUGGESTED = "expandable_segments:True"
"""The setting that is tried where nothing is asked: PyTorch's own message recommends it against fragmentation."""


class CapacitySource(StrEnum):
    """How it is known what the process could have taken from the driver."""

    GPU = "gpu"
    """A named card's memory without the assumed CUDA context."""
    OOM = "oom"
    """What it held when it ran out of memory, and what the driver then had left."""
    FULL = "full"
    """A request made it give memory back, so the card was full: the most that it ever held."""
    UNKNOWN = "unknown"
    """Nothing in the history says: a card without limit."""


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a process can take from the driver."""

    size_bytes: int | None
    """What it is known to have had at least; None: without limit."""
    source: CapacitySource
    most_bytes: int | None = None
    """What it can have had at most, where that is not the same: `FULL` only."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked about a history."""

    alloc_conf: str | None = None
    """PYTORCH_ALLOC_CONF's text, in place of all recorded settings; None: the recorded ones."""
    gpu: Gpu | None = None
    """None: the card of the recording."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is asked, so that `SUGGESTED` is tried."""
        return self.alloc_conf is None and self.gpu is None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The program under one set of conditions."""

    config: AllocatorConfig
    gpu: Gpu | None
    capacity: Capacity
    result: WhatIf
    might_fit: bool
    """Whether it fits at least into the most that the process can have had (`Capacity.most_bytes`)."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A history, its replay, and what else was tried."""

    history: RecordedHistory
    comparison: RecordedComparison
    question: Question
    anew: Scenario | None
    """With the recorded settings, begun with the blocks in use only; None where the recording begins empty.

    What a setting changes shows against this: beginning without cached memory makes a difference of its own.
    """
    after: Scenario | None
    """What was asked, or suggested; None where the entries contradict each other, or nothing is left to suggest."""


def answer(history: RecordedHistory, question: Question) -> Answer:
    """Replay a history and try what is asked.

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
    return Answer(history=history, comparison=comparison, question=question, anew=anew, after=after)


def recorded_capacity(comparison: RecordedComparison) -> Capacity:
    """What is known of the card of the recording."""
    for refusal in comparison.course.refusals:
        if refusal.driver_free_bytes is not None:
            return Capacity(size_bytes=refusal.reserved_bytes + refusal.driver_free_bytes, source=CapacitySource.OOM)
    if comparison.course.num_alloc_retries:
        held, refused = comparison.recorded_peak_reserved_bytes, comparison.refused_bytes
        # Below what was held it was refused because of what others took of the card then.
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
