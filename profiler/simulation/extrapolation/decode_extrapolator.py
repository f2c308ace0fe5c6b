"""The decoding steps of a rollout that are told instead of run.

A rollout of a thousand tokens allocates and frees millions of blocks in a pattern that repeats. The first steps run;
once three cycles in a row agree (`step_template`), the events of the steps in between are written into the trace and
the tensors that outlive a step are lengthened, in two legs with a step between that runs. The last step runs again.
What runs after steps that were told has to be what the pattern says: if not, the whole rollout is taken back and
decoded anew.
"""

import gc
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from profiler.simulation.extrapolation.step_template import Border, Template, continue_trace, learn, matches_prediction
from profiler.simulation.tracing.host_values import known, set_known
from profiler.simulation.tracing.recorder import Recorder

_CYCLE_LENGTHS = (1, 8)
"""Steps after which the pattern may repeat. Attention masks of the memory-efficient kernel are padded to 8."""

_FEW_CYCLES = 16
"""More of them than these are told in two legs."""

_PATIENCE = 48
"""So many steps in a row that do not repeat, and the rest of the rollout runs."""

Growing = Iterable[tuple[torch.Tensor, int]]
"""Tensors that a step makes longer by one, with the dimension that grows."""


class StepsDifferError(Exception):
    """What was told cannot be taken back."""


@dataclass(frozen=True, kw_only=True)
class _Prediction:
    """What the steps after those that were told have to be."""

    begin: Border
    template: Template
    """As it was before the steps that were told."""
    told: int
    """Cycles."""
    steps_in_cycle: int


