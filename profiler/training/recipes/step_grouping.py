"""How a trainer puts rows of given lengths into the micro-batches of its steps."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

import torch

from profiler.domain.runs.step_shape import MicroBatch, StepLengths
from profiler.domain.trials.recipe import GENERATING, Recipe
from profiler.domain.trials.trial import Evaluations, Logprobs, RowLengths, TrialSpec
from profiler.training.data.source_data import prompt_lengths_of
from profiler.training.recipes.grpo.trainer import shuffled_rows


def step_shapes(spec: TrialSpec, lengths: RowLengths) -> list[StepLengths]:
    """Return the shapes of all steps of `spec`, a trial of one process."""
    if spec.recipe not in GENERATING:
        return [_of_data(spec, lengths, step) for step in range(spec.steps)]
    generations = -(-spec.steps // spec.steps_per_unit)
    found = [step for generation in range(generations) for step in _of_generation(spec, lengths, generation)]
    return found[: spec.steps]


def unit_rows(spec: TrialSpec, lengths: RowLengths, unit: int) -> RowLengths:
    """Return the rows of one generation, or of one step of data."""
    completions = _rows_of_unit(spec)
    prompts = max(1, completions // max(1, spec.rows_per_prompt))
    return RowLengths(
        prompts=_cycled(prompt_lengths_of(spec, lengths), unit * prompts, prompts),
        completions=_cycled(lengths.completions, unit * completions, completions),
        shuffles=(lengths.shuffles[unit % len(lengths.shuffles)] if lengths.shuffles else unit,),
        loaded=(lengths.has_weights(spec, unit),),
    )


def evaluated_order(spec: TrialSpec, prompts: int) -> list[int]:
    """Return the order in which trl evaluates so many prompts, the same each time.

    Source: `_get_eval_sampler` of `GRPOTrainer` and `RLOOTrainer`, and `RepeatSampler` (trl 1.16).
    """
    return torch.randperm(prompts, generator=torch.Generator().manual_seed(spec.seed)).tolist()


def evaluation_shape(spec: TrialSpec, evaluations: Evaluations, number: int) -> StepLengths:
    """Return the batches of an evaluation that generates, from 0; each is padded to its own longest rows.

    Source: `prediction_step` and `_prepare_inputs` of `GRPOTrainer` (trl 1.16).
    """
    every, rows = evaluations.eval_accumulation_steps, evaluated_batches(spec, evaluations, number)
    return StepLengths(
        micro_batches=(),
        batches=tuple(evaluated_batch(spec, batch, number) for number, batch in enumerate(rows)),
        batches_together=every if every is not None and every <= len(rows) else None,
    )


def evaluated_batch(spec: TrialSpec, lengths: RowLengths, number: int = 0) -> StepLengths:
    """Return the shape of one batch, from 0, of an evaluation that generates."""
    each = len(lengths.completions) // len(lengths.prompts)
    rows = [(lengths.prompts[row // each], length) for row, length in enumerate(lengths.completions)]
    widths = max(lengths.prompts), max(lengths.completions)
    return StepLengths(
        micro_batches=(_micro_batch(spec, rows, widths),),
        pads_prompts=min(lengths.prompts) < widths[0],
        ended=_ended(spec, lengths.completions),
        is_loaded=spec.loads_engine_once and number > 0,
    )


def _ended(spec: TrialSpec, completions: Sequence[int]) -> int:
    """Count completions that end before the last token that is generated: of all, or as long as vLLM may go on."""
    longest = spec.max_completion_length if spec.use_vllm else max(completions)
    return sum(length < longest for length in completions)


def evaluated_batches(spec: TrialSpec, evaluations: Evaluations, number: int) -> list[RowLengths]:
    """Return the rows of each batch of an evaluation that generates, from 0, in the order of generation."""
    each, size = evaluations.num_generations_eval or 1, evaluations.per_device_eval_batch_size
    places, completions = evaluations.prompts_of(number), evaluations.completions_of(number)
    prompts = [evaluations.prompts[places[place]] for place in evaluated_order(spec, len(places))]
    parts = [(start, start + size) for start in range(0, len(completions), size)]
    return [RowLengths(prompts=prompts[at // each : end // each], completions=completions[at:end]) for at, end in parts]


def widest_evaluated(spec: TrialSpec, evaluations: Evaluations) -> MicroBatch:
    """Return a batch of an evaluation that is padded to its longest row of all."""
    if evaluations.num_generations_eval is not None:
        rows = min(evaluations.per_device_eval_batch_size, evaluations.rows)
        widths = max(evaluations.prompts), max(evaluations.completions)
        return MicroBatch(rows=rows, widths=widths, scored=(), padded=())
    sides = spec.training_rows // spec.per_device_train_batch_size
    size, count = evaluations.per_device_eval_batch_size, len(evaluations.completions) // sides
    once = replace(spec, per_device_train_batch_size=count, gradient_accumulation_steps=1)
    lengths = RowLengths(prompts=evaluations.prompts, completions=evaluations.completions)
    return replace(_of_data(once, lengths, 0).micro_batches[0], rows=sides * min(size, count))


def _rows_of_unit(spec: TrialSpec) -> int:
    if spec.recipe in GENERATING:
        return spec.generation_batch_size
    return spec.training_rows * spec.gradient_accumulation_steps


def _cycled(known: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    return tuple(known[number % len(known)] for number in range(start, start + count))


def _of_data(spec: TrialSpec, lengths: RowLengths, step: int) -> StepLengths:
    """Rows in their order, each micro-batch padded to its longest row (transformers' and trl's collators)."""
    own, size, first = unit_rows(spec, lengths, step), spec.training_rows, step * _rows_of_unit(spec)
    each, batches = spec.rows_per_prompt, []
    for start in range(0, len(own.completions), size):
        completions = own.completions[start : start + size]
        if not each:
            batches.append(_of_whole_rows(spec, completions))
            continue
        prompts = [own.prompts[row // each] for row in range(start, start + size)]
        # The completions of a pair take turns; judged rows are made so.
        is_good = [(first + row) % 2 == 0 for row in range(start, start + size)]
        batches.append(_of_preferences(spec, prompts, completions, is_good))
    return StepLengths(micro_batches=tuple(batches))


def _of_whole_rows(spec: TrialSpec, lengths: Sequence[int]) -> MicroBatch:
    found = _micro_batch(spec, [(length,) for length in lengths], (max(lengths),))
    return found if spec.recipe.facts.has_lm_head else replace(found, scored=())


def _of_preferences(
    spec: TrialSpec, prompts: Sequence[int], completions: Sequence[int], is_good: Sequence[bool]
) -> MicroBatch:
    """Return the micro-batch of prompts with completions, of which `max_length` cuts each row at its end.

    Source: `DataCollatorForPreference` and `DataCollatorForUnpairedPreference` (trl 1.16).
    """
    longest = spec.row_tokens

    def batch(completions: Sequence[int], *parts: Sequence[bool]) -> MicroBatch:
        rows = [min(prompt + own, longest) for prompt, own in zip(prompts, completions, strict=True)]
        left = [row - min(prompt, row) for row, prompt in zip(rows, prompts, strict=True)]
        return MicroBatch(
            rows=len(rows),
            widths=(max(rows),),
            scored=tuple(sum(compress(left, part)) for part in parts),
            padded=(min(rows) < max(rows),),
            chosen=sum(parts[0]),
        )

    found = batch(completions, is_good, [not each for each in is_good])
    if not spec.recipe.facts.has_shifted_rows:
        return found
    shifted = [completions[-1], *completions[:-1]]
    return replace(found, neighbours=batch(shifted, [True] * len(shifted)))


def _of_generation(spec: TrialSpec, lengths: RowLengths, generation: int) -> list[StepLengths]:
    """Rows of one generation, all padded to its longest prompt and its longest completion, and then shuffled.

    Source: `_generate_and_score_completions` and `_prepare_inputs` of `GRPOTrainer` (trl 1.16).
    """
    own, count = unit_rows(spec, lengths, generation), spec.generation_batch_size
    repeats = count // len(own.prompts)
    rows = [(own.prompts[row // repeats], own.completions[row]) for row in range(count)]
    widths = max(own.prompts), max(own.completions)
    order = shuffled_rows(lengths, generation, count)
    size, accumulated = spec.per_device_train_batch_size, spec.gradient_accumulation_steps
    batches = [
        _micro_batch(spec, [rows[row] for row in order[start : start + size]], widths)
        for start in range(0, count, size)
    ]
    parts = [tuple(batches[start : start + accumulated]) for start in range(0, len(batches), accumulated)]
    # Completions are scored in the order of generation.
    scored = [_micro_batch(spec, rows[start : start + size], widths) for start in range(0, count, size)]
    generated = StepLengths(
        micro_batches=parts[0],
        pads_prompts=min(own.prompts) < widths[0],
        scored_before=tuple(scored) if _scores_before(spec) else (),
        ended=_ended(spec, own.completions),
        is_loaded=own.loaded[0],
    )
    return [generated, *(StepLengths(micro_batches=part, place=place) for place, part in enumerate(parts[1:], start=1))]


def _scores_before(spec: TrialSpec) -> bool:
    """Return whether completions are scored before training: by the reference, or by the policy as it was.

    Source: `_generate_and_score_completions` of `GRPOTrainer` and `RLOOTrainer` (trl 1.16).
    """
    changes_between = spec.gradient_accumulation_steps % spec.steps_per_generation != 0
    return spec.recipe is Recipe.RLOO or spec.beta != 0 or spec.use_vllm or changes_between


def _micro_batch(spec: TrialSpec, rows: Sequence[tuple[int, ...]], widths: tuple[int, ...]) -> MicroBatch:
    size = 1 if spec.logprobs is Logprobs.SLICED else len(rows)
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return MicroBatch(
        rows=len(rows),
        widths=widths,
        # Of a whole row nothing predicts the first token.
        scored=tuple(sum(row[-1] - (len(row) == 1) for row in part) for part in parts),
        padded=tuple(any(row != widths for row in part) for part in parts),
    )
