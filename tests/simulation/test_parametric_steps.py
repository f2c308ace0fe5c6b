"""Steps written out from hand-laid runs, whose every block is known."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.allocator.traces.trace import Piece, Site, Trace, TraceBuilder, piece_of
from profiler.domain.cards.gpu import KNOWN_GPUS
from profiler.domain.memory import Category, Phase
from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.simulation.cuda.autocast import SimulatedAutocast
from profiler.simulation.cuda.optimizers import PRODUCT
from profiler.simulation.cuda.scratch.deferred_scratch import ScratchCall
from profiler.simulation.cuda.scratch.kernel_scratch import KernelScratch
from profiler.simulation.extrapolation.parametric_steps import (
    ParametricSteps,
    RunOfSteps,
    UnequalStepsError,
)
from profiler.simulation.extrapolation.step_pieces import Fitted, fitted, micro_batch_starts
from profiler.simulation.extrapolation.step_variants import Place, features, step_features, variants
from profiler.simulation.session import Extrapolation, Simulation
from profiler.training.announced_steps import entropy

CHIP = KNOWN_GPUS["h100-80gb"].chip
STAIR = 40
"""Tokens of a row from which on the planted kernel takes scratch."""

Laid = Callable[[int, MicroBatch], int]
"""Number of a step, from 0, and its micro-batch -> bytes of the block that changes with rows."""


def batch_of(prompt: int, completion: int, *, padded: bool = True) -> MicroBatch:
    return MicroBatch(rows=2, widths=(prompt, completion), scored=(completion + prompt // 2,), padded=(padded,))


def step_of(*batches: MicroBatch) -> StepLengths:
    return StepLengths(micro_batches=batches)


def rule(args: tuple[torch.Tensor], _: dict[str, object], __: object) -> KernelScratch:
    tokens = args[0].shape[0]
    return KernelScratch(before=(1000,), launches=((tokens * 10, 600),) if tokens > STAIR else ())


def usual(_: int, batch: MicroBatch) -> int:
    row = sum(batch.widths)
    return 3 * row * row + 700 * batch.widths[1] + 900


def run_of(
    steps: Iterable[StepLengths], *, laid: Laid = usual, leaves: bool = False, twice: bool = False, opens: bool = True
) -> Trace:
    """A run with a weight, in each micro-batch inputs, a kernel and a gradient, which the optimizer frees."""
    trace = TraceBuilder()

    def made(name: str, size: int) -> int:
        site = Site(operation=name, shape=(size,), dtype="bfloat16", module="")
        return trace.allocate(size, Category.ACTIVATIONS, trace.site_index(replace(site, shape=())))

    trace.enter(Phase.LOAD)
    made("weight", 4096)
    loss = None
    for number, step in enumerate(steps):
        gradients = []
        trace.enter(Phase.ROLLOUT)
        inputs = [made("inputs", 8 * sum(batch.widths) * batch.rows) for batch in step.micro_batches]
        for batch, given_inputs in zip(step.micro_batches, inputs, strict=True):
            for _ in range(1 + twice):
                trace.enter(Phase.FORWARD)
                changing = made("changing", laid(number, batch))
                trace.enter(Phase.BACKWARD)
            if loss is not None:
                trace.free(loss)
            loss = made("loss", 512)
            _kernel(trace, batch, opens=opens)
            gradients.append(made("gradient", 2000))
            trace.free(changing)
            if not leaves or batch.padded[0]:
                trace.free(given_inputs)
        trace.enter(Phase.OPTIMIZER)
        for gradient in gradients:
            trace.free(gradient)
        if leaves:
            for batch, given_inputs in zip(step.micro_batches, inputs, strict=True):
                if not batch.padded[0]:
                    trace.free(given_inputs)
    return trace.finished()


def _kernel(trace: TraceBuilder, batch: MicroBatch, *, opens: bool) -> None:
    call = ScratchCall.of(rule, CHIP, (torch.empty(sum(batch.widths), device="meta"),), {})
    site = Site(operation="kernel", shape=(), dtype="", module="")
    if opens:
        for each in (call, call.end):
            trace.free(trace.allocate(0, Category.WORKSPACE, trace.site_index(replace(site, call=each))))
        return
    found = rule((torch.empty(sum(batch.widths), device="meta"),), {}, CHIP)
    blocks = [trace.allocate(size, Category.WORKSPACE) for size in found.before]
    for launch in found.launches:
        taken = [trace.allocate(size, Category.WORKSPACE) for size in launch]
        for block in reversed(taken):
            trace.free(block)
    for block in blocks:
        trace.free(block)


def story(pieces: Iterable[Piece]) -> list[tuple[Phase, int, int]]:
    """Return phase, bytes and block of each event, with blocks counted in the order in which they are made."""
    made: dict[int, tuple[int, int]] = {}
    found, count = [], 0
    for piece in pieces:
        starts = dict(piece.phases)
        phase = piece.phases[0][1]
        for index, event in enumerate(piece.events):
            phase = starts.get(index, phase)
            if event > 0:
                made[event], count = (piece.sizes_bytes[event - 1 - piece.first_block], count), count + 1
            size, number = made[abs(event)]
            found.append((phase, size, number if event > 0 else -number - 1))
    return found


LENGTHS = [(3 + 5 * number % 31, 4 + 7 * number % 37) for number in range(11)]
LEARNT = [
    step_of(batch_of(*one), batch_of(*LENGTHS[-1 - at]), batch_of(*LENGTHS[4 * at % 11]))
    for at, one in enumerate(LENGTHS)
]
FURTHER = [step_of(batch_of(17, 60), batch_of(60, 17), batch_of(1, 1)), step_of(*[batch_of(20, 21)] * 3)]


def learnt(steps: list[StepLengths], **laid: Any) -> ParametricSteps:
    return ParametricSteps([RunOfSteps(trace=run_of(steps, **laid), shapes=steps)])


def test_steps_of_other_lengths_are_written_as_they_run() -> None:
    steps = learnt(LEARNT)
    for _ in range(2):
        begun = [piece for step in steps.begin() for piece in step]
        written = [piece for shape in FURTHER for piece in steps.written(shape)]
        run = run_of([*LEARNT[:2], *FURTHER], opens=False)
        assert story([*begun, *written]) == story([piece_of(run, 0, len(run.events), first_block=0)])


@pytest.mark.parametrize(("lengths", "blocks"), [((20, 20), 0), ((20, 21), 3)])
def test_a_kernel_takes_scratch_only_beyond_its_stair(lengths: tuple[int, int], blocks: int) -> None:
    steps = learnt(LEARNT)
    list(steps.begin())
    pieces = steps.written(step_of(*[batch_of(*lengths)] * 3))
    assert sum(piece.sizes_bytes.count(600) for piece in pieces) == blocks


def odd(number: int, batch: MicroBatch) -> int:
    return usual(number, batch) + 4096 * (sum(batch.widths) % 7)


def changes_at(step: int) -> Laid:
    return lambda number, batch: usual(number, batch) + 4096 * (number == step)


@pytest.mark.parametrize(
    ("steps", "laid", "said"),
    [
        (LEARNT[:8], {}, "are too few to learn from"),
        (LEARNT, {"laid": odd}, "do not follow from the lengths"),
        (LEARNT, {"laid": changes_at(5)}, "do not follow from the lengths"),
        (LEARNT, {"laid": changes_at(len(LEARNT) - 2)}, "a further step is not as it was learnt"),
        (LEARNT, {"twice": True}, "a micro-batch is not one forward pass"),
    ],
)
def test_steps_that_differ_are_refused(steps: list[StepLengths], laid: dict[str, Any], said: str) -> None:
    with pytest.raises(UnequalStepsError, match=said):
        learnt(steps, **laid)


def test_a_kind_of_step_that_was_not_learnt_is_refused() -> None:
    steps = learnt(LEARNT)
    list(steps.begin())
    with pytest.raises(UnequalStepsError, match="no step like it was learnt from"):
        list(steps.written(step_of(*[batch_of(3, 4, padded=False)] * 3)))


def test_micro_batches_that_free_blocks_of_others_are_refused() -> None:
    whole = [step_of(*(replace(each, padded=(False,)) for each in one.micro_batches)) for one in LEARNT]
    steps = learnt([*LEARNT, *whole, *LEARNT], leaves=True)
    list(steps.begin())
    assert list(steps.written(LEARNT[3]))
    assert list(steps.written(whole[3]))
    with pytest.raises(UnequalStepsError, match="free other blocks in one step"):
        list(steps.written(step_of(*whole[3].micro_batches[:2], LEARNT[3].micro_batches[2])))


@pytest.mark.parametrize(
    ("batch", "is_allowed"), [(batch_of(27, 56), True), (batch_of(28, 56), False), (batch_of(27, 57), False)]
)
def test_lengths_that_went_together_may_not_part(batch: MicroBatch, *, is_allowed: bool) -> None:
    """All prompts are 5 short of a multiple of 8, and all completions are one: their masks look alike."""
    lengths = [(3 + 8 * (3 * at % 11), 8 + 8 * (5 * at % 7)) for at in range(11)]
    steps = learnt([step_of(*[batch_of(*one)] * 3) for one in lengths], laid=lambda _, batch: 16 * sum(batch.widths))
    list(steps.begin())
    shape = step_of(*[batch] * 3)
    if is_allowed:
        assert list(steps.written(shape))
        return
    with pytest.raises(UnequalStepsError, match="its lengths are unlike those that were learnt from"):
        list(steps.written(shape))


def test_a_count_of_rows_is_a_smallest_block() -> None:
    found = np.array([[length, length * length] for length in (3, 9, 17, 30, 41, 60)])
    counts, tokens = np.array([8, 24, 8, 16, 16, 8]), 8 * found[:, 0]
    result = fitted(found, np.stack([counts, tokens], axis=1), are_sizes=True)
    assert isinstance(result, Fitted)
    assert result.of(np.array([74, 74 * 74])).tolist() == [512, 592]
    assert fitted(found, counts[:, None]) == 0


def test_features_by_hand() -> None:
    batch = MicroBatch(rows=2, widths=(3, 4), scored=(5,), padded=(True,))
    scored, tiles, squares, masks = [5, 5], [5, 5], [49, 9, 12, 16], [56, 24, 32]
    rounded, begins = [8, 8, 8, 32, 32, 32, 64, 64, 64, 128, 128, 128], [14, 6, 8]
    assert features(batch, 2) == [7, 3, 4, *scored, *tiles, *squares, *masks, *rounded, *begins]
    assert features(replace(batch, scored=(5000,)), 2)[3:7] == [5000, 5000, 4096, 4096]


def test_scores_with_a_sink_follow_from_a_length_and_a_square() -> None:
    """By hand, eager attention with a sink has 33 x 34 scores for a prompt of 33 tokens."""
    lengths = [(33, 179), (30, 162), (30, 166), (33, 163), (25, 135), (20, 144)]
    found = np.array([features(batch_of(*each), 0) for each in lengths])
    values = np.array([[1122], [930], [930], [1122], [650], [420]])
    result = fitted(found, values)
    assert isinstance(result, Fitted)
    assert result.of(np.array(features(batch_of(40, 100), 0))).tolist() == [1640]


def test_sizes_may_follow_from_the_tokens_of_a_generation() -> None:
    before = (batch_of(3, 4), batch_of(3, 9))
    first, *_ = step_features(replace(step_of(batch_of(3, 4)), scored_before=before, ended=1))
    assert first[-2:] == [sum(sum(batch.scored) for batch in before), 1]
    assert first[-2] > max(sum(batch.scored) for batch in before)


def test_a_reference_within_the_loss_begins_no_micro_batch() -> None:
    trace, loss = TraceBuilder(), (Phase.FORWARD, Phase.SCORE, Phase.FORWARD, Phase.BACKWARD)
    for phase in (*loss, *loss, Phase.OPTIMIZER):
        trace.enter(phase)
        trace.free(trace.allocate(512, Category.ACTIVATIONS))
    # Each phase has two events.
    assert micro_batch_starts(trace.finished(), 0, 18) == [0, 8]


def test_micro_batches_with_aligned_masks_are_a_kind() -> None:
    batches = [batch_of(5, 11), batch_of(5, 12), batch_of(5, 11, padded=False)]
    assert [kind for _, _, kind in variants(step_of(*batches), pads_masks=True)][1:] == [
        (2, (True,), True),
        (2, (True,), False),
        (2, (False,), False),
    ]
    assert [kind for _, _, kind in variants(step_of(*batches))][1:] == [
        (2, (True,), False),
        (2, (True,), False),
        (2, (False,), False),
    ]


@pytest.mark.parametrize(
    ("widths", "aligned"),
    # Masks of all prompt tokens, of the first token after them and of the last one; of whole rows.
    [((16, 3), (True, False, False, False)), ((15, 10), (False, True, True, False)), ((5, 3), (False,) * 3 + (True,))],
)
def test_aligned_masks_of_a_rollout_are_a_kind(widths: tuple[int, int], aligned: tuple[bool, ...]) -> None:
    batch = batch_of(*widths)
    step = StepLengths(micro_batches=(batch,), pads_prompts=True, scored_before=(batch,))
    assert next(variants(step, pads_masks=True)) == (Place.BEFORE, 0, (True, (True,), *aligned))
    whole = replace(step, pads_prompts=False, scored_before=())
    assert next(variants(whole, pads_masks=True)) == (Place.BEFORE, 0, (False,))


@pytest.mark.parametrize(("is_cast", "scores", "each"), [(False, (8_000, 4_000), 3), (True, (16_000, 8_000), 4)])
def test_a_part_left_open_has_the_events_of_its_run(is_cast: bool, scores: tuple[int, int], each: int) -> None:
    def simulated(*, is_open: bool) -> Trace:
        simulation = Simulation(KNOWN_GPUS["h100-80gb"], extrapolation=Extrapolation(scratch=is_open))
        with simulation.computing(), torch.no_grad(), SimulatedAutocast(enabled=is_cast):
            simulation.recorder.enter(Phase.FORWARD)
            # Without the first token of each row: the flat logits are a copy.
            logits = torch.empty(2, 6, 1000, dtype=torch.bfloat16, device="meta")[:, 1:]
            simulation.left_open(entropy, logits, 4)
            return simulation.recorder.finished()

    found, ran = simulated(is_open=True), simulated(is_open=False)
    (call,) = {site.call for site in found.sites if site.call is not None}
    sizes, begins, ends = call.sizes()
    assert (1, *[event + 1 if event > 0 else event - 1 for event in begins]) == tuple(ran.events)
    assert (24_000, *sizes) == tuple(ran.sizes_bytes)
    # Of the copy; and of 4, 4 and 2 tokens the logits in float32, log-softmax, its exponential and their product.
    assert [sizes.count(size) for size in (20_000, *scores)] == [1, 2 * each, each]
    assert ends == ()


def attended(tokens: int) -> None:
    """A row whose keys flash splits if it is long and the card not full."""
    states = torch.empty(1, tokens, 4, 64, dtype=torch.bfloat16, device="meta").transpose(1, 2).requires_grad_()
    output = torch.nn.functional.scaled_dot_product_attention(states, states, states, is_causal=True)
    output.backward(torch.empty_like(output))


def of_narrow_weight(tokens: int) -> None:
    """A product of bitsandbytes, which widens the weight if a row is long; and the workspace of cuBLAS before it."""
    first = torch.empty(8, 8, device="meta")
    first @ first
    blocks = 4096 * 4096 // 64
    inputs = torch.empty(1, tokens, 4096, dtype=torch.bfloat16, device="meta")
    weight = torch.empty(4096 * 2048, 1, dtype=torch.uint8, device="meta")
    statistics = [torch.empty(size, device="meta") for size in (blocks // 256, 256, 1)]
    scales = torch.empty(blocks, dtype=torch.uint8, device="meta")
    operation = getattr(torch.ops.bitsandbytes, PRODUCT)
    operation(inputs, weight, [4096, 4096], statistics[0], 64, "nf4", None, scales, *statistics[1:])


has_product = pytest.mark.skipif(not hasattr(torch.ops.bitsandbytes, PRODUCT), reason="bitsandbytes before 0.50")


@pytest.mark.parametrize("runs", [attended, pytest.param(of_narrow_weight, marks=has_product)])
def test_a_kernel_chosen_by_tokens_is_left_open(runs: Callable[[int], None]) -> None:
    def sizes(*, tokens: int, is_open: bool) -> tuple[list[int], int]:
        """Return the bytes of all events in turn, those of frees negative; and how many events were recorded."""
        simulation = Simulation(KNOWN_GPUS["rtx-4090-24gb"], extrapolation=Extrapolation(scratch=is_open))
        with simulation.computing():
            simulation.recorder.enter(Phase.FORWARD)
            runs(tokens)
            trace = simulation.recorder.finished()
        found: list[int] = []
        for event in trace.events:
            call = trace.sites[trace.site_of[abs(event) - 1]].call
            if not isinstance(call, ScratchCall):
                found.append(trace.sizes_bytes[abs(event) - 1] * (1 if event > 0 else -1))
            elif event > 0:
                blocks, begins, ends = call.sizes()
                found += [blocks[abs(own) - 1] * (1 if own > 0 else -1) for own in (ends if call.ends else begins)]
        return found, len(trace.events)

    events: dict[bool, set[int]] = {True: set(), False: set()}
    for tokens in (4, 300, 3000):
        (ran, of_run), (found, of_open) = (sizes(tokens=tokens, is_open=is_open) for is_open in (False, True))
        assert found == ran
        events[False].add(of_run)
        events[True].add(of_open)
    # Only what is open has the same events for all lengths.
    assert len(events[False]) > len(events[True]) == 1


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_a_value_of_two_features_is_found(data: st.DataObject) -> None:
    whole = st.integers(-(10**6), 10**6)
    found = np.array(data.draw(st.lists(st.tuples(*[st.integers(1, 5000)] * 4), min_size=6, max_size=9, unique=True)))
    one, other = data.draw(st.sampled_from([(0, 1), (1, 3), (2, 2)]))
    constant, slope, further = data.draw(st.tuples(whole, whole, whole))
    values = constant + slope * found[:, one] + further * found[:, other]
    result = fitted(found, values[:, None])
    if isinstance(result, Fitted):
        assert [int(result.of(row)[0]) for row in found] == values.tolist()
    else:
        design = np.concatenate([np.ones((len(found), 1)), found[:, [one, other]]], axis=1)
        assert np.linalg.matrix_rank(design) < 3
