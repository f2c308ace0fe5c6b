"""Steps that are written out from a few equal steps that all run, through the allocator, in every step."""

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matrix import further
from simulating import LORA, small_spec
from transformers import Trainer

from profiler.allocator.traces.trace import Piece, TraceBuilder
from profiler.config.trials.identity import spec_to_mapping
from profiler.domain.errors import UnsupportedTrialError
from profiler.domain.memory import MIB, Category, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.forecast import (
    MOST_WHOLE_STEPS,
    AnswerLine,
    Death,
    Draw,
    ForecastRequest,
    ForecastStep,
    Learnt,
    answer_of,
    why_rows_are_unknown,
)
from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.domain.trials.optimizers import Optimizer
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import Attention, Dtype, Logprobs, Rollout, RowLengths, TrialSpec, Tuning, VllmMode
from profiler.simulation.extrapolation.decode_extrapolator import DecodeExtrapolator
from profiler.simulation.extrapolation.parametric_steps import FIRST_STEPS, UnequalStepsError
from profiler.simulation.extrapolation.step_variants import pads_masks
from profiler.simulation.tracing.recorder import Recorder
from profiler.training.recipes import sft
from profiler.training.recipes.step_grouping import step_shapes
from profiler.worker import forecast, forecast_steps
from profiler.worker.forecast import answer, replayed
from profiler.worker.forecast_steps import (
    MOST_FURTHER,
    RunLearnt,
    check_known,
    first_steps,
    learn,
    learnt_further,
    whole_steps,
    written_steps,
)
from profiler.worker.simulated import card_of, simulate

TINY = dict(BUILTIN_MODELS["tiny"].config)
SINKS = dict(BUILTIN_MODELS["gpt-oss-20b"].config) | {
    "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64,
    "num_local_experts": 4,
}  # fmt: skip
STEPS = 14
FEW: dict[str, Any] = {"steps": 8}
"""Of cases that `make test` runs: four are written out where the first four rollouts decode. Others have `STEPS`."""
ONE_PASS: dict[str, Any] = {"gradient_accumulation_steps": 1, "steps_per_generation": 1}
KEYS: dict[str, Any] = {
    "steps": STEPS, "per_device_train_batch_size": 4, "num_generations": 4, "gradient_accumulation_steps": 2,
    "steps_per_generation": 2, "max_prompt_length": 40, "max_completion_length": 90,
}  # fmt: skip
LORA_KEYS: dict[str, Any] = {"tuning": Tuning.LORA, "rollout": Rollout.SYNTHETIC, **LORA}
OF_ROWS: dict[str, Any] = {"recipe": Recipe.SFT, "max_length": 120}
PAIRED: dict[str, Any] = {"recipe": Recipe.DPO, "max_length": 140, "beta": 0.1}
JUDGED: dict[str, Any] = PAIRED | {"recipe": Recipe.KTO}
COMPARED: dict[str, Any] = {"recipe": Recipe.REWARD, "max_length": 140}
ONE_PROMPT: dict[str, Any] = {"rollout": Rollout.GENERATE, "num_generations": 8}
RTX: dict[str, Any] = {"gpu": "rtx-4090-24gb"}
VLLM: dict[str, Any] = {
    "use_vllm": True, "vllm_mode": VllmMode.COLOCATE, "vllm_gpu_memory_utilization": 0.3,
    "vllm_tensor_parallel_size": 1, "vllm_max_model_length": 200,
}  # fmt: skip
SINGLE: dict[str, Any] = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}


def spec_of(**keys: Any) -> TrialSpec:
    return small_spec(**(KEYS | keys))


def rows_of(spec: TrialSpec, seed: int = 3) -> RowLengths:
    random, longest = Random(seed), spec.longest
    completions = [min(longest, random.randint(1, longest + 20)) for _ in range(400)]
    return RowLengths(prompts=[random.randint(1, spec.max_prompt_length) for _ in range(60)], completions=completions)


def forecast_of(steps: Any, conf: str = "", capacity_bytes: int | None = None) -> list[ForecastStep | Death]:
    found = list(replayed(steps, seed=0, alloc_conf=conf, capacity_bytes=capacity_bytes))
    # The end of training frees more in the last step, which changes no peak.
    return [replace(line, inactive_split_bytes=0) if isinstance(line, ForecastStep) else line for line in found]


