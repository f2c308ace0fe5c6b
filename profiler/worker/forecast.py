"""The memory of a whole run on a simulated GPU: learn from a few steps, write out all of them, and replay them.

`python -m profiler.worker.forecast REQUEST ANSWER`; both files are described in `profiler/domain/runs/forecast.py`.
"""

import ctypes
import gc
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from stat import S_ISFIFO
from typing import Any

import numpy as np

from profiler.allocator import AllocatorConfig, parse_alloc_conf
from profiler.allocator.model.card_memory import Refusal
from profiler.allocator.traces.card_replay import RefusedError, StepReplay
from profiler.allocator.traces.replay import block_sizes
from profiler.allocator.traces.trace import Piece
from profiler.config.trials.identity import spec_from_mapping
from profiler.domain.cards.card import installed_torch_version
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import Phase
from profiler.domain.runs.forecast import (
    MOST_WHOLE_STEPS,
    AnswerLine,
    Death,
    Draw,
    ForecastRequest,
    ForecastStep,
    Learnt,
    answer_of,
    line_object,
    line_of,
    why_rows_are_unknown,
)
from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.domain.trials.trial import RowLengths, TrialSpec
from profiler.execution.processes.child import end_with
from profiler.measurement.counters.untouched_cuda import compiled_at_first_call
from profiler.measurement.samples.host_usage import usable_cores

with compiled_at_first_call():
    from profiler.allocator.traces.smallest_fit import CompiledAllocator, compiled, is_known
    from profiler.simulation.extrapolation.parametric_steps import UnequalStepsError
    from profiler.worker.forecast_steps import (
        RunLearnt,
        Steps,
        first_steps,
        learn,
        whole_steps,
        widest_untrained,
        written_steps,
    )
    from profiler.worker.simulated import card_of

# ---- the allocator of a run ------------------------------------------------------------------------------------------


def step_replay(begun: Iterable[Piece], config: AllocatorConfig, **card: Any) -> StepReplay:
    """Return the allocator of a run whose first step has these pieces; `card` as of `CachingAllocator`."""
    library = compiled()
    if library is not None and is_known(config, [piece.streams for piece in begun]):
        return _CompiledSteps(library, config=config, **card)
    return StepReplay(config=config, **card)


class _CompiledSteps(StepReplay):
    """A run of millions of blocks, which get the numbers of others that are no longer in use.

    Blocks that outlive their piece have the lowest numbers, their places; those of a piece follow.
    """

    def __init__(self, library: ctypes.CDLL, **card: Any) -> None:
        super().__init__(**card)
        self._allocator: CompiledAllocator = CompiledAllocator(library, **card)
        self._place_of: dict[int, int] = {}
        """By the number in the run, of blocks that outlived their piece."""
        self._unused: list[int] = []
        self._at_places = np.zeros(0, dtype=np.int64)
        """Bytes of the block at each place."""
        self._numbered = np.zeros(0, dtype=np.int32)
        self._sizes_by_number = self._actual = np.zeros(0, dtype=np.int64)

    def _begin(self, piece: Piece) -> None:
        """Number the blocks of a piece."""
        if piece.streams:
            raise ValueError("a block of another stream follows a step that has none")
        events, sizes = np.asarray(piece.events, dtype=np.int64), block_sizes(piece.sizes_bytes)
        numbers = np.abs(events) - 1 - piece.first_block
        is_earlier = numbers < 0
        outlives = np.ones(len(sizes), dtype=np.bool_)
        outlives[numbers[(events < 0) & ~is_earlier]] = False
        kept = np.flatnonzero(outlives)
        places = self._places(len(kept))
        self._at_places[places] = sizes[kept]
        first = len(self._at_places)
        number_of = np.arange(first, first + len(sizes))
        number_of[kept] = places
        self._place_of.update(zip((kept + piece.first_block).tolist(), places, strict=True))
        earlier = [self._place_of.pop(number) for number in (numbers[is_earlier] + piece.first_block).tolist()]
        self._unused += earlier  # by later pieces
        found = np.empty(len(events), dtype=np.int64)
        found[is_earlier], found[~is_earlier] = earlier, number_of[numbers[~is_earlier]]
        self._numbered = (np.sign(events) * (found + 1)).astype(np.int32)
        self._sizes_by_number = np.concatenate([self._at_places, sizes])
        self._actual = np.empty_like(self._sizes_by_number)

    def _places(self, count: int) -> list[int]:
        """Return places for so many blocks."""
        more = max(0, count - len(self._unused))
        self._unused += range(len(self._at_places), len(self._at_places) + more)
        self._at_places = np.concatenate([self._at_places, np.zeros(more, dtype=np.int64)])
        split = len(self._unused) - count
        taken, self._unused = self._unused[split:], self._unused[:split]
        return taken

    def _play(self, piece: Piece, first: int, end: int) -> None:
        while True:
            first, _ = self._allocator.run(first, end, self._numbered, self._sizes_by_number, self._actual)
            if first == end:
                return
            self._allocator.grow(piece.sizes_bytes[piece.events[first] - 1 - piece.first_block])


