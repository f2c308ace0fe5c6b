"""Forecasts of several GPUs: the rows of each, what it allocates, the run of all; and a reference before training."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from accelerate.data_loader import BatchSamplerShard
from matrix import further
from simulating import LORA, small_spec
from test_forecast_engine import (
    COMPARED,
    FEW,
    JUDGED,
    LORA_KEYS,
    OF_ROWS,
    PAIRED,
    RTX,
    SINGLE,
    TINY,
    forecast_of,
    rows_of,
    spec_of,
)
from torch.utils.data import BatchSampler, SequentialSampler
from trl.trainer.utils import RepeatSampler

from profiler.allocator.settings import MIN_BLOCK_BYTES
from profiler.allocator.traces.trace import Piece
from profiler.domain.memory import MIB, Phase
from profiler.domain.runs.forecast import (
    Death,
    Draw,
    ForecastRun,
    ForecastStep,
    note_of_processes,
    runs_of_seeds,
    why_rows_are_unknown,
)
from profiler.domain.trials.recipe import Recipe
from profiler.domain.trials.trial import DistributedType, Logprobs, Rollout, RowLengths, TrialSpec, Tuning
from profiler.training.recipes.grpo.trainer import Completions
from profiler.worker.forecast import replayed
from profiler.worker.forecast_steps import learn, referenced, whole_steps, widest_untrained, written_steps
from profiler.worker.simulated import simulate

ONE_LAYER = TINY | {"num_hidden_layers": 1}
FULL: dict[str, Any] = {"tuning": Tuning.FULL, "rollout": Rollout.SYNTHETIC}
BEFORE: dict[str, Any] = {"precompute_ref_log_probs": True, "precompute_ref_batch_size": 6}


def on_gpus(count: int, **keys: Any) -> TrialSpec:
    return spec_of(**keys, num_processes=count, distributed_type=DistributedType.MULTI_GPU)


def numbered(spec: TrialSpec, steps: int) -> Draw:
    """All rows of a run, each with a length of its own."""
    rows = spec.training_rows * spec.gradient_accumulation_steps * spec.num_processes * steps
    prompts = range(1, 1 + rows // max(1, spec.rows_per_prompt))
    completions = range(1001, 1001 + rows)
    return Draw(seed=5, prompts=tuple(prompts) * bool(spec.rows_per_prompt), completions=tuple(completions))


# ---- which rows each GPU gets ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("processes", "each", "generation"), [(2, 4, 2), (3, 2, 4), (2, 16, 2), (4, 8, 1), (4, 8, 2)], ids=str
)
def test_generated_rows_are_dealt_as_by_accelerate(processes: int, each: int, generation: int) -> None:
    keys = {"num_generations": each, "steps_per_generation": generation, "gradient_accumulation_steps": generation}
    spec = on_gpus(processes, **FULL, **keys)
    draw, at_once = numbered(spec, 3), spec.generation_batch_size
    # As `_get_train_sampler` and `get_train_dataloader` of `GRPOTrainer` make them; a generation comes once per step.
    sampler = RepeatSampler(
        draw.prompts,
        mini_repeat_count=each,
        batch_size=at_once * processes // each,
        repeat_count=generation,
        shuffle=False,
    )
    for process, own in enumerate(draw.of_each(spec)):
        dealt = list(BatchSamplerShard(BatchSampler(sampler, at_once, False), processes, process))[::generation]
        prompts = [draw.prompts[row] for batch in dealt for row in batch]
        repeats = len(prompts) // len(own.prompts)
        assert [prompt for prompt in own.prompts for _ in range(repeats)] == prompts
        completions = Completions(spec, RowLengths(completions=draw.completions), process=process)
        assert [row for _ in dealt for row in completions.following(at_once)] == list(own.completions)
        assert own.seed == 5 * processes + process


@pytest.mark.parametrize("keys", [OF_ROWS, PAIRED, JUDGED, COMPARED], ids=lambda keys: str(keys["recipe"]))
def test_rows_of_data_are_dealt_as_by_accelerate(keys: dict[str, Any]) -> None:
    spec = on_gpus(3, tuning=Tuning.FULL, **keys)
    draw, each = numbered(spec, 3), spec.training_rows // spec.per_device_train_batch_size
    rows = range(len(draw.completions) // each)
    batches = BatchSampler(SequentialSampler(rows), spec.per_device_train_batch_size, False)
    for process, own in enumerate(draw.of_each(spec)):
        dealt = [row for batch in BatchSamplerShard(batches, 3, process) for row in batch]
        assert own.completions == tuple(1001 + each * row + side for row in dealt for side in range(each))
        assert own.prompts == (tuple(1 + row for row in dealt) if draw.prompts else ())


@pytest.mark.parametrize("each", [4, 16])
def test_rows_of_one_gpu_are_given_to_all(each: int) -> None:
    spec = on_gpus(2, **FULL, num_generations=each)
    own = numbered(replace(spec, num_processes=1), 3)
    local = RowLengths(prompts=own.prompts[: 24 // max(1, each // 8)], completions=own.completions)
    given = local.of_all(spec)
    found = Draw(seed=0, prompts=tuple(given.prompts), completions=tuple(given.completions)).of_each(spec)
    for one in found:
        assert (list(one.prompts), list(one.completions)) == (list(local.prompts), list(local.completions))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (FULL | {"num_generations": 12}, "num_generations=12: has no forecast on several GPUs unless it divides the 8"),
        (JUDGED | {"per_device_train_batch_size": 3}, "=3: has no forecast on several GPUs where it is odd"),
        (PAIRED | BEFORE, "precompute_ref_log_probs=true: has no forecast on several GPUs, only on one"),
        (FULL | {"logprobs": Logprobs.MINIBATCH}, "because it makes a gradient of each row within the loss"),
        (FULL, None),
    ],
)
def test_jobs_of_several_gpus_without_a_forecast_are_named(keys: dict[str, Any], said: str | None) -> None:
    fault = why_rows_are_unknown(on_gpus(3, **({"tuning": Tuning.FULL} | keys)))
    assert fault is None if said is None else fault is not None and said in fault.sentence()
    sharded = replace(on_gpus(2, **FULL), distributed_type=DistributedType.DEEPSPEED)
    assert "no simulation shards a model" in str(why_rows_are_unknown(sharded))


# ---- what it allocates -----------------------------------------------------------------------------------------------

CASES: list[dict[str, Any]] = [
    # Completions of one prompt on both GPUs; buckets that DDP orders anew in its second step.
    FULL | {"num_generations": 16, "gradient_checkpointing": True},
]
FURTHER: list[dict[str, Any]] = [
    LORA_KEYS | {"rollout": Rollout.GENERATE, "beta": 0.04},
    LORA_KEYS | RTX | {"logprobs": Logprobs.SELECTIVE_IN_PLACE, "torch_empty_cache_steps": 3},
    {"tuning": Tuning.QLORA, **LORA, "rollout": Rollout.GENERATE, "steps_per_generation": 4},
    LORA_KEYS | {"recipe": Recipe.RLOO},
    OF_ROWS | {"tuning": Tuning.FULL},
    OF_ROWS | LORA_KEYS | SINGLE,
    PAIRED | LORA_KEYS,
    JUDGED | LORA_KEYS,
    COMPARED | {"tuning": Tuning.FULL},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys", [*(FEW | keys for keys in CASES), *further(*(FEW | keys for keys in FURTHER))], ids=str
)
def test_steps_of_each_gpu_equal_steps_that_run(keys: dict[str, Any]) -> None:
    spec = on_gpus(2, **keys)
    known = rows_of(spec)
    rows = spec.training_rows * spec.gradient_accumulation_steps * spec.steps * 2
    draw = Draw(seed=0, prompts=tuple(known.prompts) * 4, completions=tuple((known.completions * 2)[:rows]))
    each = [RowLengths(prompts=own.prompts, completions=own.completions) for own in draw.of_each(spec)]
    learnt = learn(spec, ONE_LAYER, each)
    whole, other = (list(whole_steps(spec, ONE_LAYER, own)) for own in each)
    for conf in ("", "expandable_segments:True"):
        found = forecast_of(written_steps(spec, learnt, each[0]), conf)
        assert found == forecast_of(whole, conf)
        assert len({step.allocated_bytes for step in found}) > 3
    # The first steps of all are those of the first; which cached blocks later ones get depends on them, and no request.
    first = len(learnt.first_shapes)
    made = [[sizes_made(pieces) for _, pieces in steps] for steps in (written_steps(spec, learnt, each[1]), other)]
    assert made[0][first:-1] == made[1][first:-1]


def sizes_made(pieces: Iterable[Piece]) -> list[int]:
    return sorted(max(MIN_BLOCK_BYTES, int(size)) for piece in pieces for size in piece.sizes_bytes)


def test_ddp_keeps_a_copy_of_each_gradient() -> None:
    """By hand, the tiny model of one layer has 76,160 numbers of 2 bytes, which are 298 blocks of 512 bytes."""
    spec = on_gpus(2, **FULL, steps=3)
    rows = rows_of(spec)
    alone = replace(spec, num_processes=1, distributed_type=DistributedType.NO)
    pairs = zip(*(forecast_of(whole_steps(each, ONE_LAYER, rows)) for each in (spec, alone)), strict=True)
    assert {one.allocated_bytes - other.allocated_bytes for one, other in pairs} == {298 * 512}


# ---- the run of all --------------------------------------------------------------------------------------------------


def step(seed: int, number: int, allocated: int, reserved: int) -> ForecastStep:
    sizes = {"reserved_after_bytes": reserved, "inactive_split_bytes": allocated - 1, "scored_tokens": allocated}
    lengths = {"longest_prompt": 1, "longest_completion": allocated}
    phase = Phase.FORWARD if seed % 2 else Phase.BACKWARD
    return ForecastStep(
        seed=seed,
        alloc_conf="",
        step=number,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        phase=phase,
        **lengths,
        **sizes,
    )


def died(seed: int, number: int) -> Death:
    sizes = {"requested_bytes": 1, "free_bytes": 0, "allocated_bytes": 9, "reserved_bytes": 9}
    return Death(seed=seed, alloc_conf="", step=number, phase=Phase.FORWARD, row_tokens=7, rows=1, **sizes)


def run(seed: int, *lines: ForecastStep, death: Death | None = None) -> ForecastRun:
    return ForecastRun(seed=seed, alloc_conf="", steps=lines, death=death)


def test_a_run_ends_with_the_first_gpu_that_is_full() -> None:
    runs = [
        run(4, step(4, 1, 10, 40), step(4, 2, 30, 41), step(4, 3, 12, 42)),
        run(5, step(5, 1, 20, 30), death=died(5, 2)),
        run(6, step(6, 1, 5, 6), step(6, 2, 6, 8), step(6, 3, 9, 9)),
        run(7, step(7, 1, 6, 6), step(7, 2, 5, 9), step(7, 3, 8, 9)),
    ]
    full, survives = runs_of_seeds(runs, 2)
    assert full.steps == (replace(step(5, 1, 20, 40), seed=2),)
    assert full.death == replace(died(5, 2), seed=2, process=1)
    assert (survives.seed, survives.death) == (3, None)
    assert [(each.allocated_bytes, each.reserved_bytes) for each in survives.steps] == [(6, 6), (6, 9), (9, 9)]
    assert runs_of_seeds(runs, 1) == tuple(runs)
    assert "Each of the 2 GPUs" in note_of_processes(on_gpus(2, **FULL))[0]
    assert note_of_processes(small_spec()) == ()


# ---- a reference before training -------------------------------------------------------------------------------------

REFERENCES: list[dict[str, Any]] = [PAIRED | RTX | {"tuning": Tuning.FULL}]
MORE_REFERENCES: list[dict[str, Any]] = [
    PAIRED | LORA_KEYS,
    JUDGED | LORA_KEYS | {"gradient_checkpointing": True},
    JUDGED | {"tuning": Tuning.FULL},
    PAIRED | SINGLE | {"tuning": Tuning.QLORA, **LORA},
]


@pytest.mark.slow
@pytest.mark.parametrize("keys", [*REFERENCES, *further(*MORE_REFERENCES)], ids=str)
def test_steps_after_a_reference_equal_steps_that_run(keys: dict[str, Any]) -> None:
    spec = spec_of(**keys, **BEFORE, **FEW)
    rows = rows_of(spec)
    known = replace(rows, reference=RowLengths(prompts=[9] * 20, completions=[41, 77, 30, 8] * 10))
    learnt = learn(spec, ONE_LAYER, [known])
    whole = list(whole_steps(spec, ONE_LAYER, known))
    for conf in ("", "expandable_segments:True"):
        assert forecast_of(written_steps(spec, learnt, known), conf) == forecast_of(whole, conf)
    # Without a data set it runs over the rows of training, as trl does.
    own = simulate(spec, ONE_LAYER, rows=rows).trace
    assert simulate(spec, ONE_LAYER, rows=replace(rows, reference=referenced(spec, rows))).trace == own


def test_a_card_that_is_full_before_training_names_the_batch() -> None:
    keys = PAIRED | {"tuning": Tuning.FULL} | BEFORE | {"precompute_ref_batch_size": 16}
    spec = spec_of(**keys, steps=2)
    rows = replace(rows_of(spec), reference=RowLengths(prompts=[9] * 40, completions=[41, 77, 30, 8] * 20))
    widest = widest_untrained(spec, rows)
    assert widest is not None and (widest.rows, widest.widths) == (32, (86,))
    whole = list(whole_steps(spec, ONE_LAYER, rows))
    sizes = [line.allocated_bytes for line in replayed(whole, seed=0, alloc_conf="", capacity_bytes=None)]
    found = None
    for capacity in range(sizes[0] - MIB, MIB, -MIB // 2):
        found = next(iter(replayed(whole, seed=0, alloc_conf="", capacity_bytes=capacity, evaluated=widest)))
        if isinstance(found, Death) and found.phase is Phase.SCORE:
            break
    assert isinstance(found, Death)
    assert (found.phase, found.step, found.rows, found.row_tokens) == (Phase.SCORE, 1, 32, 86)


def test_other_steps_begin_where_they_did() -> None:
    """A score between loading and training begins no step."""
    spec = spec_of(**PAIRED, **BEFORE, tuning=Tuning.FULL, steps=2)
    shapes = [shape for shape, _ in whole_steps(spec, ONE_LAYER, rows_of(spec))]
    assert len(shapes) == 2
    assert all(one != other for one, other in pairwise(shapes))