CASES: list[dict[str, Any]] = [
    LORA_KEYS | {"rollout": Rollout.GENERATE, "beta": 0.04, "gradient_checkpointing": True},
    # The rows of neighbours, and masks that are padded of both.
    JUDGED | RTX | {"tuning": Tuning.FULL, "torch_empty_cache_steps": 3},
    # Kernels that are chosen by the tokens of a row: split keys, and weights of 4 bits that are widened or not.
    OF_ROWS | SINGLE | {"tuning": Tuning.QLORA, **LORA, "gpu": "rtx-4060-ti-16gb", "max_length": 700},
    # All completions of a generation are compared with the log-probabilities of vLLM, which generates to the limit.
    LORA_KEYS | {**VLLM, "vllm_enable_sleep_mode": True, "beta": 0.04},
]
FURTHER: list[dict[str, Any]] = [
    # Masks that its kernel pads, and entropies of 128 tokens at once.
    FEW | LORA_KEYS | RTX | {"logprobs": Logprobs.SELECTIVE_IN_PLACE, "max_completion_length": 300},
    # Rollouts in float32, whose kernel pads masks, under a training whose kernel does not.
    FEW | LORA_KEYS | {"rollout": Rollout.GENERATE, "dtype": Dtype.FLOAT32},
    {"tuning": Tuning.FULL, "rollout": Rollout.SYNTHETIC, "torch_empty_cache_steps": 3},
    {"tuning": Tuning.FULL, **VLLM, "steps_per_generation": 4},
    # Completions of one prompt, whose first token attends without a mask; keys that are split.
    LORA_KEYS | RTX | ONE_PROMPT | {"max_prompt_length": 300, "max_completion_length": 700},
    RTX | ONE_PROMPT | {"tuning": Tuning.FULL, "beta": 0.04},
    LORA_KEYS | {"rollout": Rollout.GENERATE, "steps_per_generation": 4},
    {"tuning": Tuning.QLORA, **LORA, "rollout": Rollout.GENERATE, "max_prompt_length": 6},
    PAIRED | LORA_KEYS,
    PAIRED | RTX | {"tuning": Tuning.FULL},
    # Rows that `max_length` cuts, and pairs of equal rows.
    PAIRED | SINGLE | {"tuning": Tuning.QLORA, **LORA, "gradient_checkpointing": True, "max_length": 80},
    PAIRED | LORA_KEYS | {"config": TINY | {"num_hidden_layers": 16}},
    JUDGED | LORA_KEYS | {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "max_length": 80},
    JUDGED | {"tuning": Tuning.FULL, "per_device_train_batch_size": 3, "attn_implementation": Attention.EAGER},
    COMPARED | LORA_KEYS | RTX,
    COMPARED | SINGLE | {"tuning": Tuning.FULL},
    LORA_KEYS | {"config": TINY | {"num_hidden_layers": 16}},
    # Layers that see a window, experts, and scores with a sink.
    LORA_KEYS | {"config": SINKS, "attn_implementation": Attention.EAGER, "rollout": Rollout.GENERATE},
    {"tuning": Tuning.FULL, "beta": 0.04, "optim": Optimizer.PAGED_ADAMW_8BIT},
    OF_ROWS | {"tuning": Tuning.QLORA, **LORA, "gradient_checkpointing": True},
    LORA_KEYS | {"recipe": Recipe.RLOO},
    LORA_KEYS | {"logprobs": Logprobs.SLICED},
    LORA_KEYS | {"logprobs": Logprobs.FULL, "steps_per_generation": 4},
    LORA_KEYS | {"attn_implementation": Attention.EAGER, "activation_offloading": True},
    OF_ROWS | {"tuning": Tuning.FULL},
    OF_ROWS | LORA_KEYS | SINGLE,
    # More tokens than a tile of the LM head has, and fewer.
    OF_ROWS | LORA_KEYS | RTX | {"per_device_train_batch_size": 16, "max_length": 512},
    LORA_KEYS | RTX | {"rollout": Rollout.GENERATE, "beta": 0.04},
    OF_ROWS | LORA_KEYS | RTX | {"logprobs": Logprobs.NLL_ENTROPY, "max_length": 400},
]