# ---- a run -----------------------------------------------------------------------------------------------------------


def replayed(
    steps: Steps,
    *,
    seed: int,
    alloc_conf: str,
    capacity_bytes: int | None,
    total_bytes: int | None = None,
    evaluated: MicroBatch | None = None,
) -> Iterator[ForecastStep | Death]:
    """Yield each step of a run after its replay, up to the one that the card refuses.

    Args:
        steps: The steps.
        seed: Of the run.
        alloc_conf: Settings of torch's allocator.
        capacity_bytes: What the process can take from the driver, without its context; None: unlimited.
        total_bytes: All memory of the card, for `per_process_memory_fraction`; None: the capacity.
        evaluated: The widest batch of the evaluations; None if there are none.
    """
    config = parse_alloc_conf(alloc_conf, torch_version=installed_torch_version())
    replay: StepReplay | None = None
    for number, (shape, of_step) in enumerate(steps, start=1):
        pieces = list(of_step)
        replay = replay or step_replay(pieces, config, capacity_bytes=capacity_bytes, total_bytes=total_bytes)
        try:
            peaks = replay.step(pieces)
        except RefusedError as error:
            batch = _refused_batch(shape, pieces, error, evaluated)
            yield _death(batch, error.refusal, seed=seed, alloc_conf=alloc_conf, step=number)
            return
        yield ForecastStep(
            seed=seed,
            alloc_conf=alloc_conf,
            step=number,
            longest_prompt=max(batch.widths[0] if len(batch.widths) > 1 else 0 for batch in shape.micro_batches),
            longest_completion=max(batch.widths[-1] for batch in shape.micro_batches),
            scored_tokens=sum(sum(batch.scored) for batch in shape.micro_batches),
            allocated_bytes=peaks.allocated_bytes,
            reserved_bytes=peaks.reserved_bytes,
            reserved_after_bytes=peaks.reserved_after_bytes,
            inactive_split_bytes=peaks.inactive_split_after_bytes,
            phase=peaks.phase,
        )


