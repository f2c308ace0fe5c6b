"""Extrapolate the decoding steps of a rollout instead of running them.

A rollout of a thousand tokens allocates and frees millions of blocks in a pattern that repeats. The first steps run.
Once three cycles in a row agree (`step_template`), the events of the following steps are written into the trace and
the tensors that outlive a step are lengthened, in two segments with a step between them that runs. The last step runs
again. The steps that run after extrapolated ones are compared with the prediction. If they differ, the whole rollout
is removed from the trace and decoded again.
"""

import gc
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from profiler.allocator.traces.trace import TraceBuilder
from profiler.simulation.extrapolation.left_out import StepsDifferError
from profiler.simulation.extrapolation.step_template import (
    Template,
    TracePosition,
    continue_trace,
    cycles_left_out,
    learn,
    matches_prediction,
)
from profiler.simulation.tracing.host_values import host_value, set_host_value

_CYCLE_LENGTHS = (1, 8)
"""Possible periods of the pattern, in steps. Attention masks of the memory-efficient kernel are padded to 8."""

_FEW_CYCLES = 16
"""More cycles than this are extrapolated in two segments."""

_MOST_IRREGULAR_STEPS = 48
"""After this many steps in a row that do not repeat, the rest of the rollout runs."""

Growing = Iterable[tuple[torch.Tensor, int]]
"""Tensors that each step lengthens by one, with the dimension that grows."""


class Recorded(Protocol):
    """What is known about the blocks of a rollout: those of the simulation's `Recorder`, or of a card's history."""

    repeats_steps: bool
    """Whether the steps of a rollout are compared and repeated."""

    @property
    def trace(self) -> TraceBuilder:
        """The trace so far."""

    def alike(self) -> int:
        """Return for how many more steps the scratch stays the same, and reset it."""

    def blocks_in_use(self) -> Mapping[int, int]:
        """Return the number of each block in use, by the key of its storage."""

    def renumber(self, blocks: Mapping[int, int]) -> None:
        """Replace the numbers of blocks in use."""


@dataclass(frozen=True, kw_only=True)
class _Prediction:
    """The expected course of the steps after the extrapolated ones."""

    begin: TracePosition
    template: Template
    """The pattern before the extrapolated steps."""
    extrapolated: int
    """Number of extrapolated cycles."""
    steps_in_cycle: int