@pytest.mark.parametrize(
    ("keys", "pads"),
    [
        ({}, False),
        (RTX, True),
        (RTX | {"attn_implementation": Attention.EAGER}, False),
        # Full fine-tuning generates under autocast; LoRA over float32 weights does not.
        ({"dtype": Dtype.FLOAT32}, False),
        ({"dtype": Dtype.FLOAT32, "bf16": False}, True),
        (LORA_KEYS | {"dtype": Dtype.FLOAT32}, True),
        # cuDNN takes heads of up to 256 values on Hopper, and of up to 128 on Blackwell.
        ({"config": TINY | {"head_dim": 256}}, False),
        ({"config": TINY | {"head_dim": 256}, "gpu": "b200-180gb"}, True),
    ],
    ids=str,
)
def test_masks_are_padded_by_the_kernel_of_any_forward(keys: dict[str, Any], pads: bool) -> None:
    config = {**keys}.pop("config", TINY)
    assert pads_masks(spec_of(**{key: value for key, value in keys.items() if key != "config"}), config) is pads


@pytest.mark.slow
@pytest.mark.parametrize("keys", [*(FEW | keys for keys in CASES), *further(*FURTHER)], ids=str)
def test_written_steps_equal_steps_that_run(keys: dict[str, Any]) -> None:
    config = {"num_hidden_layers": 1, **keys}.pop("config", TINY | {"num_hidden_layers": 1})
    spec = spec_of(**{key: value for key, value in keys.items() if key != "config"})
    rows = rows_of(spec)
    learnt = learn(spec, config, [rows])
    whole = list(whole_steps(spec, config, rows))
    for conf in ("", "expandable_segments:True"):
        found = forecast_of(written_steps(spec, learnt, rows), conf)
        assert found == forecast_of(whole, conf)
        assert len({step.allocated_bytes for step in found}) > 3
    smaller = max(step.allocated_bytes for step in forecast_of(whole)) - MIB // 2
    died = forecast_of(written_steps(spec, learnt, rows), "", smaller)[-1]
    assert isinstance(died, Death)
    assert died == forecast_of(whole, "", smaller)[-1]
    assert died.rows == spec.training_rows


def test_rows_that_go_back_one_by_one_are_not_written_out() -> None:
    spec = spec_of(**LORA_KEYS, logprobs=Logprobs.MINIBATCH)
    with pytest.raises(UnequalStepsError, match="each row has a forward and a backward of its own"):
        learn(spec, TINY, [rows_of(spec)])