def _refused_batch(
    shape: StepLengths, pieces: Sequence[Piece], error: RefusedError, evaluated: MicroBatch | None
) -> MicroBatch:
    """Return the micro-batch, or the batch of an evaluation, in which a step is refused; before it the rows are its.

    A reference that scores before the first step is as an evaluation of rows of data.
    """
    trained = sum(piece.phases[0][1] is not Phase.EVALUATION for piece in pieces)
    is_referenced = error.refusal.phase is Phase.SCORE and error.piece == 0 and not shape.scored_before
    if evaluated is None or not (is_referenced or error.refusal.phase is Phase.EVALUATION):
        return shape.micro_batches[max(0, error.piece - trained + len(shape.micro_batches))]
    if not shape.batches or error.piece < trained or len(pieces) - trained != 1 + 2 * len(shape.batches):
        return evaluated  # of rows of data, or before the first step
    return shape.batches[max(0, error.piece - trained - 1) // 2].micro_batches[0]


def _death(batch: MicroBatch, refusal: Refusal, *, seed: int, alloc_conf: str, step: int) -> Death:
    return Death(
        seed=seed,
        alloc_conf=alloc_conf,
        step=step,
        phase=refusal.phase,
        requested_bytes=refusal.requested_bytes,
        free_bytes=refusal.free_bytes,
        allocated_bytes=refusal.allocated_bytes,
        reserved_bytes=refusal.reserved_bytes,
        row_tokens=sum(batch.widths),
        rows=batch.rows,
    )


# ---- the process -----------------------------------------------------------------------------------------------------

_Run = tuple[int, str]
"""The seed of a draw, and a setting of the allocator."""


def answer(request: ForecastRequest, known: Sequence[AnswerLine], *, processes: int = 1) -> Iterator[AnswerLine]:
    """Yield the lines of an answer that are not among `known`.

    Args:
        request: What is asked.
        known: Lines of an earlier answer to it.
        processes: How many runs are written out at a time. One: run by run, in the order of the request.

    Raises:
        UnsupportedTrialError: There is no forecast of the trial.
    """
    done = answer_of(known)
    spec = replace(spec_from_mapping(request.spec), steps=request.steps)
    if (fault := why_rows_are_unknown(spec)) is not None:
        raise UnsupportedTrialError(fault.sentence())
    draws = {draw.seed: _rows(draw, request) for draw in request.draws}
    last = {(run.seed, run.alloc_conf): run.steps[-1].step if run.steps else 0 for run in done.runs}
    runs = [(draw.seed, conf) for draw, conf in done.open_runs(request)]

    def lines(run: _Run, steps: Steps) -> Iterator[AnswerLine]:
        (seed, conf), gpu = run, card_of(spec)
        limits = {"capacity_bytes": gpu.usable_bytes, "total_bytes": gpu.memory_bytes}
        evaluated = widest_untrained(spec, draws[seed])
        found = replayed(steps, seed=seed, alloc_conf=conf, evaluated=evaluated, **limits)
        return (line for line in found if line.step > last.get(run, 0))

    # An answer that was learnt for is not of a card that is full at once.
    if done.learnt is None or done.learnt.whole is not None:
        begun = list(first_steps(spec, request.model_config, draws[request.draws[0].seed]))
        ended = [list(lines(run, begun)) for run in runs]
        if all(found and isinstance(found[-1], Death) for found in ended):
            if done.learnt is None:
                yield _learnt(None, f"The card is full in one of the first {len(begun)}, which begin all runs.")
            yield from chain(*ended)
            return
    learnt, reason = _learnt_or_why_not(spec, request, draws)
    if done.learnt is None:
        yield _learnt(learnt, reason)
    if learnt is not None:
        yield from _at_a_time(processes, runs, lambda run: lines(run, written_steps(spec, learnt, draws[run[0]])))
        return
    for seed, draw in draws.items():
        if own := [run for run in runs if run[0] == seed]:
            whole = list(whole_steps(spec, request.model_config, draw))
            yield from chain(*(lines(run, whole) for run in own))


def _learnt_or_why_not(
    spec: TrialSpec, request: ForecastRequest, draws: Mapping[int, RowLengths]
) -> tuple[RunLearnt | None, str | None]:
    """Return what was learnt of a job, or why each of its steps has to be simulated.

    Raises:
        UnsupportedTrialError: They have to, and are too many.
    """
    try:
        return learn(spec, request.model_config, list(draws.values())), None
    except UnequalStepsError as error:
        reason = f"The steps cannot be written out: {error}."
        if request.steps > MOST_WHOLE_STEPS:
            raise UnsupportedTrialError(
                f"{reason} Without that at most {MOST_WHOLE_STEPS} steps are forecast."
            ) from error
        return None, reason


def _at_a_time(
    processes: int, runs: Sequence[_Run], lines: Callable[[_Run], Iterator[AnswerLine]]
) -> Iterator[AnswerLine]:
    """Yield the lines of each run, as they come; each run in a process that has all that this one has learnt.

    Raises:
        UnsupportedTrialError: That of a run.
        ChildProcessError: A process ended early.
    """
    if processes == 1 or len(runs) == 1:
        for run in runs:
            yield from lines(run)
        return
    gc.freeze()  # what is learnt stays shared
    context = multiprocessing.get_context("fork")
    waiting, open_runs = list(runs), dict[Connection, BaseProcess]()
    try:
        while waiting or open_runs:
            while waiting and len(open_runs) < processes:
                ours, theirs = context.Pipe(duplex=False)
                arguments = (lines, waiting.pop(0), theirs, [*open_runs, ours])
                process = context.Process(target=_send_lines, args=arguments, daemon=True)
                process.start()
                theirs.close()
                open_runs[ours] = process
            for ready in wait(list(open_runs)):
                assert isinstance(ready, Connection)
                try:
                    line = ready.recv()
                except EOFError:
                    ended = open_runs.pop(ready)
                    ended.join()
                    if ended.exitcode:
                        raise ChildProcessError(f"a run of the forecast ended with {ended.exitcode}") from None
                    continue
                if isinstance(line, UnsupportedTrialError):
                    raise line
                yield line
    finally:
        for left in open_runs.values():
            left.kill()
            left.join()


def _send_lines(
    lines: Callable[[_Run], Iterator[AnswerLine]], run: _Run, into: Connection, inherited: Sequence[Connection]
) -> None:
    # Otherwise a process whose reader has died would not see it.
    for connection in inherited:
        connection.close()
    with suppress(BrokenPipeError):
        try:
            for line in lines(run):
                into.send(line)
        except UnsupportedTrialError as error:
            into.send(error)


def _rows(draw: Draw, request: ForecastRequest) -> RowLengths:
    random = Random(draw.seed)
    shuffles = tuple(random.randrange(2**32) for _ in range(request.steps))
    known = draw.reference
    return RowLengths(
        prompts=draw.prompts,
        completions=draw.completions,
        shuffles=shuffles,
        evaluations=draw.evaluations,
        reference=None if known is None else RowLengths(prompts=known[0], completions=known[1]),
    )


def _learnt(learnt: RunLearnt | None, reason: str | None) -> Learnt:
    if learnt is None:
        return Learnt(shapes=0, events_per_step=0, layers_run=None, whole=reason)
    return Learnt(
        shapes=learnt.steps_run,
        events_per_step=learnt.steps.events_per_step,
        layers_run=learnt.layers_run,
        whole=None,
    )


def main() -> int:
    """Answer the request of the first argument into the file of the second."""
    request_path, answer_path = map(Path, sys.argv[1:])
    request = ForecastRequest.of(json.loads(request_path.read_text(encoding="utf-8")))
    lines = answer_path.read_text(encoding="utf-8").splitlines() if answer_path.exists() else []
    known = [line_of(json.loads(line)) for line in lines]
    with answer_path.open("a", encoding="utf-8") as file:
        try:
            for line in answer(request, known, processes=_processors()):
                file.write(json.dumps(line_object(line)) + "\n")
                file.flush()
        except UnsupportedTrialError as error:
            sys.exit(str(error))  # for the error output, without a traceback
    return 0


def _processors() -> int:
    """Return how many runs are written out at a time: one where processes cannot share what is learnt."""
    return usable_cores() if sys.platform == "linux" else 1


if __name__ == "__main__":
    if sys.platform == "linux" and S_ISFIFO(os.fstat(0).st_mode):
        os.setsid()
        end_with(0)
    sys.exit(main())
