"""A whole run in torch's CUDA build: the memory of each optimizer step, by torch's own counters.

`python whole_run.py REQUEST ANSWER`, on a real card or in the environment of an emulated one
(`profiler.emulation.launch`). REQUEST is a JSON object of `spec`, `model_config`, `prompts`, `completions`, `shuffles`
and `limit_bytes`, to which the allocator is limited (null: the whole card). ANSWER gets one JSON line per step, and one
for the request that was refused; a last line says that the run has ended. A rank of torchrun has the rows that
accelerate deals it, and a file of its own: RANK.ANSWER.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import torch

from profiler.config.trials.identity import spec_from_mapping
from profiler.domain.memory import Phase
from profiler.domain.trials.trial import RowLengths
from profiler.emulation.card import marks_of_this_process
from profiler.measurement.counters.torch_cuda import TorchCuda
from profiler.training.run import PlainSession, run_training

_BETWEEN_STEPS = (Phase.LOAD, Phase.OPTIMIZER)
"""After one of these any other phase but a score begins a step, as in a forecast (`step_bounds`)."""


class StepCounters:
    """An observer that writes the counters of each step and begins its peaks anew; loading belongs to the first."""

    def __init__(self, cuda: TorchCuda, answer: TextIO) -> None:
        self._cuda = cuda
        self._answer = answer
        self._begun = 0
        self.phase = Phase.LOAD
        cuda.when_out_of_memory(self._refused)

    def enter(self, phase: Phase) -> None:
        """Begin `phase`, and a step if it is the first of one."""
        if self.phase in _BETWEEN_STEPS and phase not in (*_BETWEEN_STEPS, Phase.SCORE):
            if self._begun:
                self.end_step()
            self._begun += 1
        self.phase = phase

    def model_built(self, *, parameters: int, trainable: int) -> None:
        """Do nothing."""

    def end_step(self) -> None:
        """Write the counters of the step that has begun."""
        cuda = self._cuda
        stats = cuda.stats_now()
        self._write(
            kind="step",
            step=self._begun,
            allocated_bytes=cuda.peak_allocated_bytes(),
            reserved_bytes=cuda.peak_reserved_bytes(),
            allocated_after_bytes=cuda.allocated_bytes(),
            reserved_after_bytes=cuda.reserved_bytes(),
            inactive_split_bytes=int(stats["inactive_split_bytes"]["all"]["current"]),
            segments=int(stats["segment"]["all"]["current"]),
        )
        cuda.reset()

    def end(self) -> None:
        """Write that the run has ended, on which card, and which values of the network the host has read."""
        marks = marks_of_this_process()
        self._write(
            kind="end",
            card=self._cuda.name(),
            total_bytes=self._cuda.total_bytes(),
            values=marks.values if marks is not None else None,
        )

    def _refused(self, _: int, free_bytes: int) -> None:
        """Write the request that is refused: torch passes the size of a segment, its history that of the block."""
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        requested = next(entry["size"] for entry in reversed(entries) if entry["action"] == "oom")
        self._write(
            kind="died",
            step=max(1, self._begun),
            phase=self.phase.value,
            requested_bytes=requested,
            free_bytes=free_bytes,
            allocated_bytes=self._cuda.allocated_bytes(),
            reserved_bytes=self._cuda.reserved_bytes(),
        )

    def _write(self, **values: object) -> None:
        self._answer.write(json.dumps(values) + "\n")
        self._answer.flush()


def run(request: Mapping[str, Any], answer: TextIO) -> None:
    """Run the trial of a request to its end, or to the request that the card refuses."""
    spec = spec_from_mapping(request["spec"])
    rows = RowLengths(
        prompts=request["prompts"], completions=request["completions"], shuffles=tuple(request["shuffles"])
    )
    cuda = TorchCuda()
    if request["limit_bytes"] is not None:
        cuda.limit_allocator(request["limit_bytes"])
    if spec.alloc_conf:
        cuda.set_allocator_settings(spec.alloc_conf)
    torch.cuda.memory._record_memory_history(context=None, max_entries=10)
    counters = StepCounters(cuda, answer)
    session = PlainSession(device=torch.device("cuda", 0), observer=counters)
    try:
        trained = run_training(spec, request["model_config"], session, rows=rows)
    except torch.OutOfMemoryError:
        counters.end()
        return
    counters.end_step()
    counters.end()
    del trained  # its tensors belong to the last step


def main() -> None:
    """Read the request of the first argument, and answer into the file of the second."""
    request, answer = map(Path, sys.argv[1:])
    rank = os.environ.get("RANK")
    if rank is not None:
        # Each rank sees its own card only, as those of a trial do.
        os.environ |= {"CUDA_VISIBLE_DEVICES": rank, "LOCAL_RANK": "0"}
        answer = answer.with_name(f"{rank}.{answer.name}")
    with answer.open("w", encoding="utf-8") as file:
        run(json.loads(request.read_text(encoding="utf-8")), file)


if __name__ == "__main__":
    main()
