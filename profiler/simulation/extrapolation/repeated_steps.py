"""The end of a simulated run as soon as its steps repeat: the optimizer steps that are left are told, not run.

Two steps in a row that allocate and free the same bytes in the same order, from the same places, are followed by more
of the same: the trainer is deterministic, and memory depends on nothing but shapes and what is known of ids and masks.
Steps of ragged completions differ, because trl deals them out to the micro-batches anew each time: they all run.
"""

from typing import Any

import numpy as np
from transformers import TrainerCallback

from profiler.simulation.extrapolation.step_template import Border, Template, continue_trace, repeated
from profiler.simulation.tracing.recorder import Recorder

_MOST_EVENTS_EXTRAPOLATED = 5_000_000
"""Steps beyond these many events are not told: an allocator that met the same step many times does nothing new."""


class RepeatedSteps(TrainerCallback):
    """Ends training after the first optimizer step that repeats the one before it, and tells the others over."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._borders: list[Border] = []
        self.steps_extrapolated = 0
        """Optimizer steps that did not run."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """An optimizer step is over. A stretch to compare is from one end to the next: what is logged belongs to it."""
        trace = self._recorder.trace
        self._borders.append((len(trace.events), len(trace.sizes_bytes)))
        left = int(state.max_steps) - int(state.global_step)
        template = repeated(trace, self._borders) if left > 0 else None
        if template is None:
            return
        control.should_training_stop = True
        self.steps_extrapolated = left
        self._tell(template, min(left, max(1, _MOST_EVENTS_EXTRAPOLATED // len(template.cycle.numbers))))

    def _tell(self, template: Template, steps: int) -> None:
        trace = self._recorder.trace
        (first_event, first_block), (end_event, end_block) = self._borders[-2:]
        events, blocks = end_event - first_event, end_block - first_block
        starts = [(index, phase) for index, phase in trace.phase_starts if first_event <= index < end_event]
        names = {block: name for block, name in trace.names.items() if first_block <= block < end_block}
        emptied = [index for index in trace.cache_emptied if first_event <= index < end_event]
        by_capability = {
            block: by for block, by in trace.sizes_by_capability.items() if first_block <= block < end_block
        }
        continue_trace(trace, template, steps)
        for step in range(1, steps + 1):
            trace.phase_starts.extend((index + step * events, phase) for index, phase in starts)
            trace.cache_emptied.extend(index + step * events for index in emptied)
            trace.names.update({block + step * blocks: name for block, name in names.items()})
            trace.sizes_by_capability.update({block + step * blocks: by for block, by in by_capability.items()})
        alive = np.arange(end_block - template.memory * blocks, end_block).tolist()
        self._recorder.renumber({block: block + steps * blocks for block in alive})
