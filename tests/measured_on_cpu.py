"""A trial on the real CPU, with its memory read by torch's own profiler.

The metric is `torch.profiler`'s memory events: every allocation and free that the CPU allocator reports, with address
and exact bytes. No part of the simulation is involved.
"""

import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from simulating import small_spec
from torch._C._profiler import _EventType

from profiler.allocator import Trace
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import Backend, Dtype
from profiler.training.run import PlainSession, run_training

LAYERS, ROWS, VOCABULARY, HIDDEN = 4, 8, 8192, 192
MODEL: dict[str, Any] = {
    "model_type": "qwen2",
    "hidden_size": HIDDEN,
    "intermediate_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
"""3.3 million parameters, 50 tensors."""
PARAMETER_TENSORS = 12 * LAYERS + 2
TRIAL: dict[str, Any] = {
    "dtype": Dtype.FLOAT32,
    "bf16": False,
    "max_prompt_length": 32,
    "max_completion_length": 16,
    "steps": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 2,
    "gradient_checkpointing": False,
}

_MARK = "phase of the trial: "


@dataclass(frozen=True, kw_only=True)
class Stretch:
    """Memory of one phase, from its beginning to that of the next one."""

    phase: Phase
    peak_bytes: int
    end_bytes: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    stretches: tuple[Stretch, ...]
    inside_operations: Mapping[tuple[Phase, str], int]
    """By phase and operation: the most bytes that one call allocated and freed before it ended."""


class _Announcer:
    """Adds marks to the profile. Reference cycles are collected where the simulation collects them."""

    def __init__(self) -> None:
        self._opening: Phase | None = None

    def enter(self, phase: Phase) -> None:
        if self._opening is None and phase is not Phase.LOAD:
            self._opening = phase
        if phase is self._opening:
            gc.collect()
        with torch.profiler.record_function(_MARK + phase.value):
            pass

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Do nothing."""


def measure_on_cpu(*, model_config: Mapping[str, Any], **keys: Any) -> Measured:
    spec = small_spec(**(keys | {"backend": Backend.CPU, "gpu": None}))
    threads = torch.get_num_threads()
    # Some kernels allocate scratch per thread.
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    try:
        with torch.profiler.profile(profile_memory=True, acc_events=False) as profile:
            session = PlainSession(device=torch.device("cpu"), observer=_Announcer())
            trained = run_training(spec, model_config, session)
            _end_of_profile()
            del trained  # It keeps the trainer's tensors in use until the last phase has ended.
    finally:
        gc.enable()
        torch.set_num_threads(threads)
    events = list(_events(profile))
    # Training is over where the last stretch begins.
    return Measured(stretches=stretches(_steps(events))[:-1], inside_operations=_inside_operations(events))


def _end_of_profile() -> None:
    """End the last phase of the trial."""
    with torch.profiler.record_function(_MARK + Phase.LOAD.value):
        pass


def sizes_taken(profile: Any) -> list[int]:
    """Return the bytes of every allocation in a profile, in the order of time."""
    sizes = [event.typed[1].alloc_size for event in _events(profile) if event.tag == _EventType.Allocation]
    return [size for size in sizes if size > 0]


def _events(profile: Any) -> Iterator[Any]:
    """Return memory events and marks in the order of time."""
    found, waiting = [], list(profile.profiler.kineto_results.experimental_event_tree())
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation or event.name.startswith(_MARK):
            found.append(event)
    return iter(sorted(found, key=lambda event: event.start_time_ns))


def _steps(events: list[Any]) -> Iterator[int | Phase]:
    for event in events:
        if event.tag == _EventType.Allocation:
            yield event.typed[1].alloc_size
        else:
            yield Phase(event.name.removeprefix(_MARK))


def steps_of(trace: Trace) -> Iterator[int | Phase]:
    """Yield a simulated trace as the same stream: bytes allocated or freed, not rounded, and phases that begin."""
    starts = dict(trace.phase_starts)
    for index, event in enumerate(trace.events):
        if index in starts:
            yield starts[index]
        size = trace.sizes_bytes[abs(event) - 1]
        yield size if event > 0 else -size


def stretches(steps: Iterator[int | Phase]) -> tuple[Stretch, ...]:
    """Return the peak and the end of every stretch of a phase; the level at its beginning counts."""
    level, found = 0, [[Phase.LOAD, 0, 0]]
    for step in steps:
        if isinstance(step, Phase):
            if step is not found[-1][0]:
                found.append([step, level, level])
            continue
        level += step
        found[-1][1:] = [max(found[-1][1], level), level]
    return tuple(Stretch(phase=phase, peak_bytes=peak, end_bytes=end) for phase, peak, end in found)


def _inside_operations(events: list[Any]) -> dict[tuple[Phase, str], int]:
    """Return the most bytes at once of blocks that one operation of the dispatcher allocates and frees."""
    phase, owners = Phase.LOAD, {}
    now: dict[int, int] = defaultdict(int)
    most: dict[tuple[Phase, str], int] = defaultdict(int)
    for event in events:
        if event.tag != _EventType.Allocation:
            phase = Phase(event.name.removeprefix(_MARK))
            continue
        block, owner = event.typed[1], _operation(event)
        if block.alloc_size > 0:
            owners[block.ptr] = (owner, block.alloc_size)
            continue
        taken_by, size = owners.pop(block.ptr, (None, 0))
        if owner is None or taken_by is None or taken_by.start_time_ns != owner.start_time_ns:
            continue
        # In these kernels frees come after the last allocation: their sum was in use at once.
        now[owner.start_time_ns] += size
        key = (phase, owner.name.removeprefix("aten::"))
        most[key] = max(most[key], now[owner.start_time_ns])
    return dict(most)


@cache
def _made_of_others() -> frozenset[str]:
    """Return the operations that consist of others, each of which a dispatch mode sees."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
    return frozenset(name.partition(".")[0] for name in names if "Dimname" not in name and "out" not in name)


def _operation(event: Any) -> Any:
    """Return the outermost operation around `event` that does not consist of others."""
    found = None
    while (event := event.parent) is not None:
        if event.name.startswith("aten::") and event.name not in _made_of_others():
            found = event
    return found