class DecodeExtrapolator:
    """Extrapolates decoding steps (`Placement.decode_extrapolator` of training).

    With `every_block` every block is extrapolated; without it, neutral blocks are left out (`step_template.py`). With
    `leaves_out` most extrapolated steps are noted only, for `written_out`.
    """

    most_rollouts = 2
    """One before and one after the optimizer states exist. Later rollouts would grow like the second, in segments that
    exist already; they only fill their cache."""

    def __init__(self, recorder: Recorded, *, every_block: bool = False, leaves_out: bool = False) -> None:
        self._recorder = recorder
        self.every_block = every_block
        self._leaves_out = leaves_out
        self._begin: TracePosition = (0, 0)
        self._positions: list[TracePosition] = []
        self._prediction: _Prediction | None = None
        self._kept: _Prediction | None = None
        self._wrong = False
        self._distrusted: set[int] = set()
        self._missed = 0
        self._alike = sys.maxsize
        """Steps until a kernel takes other scratch blocks."""
        self._extrapolated_before = 0
        self.steps_extrapolated = 0
        """Decoding steps, of all rollouts, that did not run."""
        self.ran_in_full = 0
        """Rollouts, or parts of them, whose steps did not repeat, so that all steps ran."""

    def rollout_begins(self) -> None:
        """Start a rollout."""
        self._begin, self._extrapolated_before = self._now(), self.steps_extrapolated
        self._prediction, self._wrong = None, False
        self.restart()
        self._positions = []
        self._recorder.repeats_steps = True

    def step_begins(self) -> bool:
        """Start a step. Return False if the steps that ran since the extrapolation differ from the prediction."""
        self._positions.append(self._now())
        self._alike = self._recorder.alike()
        prediction = self._prediction
        if prediction is not None:
            cycles = max(1, prediction.template.memory)
            if len(self._positions) > cycles * prediction.steps_in_cycle:
                self._compare(complete=True)
                self._kept = replace(prediction, template=prediction.template.after(prediction.extrapolated + cycles))
        return not self._wrong

    def restart(self) -> None:
        """Forget the steps so far: the next ones may follow another pattern."""
        self._compare(complete=False)
        self._positions = self._positions[-1:]
        self._kept = None
        self._missed = 0

    def repeat(self, steps: int, growing: Growing) -> int:
        """Extrapolate up to `steps` steps if their pattern is known, and lengthen `growing`; return how many."""
        if self._alike == 0:
            # From this step on a kernel takes other scratch blocks.
            self.restart()
        if self._prediction is not None or self._missed > _MOST_IRREGULAR_STEPS:
            return 0
        growing = list(growing)
        for length in _CYCLE_LENGTHS:
            if steps < length or length in self._distrusted:
                continue
            template = self._template(length)
            if template is not None and self.all_known(template, growing, length):
                # The steps that run afterwards must be the same, too.
                alike = self._alike - max(1, template.memory) * length
                if alike < length:
                    return 0
                cycles = self._segment_length(template, min(steps, alike) // length)
                self._extrapolate(template, cycles, growing, length)
                return cycles * length
        self._missed += 1
        self.ran_in_full += self._missed == _MOST_IRREGULAR_STEPS + 1
        return 0

    def rollout_ends(self) -> bool:
        """End a rollout. Return False if its last steps differ from the prediction; then call `undo`."""
        self._compare(complete=False)
        self._recorder.repeats_steps = False
        return not self._wrong

    def undo(self) -> None:
        """Remove the rollout from the trace, once none of its tensors is left.

        Raises:
            StepsDifferError: Memory of the rollout is still in use.
        """
        gc.collect()
        self.steps_extrapolated = self._extrapolated_before
        event, block = self._begin
        if any(number >= block for number in self._recorder.blocks_in_use().values()):
            raise StepsDifferError("an extrapolation mismatch cannot be undone: memory of the rollout is still in use")
        self._recorder.trace.forget_from(event=event, block=block)

    def _now(self) -> TracePosition:
        return len(self._recorder.trace.events), len(self._recorder.trace.sizes_bytes)

    def _compare(self, *, complete: bool) -> None:
        """Compare the steps that ran with the prediction, if there is one. A pattern that failed is not tried again."""
        prediction, self._prediction = self._prediction, None
        if prediction is None:
            return
        if not matches_prediction(
            self._recorder.trace, prediction.begin, prediction.template, prediction.extrapolated, complete=complete
        ):
            self._wrong = True
            self._distrusted.add(prediction.steps_in_cycle)

    def _template(self, length: int) -> Template | None:
        """Return the pattern of the cycles that ran last."""
        if self._kept is None:
            return learn(self._recorder.trace, self._positions, length, every_block=self.every_block)
        return self._kept.template if self._kept.steps_in_cycle == length else None

    def _segment_length(self, template: Template, cycles: int) -> int:
        """Return how many cycles to extrapolate at once: not all at first, so that one runs in between as a check."""
        segment_length = template.segment_length(cycles)
        return cycles // 2 if segment_length == cycles > _FEW_CYCLES and self._kept is None else segment_length

    def all_known(self, template: Template, growing: list[tuple[torch.Tensor, int]], length: int) -> bool:
        """Whether `growing` are exactly the blocks that a cycle replaces by larger ones, with the same growth."""
        last = self._positions[-1][1]
        first = last - template.memory * template.blocks
        expected = {
            key: rate
            for key, block in self._recorder.blocks_in_use().items()
            if block >= first and (rate := int(template.growth_bytes[(block - last) % template.blocks]))
        }
        offered: dict[int, int] = {}
        for tensor, dimension in growing:
            storage = tensor.untyped_storage()
            if not tensor.is_contiguous() or tensor.nbytes != storage.nbytes():
                return False
            offered[self._key(storage)] = length * tensor.nbytes // tensor.shape[dimension]
        return offered == expected

    def _key(self, storage: torch.UntypedStorage) -> int:
        """Return the key of a storage among the blocks in use."""
        return storage._cdata

    def _extrapolate(
        self, template: Template, cycles: int, growing: list[tuple[torch.Tensor, int]], length: int
    ) -> None:
        last = self._positions[-1][1]
        outlived = np.arange(-template.memory * template.blocks, 0, dtype=np.int64)
        numbers = outlived + (cycles - self._left_out(template, cycles)) * template.blocks
        numbers = np.where(numbers < 0, numbers, template.number_extrapolated(numbers))
        renumbered = dict(zip((last + outlived).tolist(), (last + numbers).tolist(), strict=True))
        self._continue(template, cycles, growing, renumbered, steps=cycles * length)
        self._recorder.renumber(renumbered)
        self._positions = [self._now()]
        self._kept, self._missed = None, 0
        self._prediction = _Prediction(begin=self._now(), template=template, extrapolated=cycles, steps_in_cycle=length)
        self.steps_extrapolated += cycles * length

    def _continue(
        self,
        template: Template,
        cycles: int,
        growing: list[tuple[torch.Tensor, int]],
        renumbered: Mapping[int, int],
        *,
        steps: int,
    ) -> None:
        """Let `cycles` more cycles, of `steps` steps, happen. `renumbered`: the blocks that replace those in use."""
        del renumbered
        continue_trace(self._recorder.trace, template, cycles, left_out=self._left_out(template, cycles))
        for tensor, dimension in growing:
            _lengthen(tensor, dimension, steps)

    def _left_out(self, template: Template, cycles: int) -> int:
        return cycles_left_out(template, cycles) if self._leaves_out else 0


def _lengthen(tensor: torch.Tensor, dimension: int, by: int) -> None:
    """Lengthen `tensor` in place, as if it had been replaced `by` times; continue its host value."""
    value = host_value(tensor)
    shape = list(tensor.shape)
    shape[dimension] += by
    with _disable_current_modes(), torch.no_grad():
        tensor.resize_(shape)
        if value is not None:
            set_host_value(tensor, _continued(value, dimension, by))


def _continued(value: torch.Tensor, dimension: int, by: int) -> torch.Tensor:
    """Append `by` positions to `value`, with the difference of its last two positions."""
    last, before = value.narrow(dimension, -1, 1), value.narrow(dimension, -2, 1)
    # Booleans have no difference.
    distance = torch.zeros_like(last) if value.dtype is torch.bool else last - before
    if value.is_floating_point():
        # A tensor of times would be rounded to 16 bits, which a number is not.
        return torch.cat([value, *(last + distance * time for time in range(1, by + 1))], dim=dimension)
    times = torch.arange(1, by + 1, dtype=torch.int64 if value.dtype is torch.bool else value.dtype)
    shape = [1] * value.dim()
    shape[dimension] = by
    return torch.cat([value, last + distance * times.view(shape)], dim=dimension)