def test_checkpoints_leave_the_memory_of_one_gpu_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, and states of the optimizer, are written after every step."""
    spec = replace(spec_of(**OF_ROWS, tuning=Tuning.FULL), steps=3)
    runs, written = [], []
    arguments, save = sft.arguments_of_rows, Trainer._save_optimizer_and_scheduler
    for keys in ({}, {"save_strategy": "steps", "save_steps": 1}):
        monkeypatch.setattr(sft, "arguments_of_rows", lambda *own, keys=keys, **more: arguments(*own, **more) | keys)
        monkeypatch.setattr(Trainer, "_save_optimizer_and_scheduler", lambda *own: written.append(save(*own)))
        runs.append(simulate(spec, TINY | {"num_hidden_layers": 1}, rows=rows_of(spec)).trace)
    assert len(written) == spec.steps
    assert runs[0] == runs[1]


@given(st.lists(st.integers(1, 3000), min_size=1), st.floats(0.1, 1), st.sampled_from([1, 8]), st.integers(0, 7))
def test_shorter_rows_are_aligned_as_they_were(lengths: list[int], factor: float, multiple: int, moved: int) -> None:
    found = RowLengths(prompts=lengths, completions=lengths).shorter(factor, multiple, moved=moved)
    apart = {longer - less for less, longer in zip(found.prompts, found.completions, strict=True)}
    assert apart in ({0}, {2 * moved})
    for prompt, completion, length in zip(found.prompts, found.completions, lengths, strict=True):
        assert prompt >= 1
        assert completion <= max(lengths)
        less = (prompt + completion) // 2
        assert (length - less) % multiple == 0
        assert less - length * factor < multiple


def test_scratch_of_later_rollouts_is_left_open() -> None:
    """A reduction over all tokens of a generation takes scratch from some length on."""
    recorder = Recorder()
    recorder.defers_scratch = True
    recorder.enter(Phase.ROLLOUT)
    assert recorder.leaves_scratch_open
    decoding = DecodeExtrapolator(recorder)
    decoding.rollout_begins()
    assert not recorder.leaves_scratch_open
    assert decoding.rollout_ends()
    assert recorder.leaves_scratch_open
    recorder.enter(Phase.OPTIMIZER)
    assert not recorder.leaves_scratch_open


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (JUDGED | {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 1}, "an odd number of rows"),
        (JUDGED, None),
    ],
)
def test_jobs_without_a_forecast_are_named(keys: dict[str, Any], said: str | None) -> None:
    fault = why_rows_are_unknown(spec_of(**keys))
    assert fault is None if said is None else fault is not None and said in fault.sentence()


def test_a_death_names_the_rows_of_its_micro_batch() -> None:
    def batch(tokens: int) -> MicroBatch:
        return MicroBatch(rows=2, widths=(tokens,), scored=(tokens,), padded=(False,))

    shape = StepLengths(micro_batches=(batch(30), batch(70)))

    def died(step: int, number: int, pieces: int) -> Death:
        """The piece of a number is too large for the card."""
        sizes = [[2**40 if place == number else 512] for place in range(pieces)]
        steps = [[_piece(place, [512]) for place in range(3)]] * (step - 1)
        steps.append([_piece(100 + place, own) for place, own in enumerate(sizes)])
        *_, last = replayed([(shape, each) for each in steps], seed=0, alloc_conf="", capacity_bytes=2**30)
        assert isinstance(last, Death)
        return last

    # What is loaded is a piece of the first step.
    assert [died(1, number, 4).row_tokens for number in range(4)] == [30, 30, 30, 70]
    assert [died(2, number, 3).row_tokens for number in range(3)] == [30, 30, 70]


def _piece(block: int, sizes_bytes: list[int]) -> Piece:
    return Piece(events=[block + 1], first_block=block, sizes_bytes=sizes_bytes, phases=[(0, Phase.FORWARD)])


def request_of(**keys: Any) -> ForecastRequest:
    spec = spec_of(**LORA_KEYS, **keys)
    rows = rows_of(spec)
    draws = tuple(
        Draw(seed=seed, prompts=tuple(rows.prompts[seed:]), completions=tuple(rows.completions[seed:]))
        for seed in (0, 1)
    )
    config = TINY | {"num_hidden_layers": 1}
    return ForecastRequest(
        spec=spec_to_mapping(spec), model_config=config, steps=6, settings=("", "expandable_segments:True"), draws=draws
    )


def test_a_card_that_is_full_at_once_is_not_learnt_for(monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_of()
    spec = replace(spec_of(**LORA_KEYS), steps=request.steps)
    begun = list(first_steps(spec, request.model_config, rows_of(spec)))
    whole = list(whole_steps(spec, request.model_config, rows_of(spec)))[: len(begun)]
    assert len(begun) == FIRST_STEPS
    assert forecast_of(begun) == forecast_of(whole)
    reached = [step.allocated_bytes for step in forecast_of(begun)]
    card = card_of(spec)
    smaller = max(reached) - MIB // 4 + card.memory_bytes - card.usable_bytes
    monkeypatch.setattr(forecast, "card_of", lambda _: replace(card, memory_bytes=smaller))
    monkeypatch.setattr(forecast, "learn", lambda *_: pytest.fail("the card is full before anything is learnt"))
    first, *lines = answer(request, [])
    assert isinstance(first, Learnt)
    assert first.whole == "The card is full in one of the first 2, which begin all runs."
    ends = [line for line in lines if isinstance(line, Death)]
    assert len(ends) == len(request.draws) * len(request.settings)
    assert list(answer(request, [first, lines[0]])) == lines[1:]


@pytest.mark.slow
def test_an_answer_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    learnt: list[RunLearnt] = []

    def learn_and_keep(*args: Any) -> RunLearnt:
        learnt.append(learn(*args))
        return learnt[-1]

    monkeypatch.setattr(forecast, "learn", learn_and_keep)
    lines = list(answer(request_of(), []))
    assert isinstance(lines[0], Learnt)
    assert lines[0].whole is None
    steps = [line for line in lines[1:] if isinstance(line, ForecastStep)]
    assert [(line.seed, line.alloc_conf, line.step) for line in steps] == [
        (seed, conf, step) for seed in (0, 1) for conf in ("", "expandable_segments:True") for step in range(1, 7)
    ]
    by_seed = [[step.scored_tokens for step in steps if step.seed == seed and not step.alloc_conf] for seed in (0, 1)]
    # The first steps are those of the first seed.
    assert by_seed[0][:2] == by_seed[1][:2]
    assert by_seed[0][2:] != by_seed[1][2:]
    assert list(answer(request_of(), lines[:9])) == lines[9:]
    assert len(learnt) == 2
    # It learns the same each time, as the lines above show; how many processes replay it is another matter.
    monkeypatch.setattr(forecast, "learn", lambda *_: learnt[0])
    at_once = list(answer(request_of(), [], processes=3))
    assert at_once[0] == lines[0]
    assert sorted(map(str, at_once)) == sorted(map(str, lines))
    # Lines of one run keep their order.
    assert answer_of(at_once) == answer_of(lines)
    assert [line for line in at_once if of_run(line, 1, "")] == [line for line in lines if of_run(line, 1, "")]


def of_run(line: AnswerLine, seed: int, conf: str) -> bool:
    return not isinstance(line, Learnt) and (line.seed, line.alloc_conf) == (seed, conf)


@pytest.mark.parametrize("way", ["raise", "exit"])
def test_a_run_that_fails_ends_all(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    def fails(*_: object) -> Iterator[Any]:
        if way == "exit":
            os._exit(7)
        raise UnsupportedTrialError("A planted reason.")

    steps: Any = SimpleNamespace(events_per_step=1)
    learnt = RunLearnt(steps=steps, first_shapes=(), runs=1, steps_run=1, layers_run=None, evaluations=None)
    monkeypatch.setattr(forecast, "learn", lambda *_: learnt)
    monkeypatch.setattr(forecast, "written_steps", fails)
    error, said = (ChildProcessError, "ended with 7") if way == "exit" else (UnsupportedTrialError, "A planted")
    with pytest.raises(error, match=said):
        list(answer(request_of(), [], processes=2))
    assert not multiprocessing.active_children()


def test_an_unsupported_job_ends_with_its_sentence_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuses(*_: object, **__: object) -> Iterator[Any]:
        yield Learnt(shapes=0, events_per_step=0, layers_run=None, whole=None)
        raise UnsupportedTrialError("A planted reason.")

    request, found = tmp_path / "request.json", tmp_path / "answer.jsonl"
    request.write_text(json.dumps(request_of().as_object()))
    monkeypatch.setattr(forecast, "answer", refuses)
    monkeypatch.setattr("sys.argv", ["forecast", str(request), str(found)])
    with pytest.raises(SystemExit) as ended:
        forecast.main()
    assert ended.value.code == "A planted reason."
    assert len(found.read_text().splitlines()) == 1


@given(st.lists(st.lists(st.booleans(), max_size=9), max_size=4), st.integers(0, 5))
def test_unknown_steps_are_found_first(runs: list[list[bool]], before: int) -> None:
    def known(shape: StepLengths) -> None:
        if shape.pads_prompts:
            raise UnequalStepsError("a planted reason")

    steps: Any = SimpleNamespace(known=known)
    shapes = [[StepLengths(micro_batches=(), pads_prompts=each) for each in run] for run in runs]
    first = min((run.index(True) for run in runs if True in run), default=None)
    if first is None:
        check_known(steps, shapes, before=before)
        return
    with pytest.raises(UnequalStepsError, match=f"of step {before + first + 1}, a planted reason"):
        check_known(steps, shapes, before=before)


def _laid(rows_of_batch: Callable[[MicroBatch], int]) -> Callable[..., SimpleNamespace]:
    """A trainer whose steps have one block in each micro-batch."""

    def simulated(spec: TrialSpec, _: object, *, rows: RowLengths, defers_scratch: bool) -> SimpleNamespace:
        assert defers_scratch
        trace = TraceBuilder()
        trace.enter(Phase.LOAD)
        trace.allocate(4096, Category.OTHER)
        for shape in step_shapes(spec, rows):
            for batch in shape.micro_batches:
                trace.enter(Phase.FORWARD)
                block = trace.allocate(rows_of_batch(batch), Category.ACTIVATIONS)
                trace.enter(Phase.BACKWARD)
                trace.free(block)
            trace.enter(Phase.OPTIMIZER)
            trace.free(trace.allocate(512, Category.OTHER))
        return SimpleNamespace(trace=trace.finished(), layers_run=None)

    return simulated


def _rows_that_part(parted: int) -> tuple[TrialSpec, RowLengths]:
    """Two rows per step, the second one a token shorter; in one step, of the middle, it is 20 tokens shorter."""
    spec = spec_of(
        **OF_ROWS, tuning=Tuning.FULL, steps=60, per_device_train_batch_size=2, gradient_accumulation_steps=1
    )
    longest = [40 + number for number in range(spec.steps)]
    shorter = [length - (20 if number == parted else 1) for number, length in enumerate(longest)]
    return spec, RowLengths(completions=[row for pair in zip(longest, shorter, strict=True) for row in pair])


def _scored_bytes(batch: MicroBatch) -> int:
    """By hand, rows of 40 and 39 tokens have 77 that are scored: 1,232 bytes."""
    return 16 * sum(batch.scored)


def test_steps_that_are_unlike_those_learnt_from_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows of 40 and 39 tokens always go together, no step shows that only those that are scored take memory."""
    spec, rows = _rows_that_part(33)
    trainer = _laid(_scored_bytes)
    monkeypatch.setattr(forecast_steps, "simulate", trainer)
    learnt = learn(spec, TINY, [rows])
    assert (learnt.runs, learnt.steps_run < spec.steps) == (2, True)
    whole = list(whole_steps_of(spec, rows, trainer))
    assert forecast_of(written_steps(spec, learnt, rows)) == whole
    monkeypatch.setattr(forecast_steps, "MOST_FURTHER", 0)
    with pytest.raises(UnequalStepsError, match="of step 34, its lengths are unlike those that were learnt from"):
        learn(spec, TINY, [rows])


