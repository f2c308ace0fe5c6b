"""Lengths of the rows of a whole run: distributions, growth over training, truncation, and draws by a seed.

Only `random.Random` of the standard library draws, so that a seed gives the same lengths on every machine.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import Protocol

from profiler.domain.runs.forecast import Draw
from profiler.domain.trials.trial import Evaluations, TrialSpec

MOST_TOKENS = 10**8
"""Largest number of a distribution (our choice): no model reads longer rows."""


class Law(StrEnum):
    """Kinds of distributions that a command takes."""

    FIXED = "fixed"
    """One number."""
    UNIFORM = "uniform"
    """`uniform(low,high)`."""
    NORMAL = "normal"
    """`normal(mean,sigma)`."""
    LOGNORMAL = "lognormal"
    """`lognormal(mean,sigma)`: the mean of the lengths, and the standard deviation of their natural logarithms."""


class Source(Protocol):
    """Where lengths come from."""

    @property
    def mean(self) -> float:
        """The mean, before growth and truncation."""

    def of_seed(self, random: Random, /) -> "Source":
        """Return the source of one seed."""

    def lengths(self, random: Random, count: int, step: int, /) -> Sequence[float]:
        """Return `count` lengths in tokens, before growth and truncation, of rows of an optimizer step from 1 on."""


@dataclass(frozen=True)
class Distribution:
    """Independent numbers of one law."""

    law: Law
    first: float  # the number, the lowest, or the mean
    second: float = 0.0  # the highest, or sigma

    @property
    def mean(self) -> float:
        """The mean, before truncation. By hand: ``uniform(100,300)`` has 200."""
        return (self.first + self.second) / 2 if self.law is Law.UNIFORM else self.first

    def sample(self, random: Random) -> float:
        """Return one number.

        A lognormal with mean m and sigma s has the median m exp(-s^2 / 2), because its mean is exp(mu + s^2 / 2)
        (Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 1, chapter 14). By hand: of
        ``lognormal(420,0.9)`` the median is 420 / exp(0.405) = 280.1.
        """
        match self.law:
            case Law.FIXED:
                return self.first
            case Law.UNIFORM:
                return random.uniform(self.first, self.second)
            case Law.NORMAL:
                return random.gauss(self.first, self.second)
            case Law.LOGNORMAL:
                return random.lognormvariate(math.log(self.first) - self.second**2 / 2, self.second)

    def of_seed(self, _: Random, /) -> "Distribution":
        """Return itself: every seed has it."""
        return self

    def lengths(self, random: Random, count: int, _: int, /) -> Sequence[float]:
        """Return `count` lengths, whatever the step."""
        return [self.sample(random) for _ in range(count)]

    def __str__(self) -> str:
        return f"{self.first:g}" if self.law is Law.FIXED else f"{self.law}({self.first:g},{self.second:g})"


ONE = Distribution(Law.FIXED, 1.0)
"""No growth."""

_CALL = re.compile(r"(uniform|normal|lognormal)\(([^,()]+),([^,()]+)\)")
FORMS = "a number, uniform(low,high), normal(mean,sigma) or lognormal(mean,sigma)"


def distribution_of(text: str, *, least: float) -> Distribution:
    """Return the distribution that a text names.

    Args:
        text: As a user writes it.
        least: The smallest number, mean or lowest value that is allowed.

    Raises:
        ValueError: It names none, or its numbers are not allowed; the message is the end of a sentence about it.
    """
    plain = "".join(text.split())
    found = _CALL.fullmatch(plain)
    law = Law(found[1]) if found else Law.FIXED
    try:
        numbers = [float(each) for each in (found.groups()[1:] if found else (plain,))]
    except ValueError as error:
        raise ValueError(f"must be {FORMS}") from error
    first, second = numbers[0], numbers[1] if len(numbers) > 1 else 0.0
    if not all(math.isfinite(each) and each <= MOST_TOKENS for each in numbers):
        raise ValueError(f"must have numbers of at most {MOST_TOKENS:,}")
    if first < least:
        raise ValueError(f"must be at least {least:g}")
    if law is Law.UNIFORM and second < first:
        raise ValueError("must have its lower number first")
    if law in (Law.NORMAL, Law.LOGNORMAL) and not 0 <= second <= (MOST_TOKENS if law is Law.NORMAL else 10):
        raise ValueError("must have a sigma of at least 0" + (", at most 10" if law is Law.LOGNORMAL else ""))
    return Distribution(law, first, second)


@dataclass(frozen=True)
class Recorded:
    """Lengths that were given one by one."""

    values: tuple[int, ...]
    """In tokens; not empty."""
    is_data_set: bool
    """Whether they are rows of a data set, each of which comes once per epoch; else each draw is any of them."""

    @property
    def mean(self) -> float:
        """The mean, before truncation."""
        return sum(self.values) / len(self.values)

    def of_seed(self, _: Random, /) -> "Recorded":
        """Return itself: every seed has it."""
        return self

    def lengths(self, random: Random, count: int, _: int, /) -> Sequence[float]:
        """Return `count` of the lengths, sampled with replacement."""
        return random.choices(self.values, k=count)

    def epochs(self, random: Random) -> Iterator[int]:
        """Yield the lengths without end, each once per epoch in a new order, as transformers' `RandomSampler` does."""
        while True:
            yield from random.sample(self.values, k=len(self.values))


