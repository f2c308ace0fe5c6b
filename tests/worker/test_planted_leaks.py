"""Leaks that are planted into the steps of a run are called leaks, and longer rows are not, over 20 seeds each."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from simulating import LORA, small_spec

from profiler.allocator.traces.trace import Piece
from profiler.analysis.forecast.lengths import Distribution, Law, RowCounts, RunLengths, Sampled, sampled
from profiler.analysis.forecast.outlook import Cause, MemoryGrowth, memory_growth
from profiler.analysis.forecast.training_log import logged_lengths, logged_prompts, read_log
from profiler.domain.memory import GIB, MIB, Phase
from profiler.domain.models.builtin_models import BUILTIN_MODELS
from profiler.domain.runs.forecast import ForecastStep
from profiler.domain.runs.step_shape import StepLengths
from profiler.domain.trials.trial import Rollout, RowLengths, TrialSpec, Tuning
from profiler.worker.forecast import replayed
from profiler.worker.forecast_steps import RunLearnt, learn, written_steps

SEEDS, STEPS = 20, 40
HIDDEN, LAYERS = 64, 1
CONFIG = {**BUILTIN_MODELS["tiny"].config, "num_hidden_layers": LAYERS, "vocab_size": 32_000}
SPEC: TrialSpec = small_spec(
    tuning=Tuning.LORA, **LORA, rollout=Rollout.SYNTHETIC, steps=STEPS, per_device_train_batch_size=4,
    num_generations=4, gradient_accumulation_steps=1, steps_per_generation=1, max_prompt_length=96,
    max_completion_length=1024,
)  # fmt: skip
FLAT, GROWN = 1.0, 3.0
"""By how much the mean completion of the last step is longer than that of the first."""


def rows_of(lengths: RunLengths, seed: int) -> RowLengths:
    found: Sampled = sampled(lengths, RowCounts.of(SPEC, STEPS), seed)
    return RowLengths(prompts=found.draw.prompts, completions=found.draw.completions)


def law(growth: float) -> RunLengths:
    return RunLengths(
        prompts=Distribution(Law.LOGNORMAL, 40, 0.5),
        completions=Distribution(Law.LOGNORMAL, 100, 0.7),
        growth=Distribution(Law.FIXED, growth),
    )


@cache
def learnt() -> RunLearnt:
    return learn(SPEC, CONFIG, [rows_of(law(GROWN), 0)])


# ---- planting --------------------------------------------------------------------------------------------------------

Steps = Iterator[tuple[StepLengths, Sequence[Piece]]]


def kept_blocks(sizes_bytes: Sequence[int], step: int, phase: Phase) -> Piece:
    """Blocks that nothing frees, with numbers that no other block has."""
    first = 10**9 + 1000 * step
    events = [first + place + 1 for place in range(len(sizes_bytes))]
    return Piece(events=events, first_block=first, sizes_bytes=sizes_bytes, phases=[(0, phase)])


def kept_losses(steps: Any) -> Steps:
    """A list keeps each loss with its graph: what its layers had saved of the first micro-batch stays."""
    for number, (shape, pieces) in enumerate(steps):
        batch = shape.micro_batches[0]
        saved = [2 * batch.rows * sum(batch.widths) * HIDDEN] * (12 * LAYERS)
        yield shape, [*pieces, kept_blocks([512, *saved], number, Phase.BACKWARD)]


def kept_by_the_engine(steps: Any) -> Steps:
    """An engine keeps one block per wake-up."""
    for number, (shape, pieces) in enumerate(steps):
        yield shape, [kept_blocks([2 * MIB], number, Phase.ROLLOUT), *pieces]


LEAKS: dict[str, Callable[[Any], Any]] = {
    "none": iter,
    "losses with their graph": kept_losses,
    "a block per wake-up": kept_by_the_engine,
}


# ---- measuring -------------------------------------------------------------------------------------------------------


def replay(steps: Any) -> list[ForecastStep]:
    found = list(replayed(steps, seed=0, alloc_conf="", capacity_bytes=None))
    assert len(found) == STEPS
    return [step for step in found if isinstance(step, ForecastStep)]


def log_of(rows: RowLengths, measured: Sequence[ForecastStep] = ()) -> str:
    """What trl logs of each step, lengths of the completions and tokens of all rows; and its peak by the callback."""
    size, tokens, entries = SPEC.per_device_train_batch_size, 0, []
    peaks = [{f"vram/allocated_gib/{step.phase}": round(step.allocated_bytes / GIB, 3)} for step in measured]
    for place in range(STEPS):
        lengths = rows.completions[place * size : (place + 1) * size]
        tokens += sum(lengths) + size * rows.prompts[place]
        entries.append(
            {
                "step": place + 1, "num_tokens": tokens, "completions/mean_length": sum(lengths) / size,
                "completions/min_length": min(lengths), "completions/max_length": max(lengths),
                **(peaks[place] if peaks else {}),
            }
        )  # fmt: skip
    return json.dumps({"log_history": entries})


@cache
def forecast_of(seed: int, growth: float) -> dict[int, list[int]]:
    """The forecast with the lengths of the log of a run, which are the same with every leak."""
    rows = rows_of(law(growth), seed)
    log = read_log(log_of(rows))
    lengths = RunLengths(prompts=logged_prompts(log, SPEC.per_device_train_batch_size), completions=logged_lengths(log))
    forecast = replay(written_steps(SPEC, learnt(), rows_of(lengths, seed)))
    return {step.step: [step.allocated_bytes] for step in forecast}


def judged(seed: int, growth: float, leak: str) -> MemoryGrowth:
    """What a forecast says about a run of one seed with a leak."""
    rows, sizes = rows_of(law(growth), seed), forecast_of(seed, growth)
    log = read_log(log_of(rows, replay(LEAKS[leak](written_steps(SPEC, learnt(), rows)))))
    # The first steps of every run are those that were learnt from.
    found = memory_growth(replace(log, steps=log.steps[2:]), sizes, is_reserved=False)
    assert found is not None
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("growth", "leak"), [(FLAT, "none"), *((GROWN, leak) for leak in LEAKS)], ids=lambda value: str(value)
)
def test_planted_blocks_are_a_leak_and_longer_rows_are_not(growth: float, leak: str) -> None:
    found = [judged(seed, growth, leak) for seed in range(1, SEEDS + 1)]
    causes = {each.cause for each in found}
    assert causes <= {Cause.NONE, Cause.LENGTHS, Cause.UNDECIDED} if leak == "none" else causes == {Cause.LEAK}