def whole_steps_of(spec: TrialSpec, rows: RowLengths, trainer: Callable[..., SimpleNamespace]) -> list[Any]:
    run = trainer(spec, TINY, rows=rows, defers_scratch=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast_steps, "simulate", lambda *_, **__: run)
        return forecast_of(whole_steps(spec, TINY, rows))


def test_a_further_step_that_follows_no_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 4,099 bytes more, which are no multiple of the 19 tokens by which it differs from the others."""
    spec, rows = _rows_that_part(33)

    def size(batch: MicroBatch) -> int:
        return _scored_bytes(batch) + 4099 * (sum(batch.scored) + 3 != 2 * sum(batch.widths))

    monkeypatch.setattr(forecast_steps, "simulate", _laid(size))
    with pytest.raises(UnequalStepsError, match="do not follow from the lengths"):
        learn(spec, TINY, [rows])


@pytest.mark.parametrize(("unknown", "runs"), [(0, 2), (2, 4), (99, 2 + MOST_FURTHER)])
def test_further_runs_end(unknown: int, runs: int) -> None:
    """Two runs, and then one more as long as something is unknown, but a few at most."""

    def further(steps: Any) -> list[int]:
        return [len(steps)] if len(steps) < 2 + unknown else []

    of_runs: Any = list
    same: Any = int
    steps, found = learnt_further([0, 1], same, of_runs, further)
    assert (steps, found) == ([*range(runs)], [*range(runs)])


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_of_first_steps_alone_is_not_learnt_from(steps: int) -> None:
    spec = spec_of(**OF_ROWS, **LORA_KEYS, steps=steps)
    with pytest.raises(UnequalStepsError, match=f"the run has {steps}, and the first 2 are not learnt from"):
        learn(spec, TINY, [rows_of(spec)])


def test_a_job_that_cannot_be_written_out_runs_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def differs(*_: object) -> None:
        raise UnequalStepsError("a planted reason")

    monkeypatch.setattr(forecast, "learn", differs)
    monkeypatch.setattr(forecast, "whole_steps", lambda *_: iter([]))
    (line,) = answer(request_of(), [])
    assert line == Learnt(
        shapes=0, events_per_step=0, layers_run=None, whole="The steps cannot be written out: a planted reason."
    )
    many = replace(request_of(), steps=MOST_WHOLE_STEPS + 1)
    with pytest.raises(UnsupportedTrialError, match=r"a planted reason\. Without that at most 200 steps"):
        list(answer(many, []))