class SamplingStrategy(StrEnum):
    """In which order the rows of a data set come, by transformers' names."""

    RANDOM = "random"
    GROUP_BY_LENGTH = "group_by_length"


def grouped_by_length(lengths: Sequence[float], batch: int, random: Random) -> list[float]:
    """Return the lengths of one epoch in the order of `group_by_length`.

    They are shuffled and cut into parts of as many batches as a fourth of the epoch has, at most 50; each part is
    sorted from long to short, and the longest row of all changes places with the first (`get_length_grouped_indices`
    of transformers 5). So the step that needs most is the first. By hand: in batches of 1, four rows are four parts of
    one row, of which the longest is the first; twelve rows are four sorted parts of three.

    Args:
        lengths: Of the rows; not empty.
        batch: Rows of an optimizer step of one process.
        random: Shuffles them.
    """
    size = max(1, min(len(lengths) // (4 * batch), 50)) * batch
    rows = random.sample(lengths, k=len(lengths))
    found = [row for start in range(0, len(rows), size) for row in sorted(rows[start : start + size], reverse=True)]
    longest = found.index(max(found))
    found[0], found[longest] = found[longest], found[0]
    return found


@dataclass(frozen=True, kw_only=True)
class RunLengths:
    """What is known of the lengths of a run."""

    prompts: Source | None
    """None for recipes whose rows are whole."""
    completions: Source
    """Or whole rows."""
    growth: Distribution = ONE
    """The mean completion of the last step, as a multiple of that of the first; sampled once per seed, and linear
    between them."""
    train_sampling_strategy: SamplingStrategy = SamplingStrategy.RANDOM
    """Only of whole rows: the rows of one generation are padded to its longest one in any order."""


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """How many rows a run needs, and the longest that it gets."""

    steps: int
    rows_per_step: int
    rows_at_once: int
    """Completions that are generated together; `rows_per_step` for recipes that generate nothing."""
    rows_per_prompt: int  # 0 for recipes whose rows are whole
    longest_prompt: int
    longest_completion: int  # or whole row
    longest_row: int = MOST_TOKENS  # prompt and completion together
    pads_apart: bool = True  # prompts and completions are padded each to the longest of their own
    processes: int = 1  # among which the rows are dealt
    is_referenced: bool = False  # a reference runs over the data set before training

    def longest_after(self, prompts: Sequence[int], row: int) -> int:
        """Return the most tokens of the completion of a row, given all prompts. By hand: 1,000 less a prompt of 300."""
        prompt = prompts[row // self.rows_per_prompt] if prompts else 0
        return min(self.longest_completion, self.longest_row - prompt)

    @classmethod
    def of(cls, spec: TrialSpec, steps: int, processes: int = 1) -> "RowCounts":
        """Return the counts of a trial. By hand: 4 rows in 8 micro-batches are 32 rows per step, of 4 prompts by 8."""
        has_rollout, has_prompts = spec.recipe.facts.has_rollout, spec.recipe.facts.has_prompts
        rows = spec.training_rows * spec.gradient_accumulation_steps * processes
        return cls(
            steps=steps,
            rows_per_step=rows,
            rows_at_once=spec.generation_batch_size * processes if has_rollout else rows,
            rows_per_prompt=spec.rows_per_prompt,
            # `max_length` cuts a row at its end; a prompt as long as that would have no completion.
            longest_prompt=spec.max_prompt_length if has_rollout else max(1, spec.row_tokens - 1) * has_prompts,
            longest_completion=spec.max_completion_length if has_rollout else spec.row_tokens,
            longest_row=spec.row_tokens,
            pads_apart=has_rollout,
            processes=processes,
            is_referenced=spec.precompute_ref_log_probs,
        )

    @property
    def rows(self) -> int:
        """Rows of all steps, in whole batches of generation."""
        return math.ceil(self.steps * self.rows_per_step / self.rows_at_once) * self.rows_at_once


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The lengths of one seed."""

    draw: Draw
    cut_prompts: int
    cut_completions: int
    """How many were longer than the longest that is allowed."""
    growth: float
    """As in `RunLengths`, of this seed."""


def sampled(lengths: RunLengths, counts: RowCounts, seed: int) -> Sampled:
    """Return the lengths of one seed: whole tokens, at least 1, and none above the longest."""
    random = Random(seed)
    growth = max(0.0, lengths.growth.sample(random))
    source = lengths.completions.of_seed(random)
    prompts: list[float] = []
    if lengths.prompts is not None and counts.rows_per_prompt:
        each = counts.rows_per_prompt
        prompts = _all(lengths.prompts, random, math.ceil(counts.rows / each), lambda row: row * each, counts)
    completions = [
        length * _grown(growth, _step(row, counts), counts.steps)
        for row, length in enumerate(_all(source, random, counts.rows, lambda row: row, counts))
    ]
    if lengths.train_sampling_strategy is SamplingStrategy.GROUP_BY_LENGTH:
        epoch = len(source.values) if isinstance(source, Recorded) and source.is_data_set else len(completions)
        at_once = counts.rows_per_step // counts.processes
        completions = [
            length
            for start in range(0, len(completions), epoch)
            for length in grouped_by_length(completions[start : start + epoch], at_once, random)
        ]
    own = tuple(_tokens(each, counts.longest_prompt) for each in prompts)
    longest = [counts.longest_after(own, row) for row in range(len(completions))]
    reference = _data_set(lengths, counts)
    return Sampled(
        draw=Draw(seed=seed, prompts=own, completions=tuple(map(_tokens, completions, longest)), reference=reference),
        cut_prompts=sum(round(each) > counts.longest_prompt for each in prompts),
        cut_completions=sum(round(each) > most for each, most in zip(completions, longest, strict=True)),
        growth=growth,
    )


def _data_set(lengths: RunLengths, counts: RowCounts) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return prompts and completions of all rows of a data set, in its order; None if the lengths are of none."""
    prompts, known = lengths.prompts, lengths.completions
    if not (counts.is_referenced and isinstance(known, Recorded) and isinstance(prompts, Recorded)):
        return None
    own = tuple(_tokens(each, counts.longest_prompt) for each in prompts.values)
    longest = (counts.longest_after(own, row) for row in range(len(own) * counts.rows_per_prompt))
    return own, tuple(map(_tokens, known.values, longest))


_SEED_OF_EVALUATION = 1_000_003
"""That no run has. It is that of rows of data; prompts and completions of a run have one more for each seed."""


def evaluated_rows(evaluations: Evaluations, rows: int, lengths: RunLengths, spec: TrialSpec, seed: int) -> Evaluations:
    """Return the evaluations of a seed with the lengths of so many rows, pairs or prompts; `rows` is at least 1.

    Rows of data do not grow, and are the same with every seed; completions are generated anew each time, and grow.
    """
    if (each := evaluations.num_generations_eval) is not None:
        return _generated_rows(evaluations, rows, rows * each, lengths, spec, Random(_SEED_OF_EVALUATION + 1 + seed))
    at_once = min(rows, evaluations.per_device_eval_batch_size)
    batches = replace(spec, per_device_train_batch_size=at_once, gradient_accumulation_steps=1)
    counts = RowCounts.of(batches, math.ceil(rows / at_once))
    draw = sampled(replace(lengths, growth=ONE), counts, _SEED_OF_EVALUATION).draw
    completions = rows * batches.training_rows // at_once
    return replace(evaluations, prompts=draw.prompts[:rows], completions=draw.completions[:completions])


def _generated_rows(
    evaluations: Evaluations, prompts: int, rows: int, lengths: RunLengths, spec: TrialSpec, random: Random
) -> Evaluations:
    steps = [1] if evaluations.eval_on_start else []
    steps += [step for step in range(1, spec.steps + 1) if evaluations.follows(step, spec.steps)]
    growth, counts = max(0.0, lengths.growth.sample(random)), RowCounts.of(spec, spec.steps)
    source, of_prompts = lengths.completions.of_seed(random), lengths.prompts or Distribution(Law.FIXED, 1)
    own = (_tokens(length, counts.longest_prompt) for length in _all(of_prompts, random, prompts, lambda _: 0, counts))
    completions = (
        _tokens(length * _grown(growth, step, spec.steps), counts.longest_completion)
        for step in steps
        for length in source.lengths(random, rows, step)
    )
    return replace(evaluations, prompts=tuple(own), completions=tuple(completions))


def _all(source: Source, random: Random, count: int, row_of: Callable[[int], int], counts: RowCounts) -> list[float]:
    """Return `count` lengths; `row_of` is the row of the run to which each belongs."""
    if isinstance(source, Recorded) and source.is_data_set:
        return [float(length) for length, _ in zip(source.epochs(random), range(count), strict=False)]
    found: list[float] = []
    while len(found) < count:
        step = _step(row_of(len(found)), counts)
        own = 1
        while len(found) + own < count and _step(row_of(len(found) + own), counts) == step:
            own += 1
        found.extend(source.lengths(random, own, step))
    return found


def _step(row: int, counts: RowCounts) -> int:
    """Return the optimizer step of a row, from 1 on; rows that are generated beyond the last belong to it."""
    return min(row // counts.rows_per_step + 1, counts.steps)


def _grown(growth: float, step: int, steps: int) -> float:
    """Return by how much completions of a step are longer than those of the first. By hand: half-way to 2 it is 1.5."""
    return 1 + (growth - 1) * (step - 1) / max(1, steps - 1)


def _tokens(length: float, longest: int) -> int:
    return max(1, min(round(length), longest))


@dataclass(frozen=True, kw_only=True)
class StepWidths:
    """Tokens to which the longest rows of a step are padded."""

    prompt: int
    """0 for recipes whose rows are whole; of preferences what the longest completion leaves of the longest row."""
    completion: int  # or whole row


TYPICAL, RARE = 0.5, 0.999
"""The parts of the steps for which an estimate says what they need at most."""

WIDTH_STEPS = 2000
"""Steps of which the parts are taken (our choice): two are beyond the 99.9th percentile."""


def _widths(draw: Draw, counts: RowCounts, rows: range) -> StepWidths:
    completion = max(draw.completions[row] for row in rows)
    if not counts.rows_per_prompt:
        return StepWidths(prompt=0, completion=completion)
    prompts = [draw.prompts[row // counts.rows_per_prompt] for row in rows]
    if counts.pads_apart:
        return StepWidths(prompt=max(prompts), completion=completion)
    longest = max(prompt + draw.completions[row] for prompt, row in zip(prompts, rows, strict=True))
    return StepWidths(prompt=longest - completion, completion=completion)


def step_widths(lengths: RunLengths, counts: RowCounts) -> dict[float, StepWidths]:
    """Return the widths that each of the parts `TYPICAL` and `RARE` of the generations, or steps, do not exceed.

    They are ordered by the tokens of prompt and completion together, of one draw of the lengths. By hand: of rows of
    10, 20 and 30 tokens, one per step, half of the steps have at most 20.

    Args:
        lengths: Of the rows.
        counts: Of as many steps as are sampled.
    """
    draw, size = sampled(lengths, counts, seed=0).draw, counts.rows_at_once
    found = [_widths(draw, counts, range(start, start + size)) for start in range(0, counts.rows, size)]
    found.sort(key=lambda widths: widths.prompt + widths.completion)
    return {part: found[math.ceil(part * len(found)) - 1] for part in (TYPICAL, RARE)}
