"""End a simulated run when its optimizer steps repeat, and extrapolate the remaining ones.

If two steps in a row allocate and free the same bytes in the same order at the same sites, all further steps do so:
the trainer is deterministic, and memory depends only on shapes and on the host values of ids and masks. With ragged
completions the steps differ, because trl shuffles completions into micro-batches in each step: all of them run.
"""

from typing import Any

import numpy as np
from transformers import TrainerCallback

from profiler.simulation.extrapolation.step_template import Template, TracePosition, continue_trace, repeated
from profiler.simulation.tracing.recorder import Recorder

MOST_EVENTS_EXTRAPOLATED = 5_000_000
"""Steps beyond this many events are not extrapolated: an allocator does nothing new after many equal steps."""


class RepeatedSteps(TrainerCallback):
    """Ends training after the first optimizer step that repeats the previous one, and extrapolates the others."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._positions: list[TracePosition] = []
        self.steps_extrapolated = 0
        """Optimizer steps that did not run."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End an optimizer step. A step lasts from one such call to the next, so that it includes logging."""
        trace = self._recorder.trace
        self._positions.append((len(trace.events), len(trace.sizes_bytes)))
        left = int(state.max_steps) - int(state.global_step)
        template = repeated(trace, self._positions) if left > 0 else None
        if template is None:
            return
        control.should_training_stop = True
        self.steps_extrapolated = left
        self._extrapolate(template, min(left, max(1, MOST_EVENTS_EXTRAPOLATED // len(template.cycle.numbers))))

    def _extrapolate(self, template: Template, steps: int) -> None:
        trace = self._recorder.trace
        (first_event, first_block), (end_event, end_block) = self._positions[-2:]
        events, blocks = end_event - first_event, end_block - first_block
        starts = [(index, phase) for index, phase in trace.phase_starts if first_event <= index < end_event]
        names = {block: name for block, name in trace.names.items() if first_block <= block < end_block}
        emptied = [index for index in trace.cache_emptied if first_event <= index < end_event]
        by_capability = {
            block: by for block, by in trace.sizes_by_capability.items() if first_block <= block < end_block
        }
        streams = {block: stream for block, stream in trace.streams.items() if first_block <= block < end_block}
        continue_trace(trace, template, steps)
        for step in range(1, steps + 1):
            trace.phase_starts.extend((index + step * events, phase) for index, phase in starts)
            trace.cache_emptied.extend(index + step * events for index in emptied)
            trace.names.update({block + step * blocks: name for block, name in names.items()})
            trace.sizes_by_capability.update({block + step * blocks: by for block, by in by_capability.items()})
            trace.streams.update({block + step * blocks: stream for block, stream in streams.items()})
        alive = np.arange(end_block - template.memory * blocks, end_block).tolist()
        self._recorder.renumber({block: block + steps * blocks for block in alive})