class DecodeExtrapolator:
    """Tells decoding steps over, for `Placement.decode_history` of training.

    With `every_block` it tells each block; else it leaves out those that leave the caching allocator as it was.
    """

    def __init__(self, recorder: Recorder, *, every_block: bool = False) -> None:
        self._recorder = recorder
        self.every_block = every_block
        self._begin: Border = (0, 0)
        self._borders: list[Border] = []
        self._prediction: _Prediction | None = None
        self._kept: _Prediction | None = None
        self._wrong = False
        self._distrusted: set[int] = set()
        self._missed = 0
        self._alike = sys.maxsize
        """Steps until a kernel takes something else."""
        self._extrapolated_before = 0
        self.steps_extrapolated = 0
        """Decoding steps of all rollouts that did not run."""
        self.ran_in_full = 0
        """Rollouts, or parts of them, whose steps did not repeat, so that all of them ran."""

    def rollout_begins(self) -> None:
        """Generation begins."""
        self._begin, self._extrapolated_before = self._now(), self.steps_extrapolated
        self._prediction, self._wrong = None, False
        self.restart()
        self._borders = []

    def step_begins(self) -> bool:
        """A step begins. False if the steps that ran since others were told differ from what was told."""
        self._borders.append(self._now())
        self._alike = self._recorder.alike()
        prediction = self._prediction
        if prediction is not None:
            cycles = max(1, prediction.template.memory)
            if len(self._borders) > cycles * prediction.steps_in_cycle:
                self._compare(complete=True)
                self._kept = replace(prediction, template=prediction.template.after(prediction.told + cycles))
        return not self._wrong

    def restart(self) -> None:
        """What comes may follow another pattern: forget the steps so far."""
        self._compare(complete=False)
        self._borders = self._borders[-1:]
        self._kept = None
        self._missed = 0

    def repeat(self, steps: int, growing: Growing) -> int:
        """Tell up to `steps` steps, if they are known well enough, and lengthen `growing`; how many were told."""
        if self._alike == 0:
            # A kernel takes something else from this step on.
            self.restart()
        if self._prediction is not None or self._missed > _PATIENCE:
            return 0
        growing = list(growing)
        for length in _CYCLE_LENGTHS:
            if steps < length or length in self._distrusted:
                continue
            template = self._template(length)
            if template is not None and self._all_known(template, growing, length):
                # Those that run afterwards have to be the same too.
                alike = self._alike - max(1, template.memory) * length
                if alike < length:
                    return 0
                cycles = self._segment_length(template, min(steps, alike) // length)
                self._tell(template, cycles, growing, length)
                return cycles * length
        self._missed += 1
        self.ran_in_full += self._missed == _PATIENCE + 1
        return 0

    def rollout_ends(self) -> bool:
        """Generation is over. False if its last steps differ from what was told: `undo` is called for."""
        self._compare(complete=False)
        return not self._wrong

    def undo(self) -> None:
        """Take the rollout back, once none of its tensors is left.

        Raises:
            StepsDifferError: memory of the rollout is still in use.
        """
        gc.collect()
        self.steps_extrapolated = self._extrapolated_before
        event, block = self._begin
        if any(number >= block for number in self._recorder.blocks_in_use().values()):
            raise StepsDifferError("a rollout whose steps do not repeat left memory behind and cannot be taken back")
        self._recorder.trace.forget_from(event=event, block=block)

    def _now(self) -> Border:
        return len(self._recorder.trace.events), len(self._recorder.trace.sizes_bytes)

    def _compare(self, *, complete: bool) -> None:
        """Hold what ran against the promise, if there is one; a pattern that did not hold is not tried again."""
        prediction, self._prediction = self._prediction, None
        if prediction is None:
            return
        if not matches_prediction(
            self._recorder.trace, prediction.begin, prediction.template, prediction.told, complete=complete
        ):
            self._wrong = True
            self._distrusted.add(prediction.steps_in_cycle)

    def _template(self, length: int) -> Template | None:
        """The pattern of the cycles that ran last."""
        if self._kept is None:
            return learn(self._recorder.trace, self._borders, length, every_block=self.every_block)
        return self._kept.template if self._kept.steps_in_cycle == length else None

    def _segment_length(self, template: Template, cycles: int) -> int:
        """Cycles to tell at once: at first not all, so that one that runs shows whether the pattern still holds."""
        segment_length = template.segment_length(cycles)
        return cycles // 2 if segment_length == cycles > _FEW_CYCLES and self._kept is None else segment_length

    def _all_known(self, template: Template, growing: list[tuple[torch.Tensor, int]], length: int) -> bool:
        """Whether `growing` are exactly the blocks in use that a cycle replaces by larger ones, and by how much."""
        last = self._borders[-1][1]
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
            offered[storage._cdata] = length * tensor.nbytes // tensor.shape[dimension]
        return offered == expected

    def _tell(self, template: Template, cycles: int, growing: list[tuple[torch.Tensor, int]], length: int) -> None:
        last = self._borders[-1][1]
        continue_trace(self._recorder.trace, template, cycles)
        for tensor, dimension in growing:
            _lengthen(tensor, dimension, cycles * length)
        outlived = np.arange(-template.memory * template.blocks, 0, dtype=np.int64)
        numbers = outlived + cycles * template.blocks
        numbers = np.where(numbers < 0, numbers, template.number_extrapolated(numbers))
        self._recorder.renumber(dict(zip((last + outlived).tolist(), (last + numbers).tolist(), strict=True)))
        self._borders = [self._now()]
        self._kept, self._missed = None, 0
        self._prediction = _Prediction(begin=self._now(), template=template, told=cycles, steps_in_cycle=length)
        self.steps_extrapolated += cycles * length


def _lengthen(tensor: torch.Tensor, dimension: int, by: int) -> None:
    """Make `tensor` longer where it is, as if it had been replaced `by` times; its known value goes on as it went."""
    value = known(tensor)
    shape = list(tensor.shape)
    shape[dimension] += by
    with _disable_current_modes(), torch.no_grad():
        tensor.resize_(shape)
        if value is not None:
            set_known(tensor, _continued(value, dimension, by))


def _continued(value: torch.Tensor, dimension: int, by: int) -> torch.Tensor:
    """`value` with `by` more positions, each as far from the one before as the last is from the last but one."""
    last, before = value.narrow(dimension, -1, 1), value.narrow(dimension, -2, 1)
    # The positions of a truth value cannot grow.
    distance = torch.zeros_like(last) if value.dtype is torch.bool else last - before
    return torch.cat([value, *(last + distance * time for time in range(1, by + 1))], dim=dimension)
