"""Evaluations that are written out into the steps of a run, against evaluations that all run."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix import further
from test_forecast_engine import (
    COMPARED,
    FEW,
    JUDGED,
    LORA_KEYS,
    OF_ROWS,
    PAIRED,
    RTX,
    STEPS,
    TINY,
    VLLM,
    forecast_of,
    rows_of,
    spec_of,
)

from profiler.allocator.traces.trace import Piece, TraceBuilder
from profiler.domain.memory import KIB, Category, Phase
from profiler.domain.runs.forecast import Death
from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import Dtype, Evaluations, Logprobs, Rollout, RowLengths, TrialSpec, Tuning
from profiler.simulation.extrapolation.parametric_steps import ParametricSteps, UnequalStepsError
from profiler.simulation.extrapolation.step_variants import variants
from profiler.training.recipes.step_grouping import evaluation_shape, step_shapes, unit_rows, widest_evaluated
from profiler.worker.forecast import replayed
from profiler.worker.forecast_steps import (
    LearntEvaluations,
    RunLearnt,
    _closed_piece,
    learn,
    whole_steps,
    written_steps,
)

GENERATED: dict[str, Any] = {"rollout": Rollout.GENERATE, "num_generations_eval": 2}
OF_SUMS: dict[str, Any] = {
    "logprobs": Logprobs.SELECTIVE,
    "dtype": Dtype.FLOAT32,
    "config": TINY | {"num_hidden_layers": 1, "vocab_size": 151_936},
}
EVALUATED: list[dict[str, Any]] = [
    OF_ROWS | LORA_KEYS | {"on_start": True},
    # vLLM has the weights after an evaluation, whose first batch has sent them; and sums over a whole vocabulary take
    # scratch that is no line of the lengths.
    VLLM | OF_SUMS | {"num_generations_eval": 2, "tuning": Tuning.FULL},
]
FURTHER_EVALUATED: list[dict[str, Any]] = [
    # An evaluation is learnt once, with the older loss too, and by few layers.
    FEW | PAIRED | LORA_KEYS,
    # The first rollouts decode; a reference scores; the last batch has fewer rows.
    FEW | LORA_KEYS | GENERATED | {"beta": 0.04, "on_start": True, "prompts": 8},
    OF_ROWS | LORA_KEYS | {"logprobs": Logprobs.NLL_ENTROPY},
    # The cache is emptied after the last of four batches, and after three of four.
    OF_ROWS | LORA_KEYS | {"per_device_eval_batch_size": 6, "eval_accumulation_steps": 2},
    PAIRED | LORA_KEYS | {"per_device_eval_batch_size": 6, "eval_accumulation_steps": 3},
    OF_ROWS | LORA_KEYS | {"config": TINY | {"num_hidden_layers": 16}},
    COMPARED | LORA_KEYS,
    JUDGED | RTX | {"tuning": Tuning.FULL, "torch_empty_cache_steps": 3},
    LORA_KEYS | GENERATED | {"logprobs": Logprobs.SELECTIVE_IN_PLACE, "on_start": True},
    GENERATED | RTX | {"tuning": Tuning.FULL, "beta": 0.04},
    LORA_KEYS | GENERATED | {"logprobs": Logprobs.FULL},
    # One batch of fewer rows than are evaluated at once; and losses that leave the card after each second batch.
    LORA_KEYS | GENERATED | {"per_device_eval_batch_size": 30},
    LORA_KEYS | GENERATED | {"per_device_eval_batch_size": 4, "eval_accumulation_steps": 2},
    LORA_KEYS | GENERATED | {"config": TINY | {"num_hidden_layers": 16}},
    LORA_KEYS | GENERATED | {"recipe": Recipe.RLOO, "steps_per_generation": 4},
    LORA_KEYS | {**VLLM, "vllm_enable_sleep_mode": True, "num_generations_eval": 2, "on_start": True},
    LORA_KEYS | {**VLLM, "num_generations_eval": 2},
    GENERATED | OF_SUMS | {"tuning": Tuning.FULL},
]


_OF_EVALUATIONS = (
    "config", "on_start", "num_generations_eval", "per_device_eval_batch_size", "eval_accumulation_steps", "prompts",
)  # fmt: skip
_EVALUATED_AFTER = {STEPS: (4, (4, 8, 12, 14)), FEW["steps"]: (3, (3, 6, 8))}
"""By the steps of a run: `eval_steps`, and the steps that evaluations follow."""


@pytest.mark.slow
@pytest.mark.parametrize("keys", [*(FEW | keys for keys in EVALUATED), *further(*FURTHER_EVALUATED)], ids=str)
def test_written_evaluations_equal_evaluations_that_run(keys: dict[str, Any]) -> None:
    """They follow every third or fourth step, and the last one."""
    config = {**keys}.pop("config", TINY | {"num_hidden_layers": 1})
    spec = spec_of(**{key: value for key, value in keys.items() if key not in _OF_EVALUATIONS})
    rows = rows_of(spec)
    each, prompts = keys.get("num_generations_eval"), keys.get("prompts", 12)
    eval_steps, after = _EVALUATED_AFTER[spec.steps]
    evaluations = Evaluations(
        eval_steps=eval_steps,
        per_device_eval_batch_size=keys.get("per_device_eval_batch_size", 7 if each is None else 10),
        eval_accumulation_steps=keys.get("eval_accumulation_steps"),
        num_generations_eval=each,
        prompts=rows.prompts[20 : 20 + prompts] if spec.rows_per_prompt else (),
        # Those that are generated are drawn anew each time.
        completions=rows.completions[100 : 124 if each is None else 100 + 10 * prompts],
        eval_delay=3,
        eval_on_start=keys.get("on_start", False),
    )
    rows = replace(rows, evaluations=evaluations)
    learnt, whole = learn(spec, config, [rows]), list(whole_steps(spec, config, rows))
    evaluated = [_evaluations_in(pieces) for _, pieces in whole]
    assert [bool(each) for each in evaluated[1:]] == [step in after for step in range(2, spec.steps + 1)]
    assert bool(evaluated[0]) is evaluations.eval_on_start
    for conf in ("", "expandable_segments:True"):
        found, expected = forecast_of(written_steps(spec, learnt, rows), conf), forecast_of(whole, conf)
        assert found == expected
        assert len({step.allocated_bytes for step in found}) > 3
    _check_deaths(spec, evaluations, whole, list(written_steps(spec, learnt, rows)))


@pytest.mark.slow
def test_each_run_evaluates_rows_of_its_own() -> None:
    """Once the first rollouts are over, whose rows are those of the first run, all is as in a run that is simulated."""
    spec, config = spec_of(**LORA_KEYS | FEW | {"rollout": Rollout.GENERATE}), TINY | {"num_hidden_layers": 1}
    draws = []
    for seed in (3, 4):
        rows, random = rows_of(spec, seed), Random(seed)
        keys: dict[str, Any] = {"per_device_eval_batch_size": 16, "num_generations_eval": 2}
        prompts = tuple(random.randint(20, 40) for _ in range(12))
        own = Evaluations(eval_steps=3, **keys, prompts=prompts, completions=rows.completions[100:196])
        draws.append(replace(rows, evaluations=own))
    learnt = learn(spec, config, draws)
    found, whole = (
        forecast_of(steps, "expandable_segments:True")
        for steps in (written_steps(spec, learnt, draws[1]), whole_steps(spec, config, draws[1]))
    )
    later = [[(step.allocated_bytes, step.phase) for step in steps[4:]] for steps in (found, whole)]
    assert later[0] == later[1]
    # Only evaluations that have the peak of their step are compared by it: all of them, after steps 6 and 8.
    assert [step for step, (_, phase) in enumerate(later[0], start=5) if phase is Phase.EVALUATION] == [6, 8]


@pytest.mark.slow
def test_an_evaluation_leaves_training_as_it_is() -> None:
    """Its completions, and their order, are none of those of training."""
    spec = spec_of(**LORA_KEYS, steps=3)
    rows, each = rows_of(spec), {"per_device_eval_batch_size": 2, "num_generations_eval": 2}
    evaluations = Evaluations(eval_steps=1, prompts=(9,), completions=(30, 40), **each)
    trained = []
    for known in (None, evaluations):
        steps = whole_steps(spec, TINY | {"num_hidden_layers": 1}, replace(rows, evaluations=known))
        trained.append(
            [[list(piece.sizes_bytes) for piece in pieces if not _is_evaluation(piece)] for _, pieces in steps]
        )
    assert trained[0] == trained[1]


def _is_evaluation(piece: Piece) -> bool:
    return piece.phases[0][1] is Phase.EVALUATION


def _check_deaths(spec: TrialSpec, evaluations: Evaluations, whole: Any, written: Any) -> None:
    """A card that lacks a KiB of the peak of the fourth step, so that it is full there or, by fragments, before."""
    conf, widest = "expandable_segments:True", widest_evaluated(spec, evaluations)
    fourth = forecast_of(whole, conf)[3]
    smaller = {"alloc_conf": conf, "capacity_bytes": fourth.allocated_bytes - KIB, "evaluated": widest}
    died, again = (list(replayed(steps, seed=0, **smaller))[-1] for steps in (whole, written))
    assert died == again
    assert isinstance(died, Death)
    if died.phase is Phase.EVALUATION:
        assert died.rows <= evaluations.per_device_eval_batch_size * (
            1 if spec.recipe in GENERATING else spec.training_rows // spec.per_device_train_batch_size
        )


def _evaluations_in(pieces: Iterable[Piece]) -> int:
    return sum(phase is Phase.EVALUATION for piece in pieces for _, phase in piece.phases)


def test_vllm_has_the_weights_after_an_evaluation() -> None:
    """By hand: after steps 2 and 4 of 6, where generations of one and of two steps begin."""
    spec = spec_of(**LORA_KEYS | {**VLLM, "steps": 6})
    keys: dict[str, Any] = {"eval_steps": 2, "per_device_eval_batch_size": 2, "num_generations_eval": 2}
    rows = replace(rows_of(spec), evaluations=Evaluations(**keys, prompts=(9,), completions=(30, 40)))
    assert [step.is_loaded for step in step_shapes(spec, rows)] == [False, False, True, False, True, False]
    longer = replace(spec, steps_per_generation=4)
    assert [step.is_loaded for step in step_shapes(longer, rows)] == [False, False, True, False, True, False]
    sleeps = replace(spec, vllm_enable_sleep_mode=True)
    assert not any(step.is_loaded for step in step_shapes(sleeps, rows))
    units = [unit_rows(spec, rows, unit) for unit in (2, 1)]
    alone = RowLengths.joined(units)
    assert [step.is_loaded for step in step_shapes(replace(spec, steps=2), alone)] == [True, False]
    batches = evaluation_shape(spec, replace(rows.evaluations, completions=(3, 4, 5, 6), prompts=(9, 9)), 0).batches
    assert [batch.is_loaded for batch in batches] == [False, True]
    kinds = [next(variants(replace(step_shapes(spec, rows)[2], is_loaded=each))) for each in (False, True)]
    assert kinds[0] != kinds[1]


def test_weights_are_not_sent_where_vllm_has_them() -> None:
    """An adapter is merged and taken out again where they are sent."""
    spec = spec_of(**LORA_KEYS | {**VLLM, "steps": 3})
    events = []
    for loaded in ((), (False, True, False)):
        steps = whole_steps(spec, TINY | {"num_hidden_layers": 1}, replace(rows_of(spec), loaded=loaded))
        events.append([sum(len(piece.events) for piece in pieces) for _, pieces in steps])
    sent, left_out = events
    assert left_out[1] < sent[1] and (left_out[0], left_out[2]) == (sent[0], sent[2])


def test_the_cache_is_emptied_before_the_next_step_or_at_the_end() -> None:
    """By hand: two steps of two events, and an evaluation of two after each."""
    spec = spec_of(**OF_ROWS | LORA_KEYS, steps=2)
    known = Evaluations(eval_steps=1, per_device_eval_batch_size=2, completions=(9,))
    draw = replace(rows_of(spec), evaluations=known)
    trained, evaluated = (
        Piece(events=(1, -1), first_block=1, sizes_bytes=(512,), phases=[(0, phase)])
        for phase in (Phase.FORWARD, Phase.EVALUATION)
    )
    steps = cast(ParametricSteps, SimpleNamespace(begin=lambda: [[trained], [trained]]))
    emptied = LearntEvaluations(same=evaluated, empties=True)
    shapes = step_shapes(spec, draw)
    learnt = RunLearnt(steps=steps, first_shapes=shapes, runs=1, steps_run=2, layers_run=None, evaluations=emptied)
    found = [[list(piece.cache_emptied) for piece in pieces] for _, pieces in written_steps(spec, learnt, draw)]
    assert found == [[[], []], [[0], [2]]]


def test_evaluations_that_leave_a_block_are_not_written_out() -> None:
    trace = TraceBuilder()
    for phase in (Phase.OPTIMIZER, Phase.EVALUATION):
        trace.enter(phase)
        trace.allocate(512, Category.OTHER)
    with pytest.raises(UnequalStepsError, match="leaves blocks behind"):
        _closed_piece(trace.finished(), 1, 2)


@pytest.mark.parametrize(
    ("keys", "steps"),
    [({}, [4, 8, 10]), ({"eval_delay": 5}, [8, 10]), ({"eval_steps": 5}, [5, 10]), ({"eval_steps": None}, [])],
)
def test_evaluations_follow_their_steps_and_the_last(keys: dict[str, Any], steps: list[int]) -> None:
    evaluations = Evaluations(**{"eval_steps": 4, "per_device_eval_batch_size": 8, "completions": (3,)} | keys)
    assert [step for step in range(1, 11) if evaluations.follows(step, 10)] == steps


@given(st.integers(1, 5), st.integers(1, 9), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_each_evaluation_has_completions_of_its_own(count: int, prompts: int, samples: list[int]) -> None:
    """By hand, 8 completions for 4 rows are two evaluations; samples of 1 and 2 prompts have 2 and 4 completions."""
    keys: dict[str, Any] = {"eval_steps": 1, "per_device_eval_batch_size": 2, "num_generations_eval": 2}
    hand = Evaluations(**keys, prompts=(3, 3), completions=tuple(range(8)))
    assert [hand.completions_of(number) for number in range(3)] == [(0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 2, 3)]
    other = replace(hand, prompts=(3, 4, 5), completions=tuple(range(6)), samples=(1, 2))
    assert [(list(other.prompts_of(at)), other.completions_of(at)) for at in (0, 1)] == [
        ([0], (0, 1)),
        ([1, 2], (2, 3, 4, 5)),
    ]
    found = replace(hand, prompts=(3,) * prompts, completions=tuple(range(count * prompts * 2)))
    assert [length for at in range(count) for length in found.completions_of(at)] == list(found.completions)
    parts = replace(hand, prompts=(3,) * sum(samples), completions=tuple(range(2 * sum(samples))), samples=samples)
    assert [length for at in range(len(samples)) for length in parts.completions_of(at)] == list(parts.completions)
    assert [place for at in range(len(samples)) for place in parts.prompts_of(at)] == list(range(sum(samples)))


def test_evaluations_that_merge_4_bits_are_not_written_out() -> None:
    spec = spec_of(**LORA_KEYS | VLLM | {"tuning": Tuning.QLORA})
    rows, keys = rows_of(spec), {"per_device_eval_batch_size": 2, "num_generations_eval": 2}
    evaluations = Evaluations(eval_steps=4, prompts=(9,), completions=(30, 40), **keys)
    with pytest.raises(UnequalStepsError, match="evaluations merge weights of 4 bits"):
        learn(spec, TINY, [replace(rows, evaluations=evaluations)])


def test_the_widest_batch_of_generated_rows() -> None:
    keys: dict[str, Any] = {"eval_steps": 1, "num_generations_eval": 2, "prompts": (3, 9, 5)}
    lengths = Evaluations(**keys, per_device_eval_batch_size=4, completions=(7,) * 6 + (8, 20, 1, 1, 1, 1))
    found = widest_evaluated(spec_of(), lengths)
    assert (found.rows, found.widths) == (4, (9, 20))
    assert widest_evaluated(spec_of(), replace(lengths, per_device_eval_batch_size=8)).rows == 6


def test_a_death_in_an_evaluation_names_its_rows() -> None:
    def batch(rows: int) -> MicroBatch:
        return MicroBatch(rows=rows, widths=(30,), scored=(30,), padded=(False,))

    pieces = [
        Piece(events=[place + 1], first_block=place, sizes_bytes=[size], phases=[(0, phase)])
        for place, (size, phase) in enumerate([(512, Phase.FORWARD)] * 2 + [(2**40, Phase.EVALUATION)])
    ]
    steps = [(StepLengths(micro_batches=(batch(2),)), pieces)]
    (died,) = replayed(steps, seed=0, alloc_conf="", capacity_bytes=2**30, evaluated=batch(7))
    assert isinstance(died, Death)
    assert (died.phase, died.rows) == (Phase.EVALUATION, 7)
