"""The largest value of a key with which a trial fits a card, and the longest mean rows with which verl does."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from profiler.analytical.estimate import largest_of_phases
from profiler.analytical.explanation.engine_start import engine_text
from profiler.analytical.explanation.explained import (
    CardVerdict,
    ExplainedPhase,
    Fit,
    Unanswered,
    explained_phase,
    fit_of_memory,
)
from profiler.analytical.formulas.sizes.rounding import Needed, with_fragments
from profiler.analytical.timeline.recipes.verl import VerlEstimate, verl_estimate
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import cuda_context_bytes, nccl_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.verl import VerlJob

Answer = TypeVar("Answer")

GAP = 4096
"""Most values in a row that rules may refuse: a batch size that must be a multiple of 4,096 is still found."""


@dataclass(frozen=True, kw_only=True)
class Boundary(Generic[Answer]):
    """The boundary between values that fit and values that do not."""

    largest: int | None
    """The largest value that fits; None if none does."""
    at_largest: Answer | None
    beyond: int | None
    """The next allowed value, which does not fit; None if every allowed value fits."""
    at_beyond: Answer | None

    @property
    def answers(self) -> Sequence[Answer]:
        """The answers on both sides, as far as there are any."""
        return [each for each in (self.at_largest, self.at_beyond) if each is not None]


def largest_that_fits(
    answer: Callable[[int], Answer | None],
    fits: Callable[[Answer], bool],
    *,
    minimum: int,
    maximum: int,
    gap: int = GAP,
) -> Boundary[Answer]:
    """Return the boundary, for memory that never falls with the value.

    By hand, values from 1 of which rules allow multiples of 4, and which fit below 10: 8 fits, 12 does not.

    Args:
        answer: Returns the answer for a value; None if rules refuse the value.
        fits: Whether an answer is one that fits.
        minimum: The smallest value to try.
        maximum: The largest value to try.
        gap: Most values in a row that rules refuse below the largest that they allow.
    """
    values = _Values(answer, minimum, maximum, gap)
    low = values.following(minimum)
    if low is None:
        return Boundary(largest=None, at_largest=None, beyond=None, at_beyond=None)
    if not fits(values.known(low)):
        return values.boundary(None, low)
    high: int | None = None
    while high is None and (asked := values.near(2 * low, low, None)) is not None:
        low, high = (asked, None) if fits(values.known(asked)) else (low, asked)
    while high is not None and (asked := values.near((low + high) // 2, low, high)) is not None:
        low, high = (asked, high) if fits(values.known(asked)) else (low, asked)
    return values.boundary(low, high)


def boundary_near(
    answer: Callable[[int], Answer | None],
    judge: "Judge[Answer]",
    guess: int,
    *,
    minimum: int,
    maximum: int,
    gap: int = GAP,
    precision: float = 0.0,
) -> Boundary[Answer]:
    """Return the boundary, searched from a guess by a judge that is dear, two values at a time.

    The two are asked on both sides of where nothing should be left: by the line through both sides of the boundary, and
    before both are known by `Judge.per_value`. Where memory does not rise steadily, as with fragments, they divide what
    is between the sides in three.

    By hand, with one unit per value and 90 the largest that fits, from a guess of 100: 100 and 101, which lack 10; then
    90 and 91.

    Args:
        answer: Returns what is judged; None if rules refuse the value. It is cheap.
        judge: Says what fits.
        guess: Where the boundary should be.
        minimum: The smallest allowed value.
        maximum: The largest value to try.
        gap: Most values in a row that rules refuse below the largest that they allow.
        precision: Part of a value by which `beyond` may be larger than the next allowed value.
    """
    return _Nearing(_Values(answer, minimum, maximum, gap), judge, precision).found(guess)


@dataclass(frozen=True, kw_only=True)
class Judge(Generic[Answer]):
    """Says what fits."""

    fits: Callable[[Answer], bool]
    """It may be asked again about the same answer."""
    left: Callable[[Answer], float]
    """How much an answer leaves free, in any unit; negative if it needs more than there is."""
    per_value: float
    """About how much less a value leaves than the one before it, in that unit."""
    together: Callable[[Sequence[Answer]], object] | None = None
    """Judges answers at the same time, before `fits` is asked about each; None: one after the other."""


class _Values(Generic[Answer]):
    """The values that rules allow, and their answers."""

    def __init__(self, answer: Callable[[int], Answer | None], minimum: int, maximum: int, gap: int) -> None:
        self._answer, self._minimum, self._maximum, self._gap = answer, minimum, maximum, gap
        self._answers: dict[int, Answer | None] = {}

    def known(self, value: int) -> Answer:
        """Return the answer for an allowed value."""
        found = self._at(value)
        assert found is not None
        return found

    def boundary(self, largest: int | None, beyond: int | None) -> Boundary[Answer]:
        """Return the boundary between two allowed values."""
        at_largest, at_beyond = (None if value is None else self.known(value) for value in (largest, beyond))
        return Boundary(largest=largest, at_largest=at_largest, beyond=beyond, at_beyond=at_beyond)

    def following(self, value: int, ceiling: int | None = None) -> int | None:
        """Return the first allowed value from this one on and below `ceiling`; None if the next ones are refused."""
        end = min(value + self._gap, self._maximum) + 1
        values = range(max(value, self._minimum), end if ceiling is None else min(end, ceiling))
        return next((each for each in values if self._at(each) is not None), None)

    def near(self, value: int, low: int | None, high: int | None) -> int | None:
        """Return an allowed value near this one, between two others; None if there is none.

        Without `high` everything may be refused from some value on, as beyond a model's context; that is remembered.
        """
        floor = self._minimum - 1 if low is None else low
        ceiling = self._maximum + 1 if high is None else high
        value = min(max(value, floor + 1), ceiling - 1)
        if value <= floor:
            return None
        found = self.following(value, ceiling)
        if found is not None:
            return found
        if high is None:
            self._maximum = value - 1
            return self._last(floor)
        before = range(value - 1, max(value - 1 - self._gap, floor), -1)
        return next((each for each in before if self._at(each) is not None), None)

    def _at(self, value: int) -> Answer | None:
        if value not in self._answers:
            self._answers[value] = self._answer(value)
        return self._answers[value]

    def _last(self, floor: int) -> int | None:
        """Return the largest allowed value above `floor`, where allowed values end somewhere between."""
        found, bottom, refused = None, floor, self._maximum + 1
        while refused - bottom > 1:
            middle = (bottom + refused) // 2
            allowed = self.following(middle, refused)
            if allowed is None:
                refused = middle
            else:
                found = bottom = allowed
        return found


class _Nearing(Generic[Answer]):
    """The boundary as it is known so far."""

    def __init__(self, values: _Values[Answer], judge: Judge[Answer], precision: float) -> None:
        self._values, self._judge, self._precision = values, judge, precision
        self._low: int | None = None
        self._high: int | None = None
        self._asked: Sequence[int] = ()
        self._rounds_on_one_side = self._widened = 0
        self._width_before: int | None = None

    def found(self, guess: int) -> Boundary[Answer]:
        """Return the boundary."""
        where = guess, self._apart(guess)
        while not self._is_near_enough and (pair := self._pair(*where)):
            self._ask(pair)
            where = self._next()
        return self._values.boundary(self._low, self._high)

    def _precise(self, value: int) -> int:
        return max(1, int(self._precision * value))

    def _apart(self, value: int) -> int:
        """Return how far apart two values are asked: neighbours, or so that a third of it is near enough."""
        return max(1, 3 * (self._precise(value) - 1))

    @property
    def _is_near_enough(self) -> bool:
        low, high = self._low, self._high
        return low is not None and high is not None and high - low <= max(1, self._precision * low)

    def _pair(self, target: int, apart: int) -> Sequence[int]:
        """Return up to two allowed values around a target that are not decided yet, ascending."""
        # Of neighbours, the target is the one that should fit.
        one = self._values.near(target - apart // 2, self._low, self._high)
        if one is None:
            return ()
        other = self._values.near(target - apart // 2 + apart, one, self._high)
        is_spare = other is None and self._judge.together is not None
        below = self._values.near(one - apart, self._low, one) if is_spare else None
        return [each for each in (below, one, other) if each is not None]

    def _ask(self, values: Sequence[int]) -> None:
        """Move both sides by what fits of some values, ascending; of two that should fit one alone is asked."""
        self._asked, answers = values, [self._values.known(value) for value in values]
        if self._judge.together is not None:
            self._judge.together(answers)
        for value, answer in zip(values, answers, strict=True):
            if not self._judge.fits(answer):
                self._high = value
                return
            self._low = value
            to_the_last = self._judge.per_value * (values[-1] - value)
            if self._judge.together is None and self._left(value) > to_the_last:
                return

    def _next(self) -> tuple[int, int]:
        """Return where nothing should be left, and how far apart to ask; where no line leads there, steps grow."""
        low, high = self._low, self._high
        if low is not None and high is not None:
            return self._between(low, high)
        known, upwards = (low, 1) if low is not None else (high, -1)
        assert known is not None
        least = min(self._precise(known), 2) * self._precise(known) << 2 * self._widened
        # Of long rows the fragments differ: the most hopeful of those asked together counts.
        asked = self._asked if self._judge.together is not None and self._precise(known) > 1 else (known,)
        left = max(self._left(value) + (value - known) * self._slope() for value in asked)
        step = upwards * left / max(self._slope(), sys.float_info.min)
        self._widened += step < least or self._rounds_on_one_side > 0
        self._rounds_on_one_side += 1
        if step < 0:
            # With fragments a card can be too small for what it has room for: no line leads on from here.
            return known + upwards * 5 * least // 2, 3 * least
        step += _BELOW * (self._precise(known) - 1) if upwards < 0 else 0
        target = math.floor(known + upwards * min(max(step, least), _FARTHEST))
        return target, self._apart(target)

    def _slope(self) -> float:
        """Return how much less each value leaves, by the last two where they differ little from what is expected."""
        expected, first, last = self._judge.per_value, self._asked[0], self._asked[-1]
        if first == last or self._judge.together is None:
            return expected
        most = expected * (_MOST_BENT if self._precise(last) == 1 else _MOST_BENT_ROWS)
        return min(max((self._left(first) - self._left(last)) / (last - first), expected), most)

    def _between(self, low: int, high: int) -> tuple[int, int]:
        width, apart = high - low, self._apart(low)
        did_not_halve = self._width_before is not None and 2 * width > self._width_before
        self._width_before = width
        first, last = self._left(low), self._left(high)
        if 2 * width <= 3 * apart or did_not_halve or not first >= 0 > last:
            return (low + high) // 2, max(1, width // 3)
        return low + int(width * first / (first - last)), apart

    def _left(self, value: int) -> float:
        return self._judge.left(self._values.known(value))


_MOST_BENT, _MOST_BENT_ROWS, _BELOW = 2.5, 1.25, 4
"""How much steeper than expected a line through two values may be, and of long rows, whose fragments differ; and how
many times what is near enough a search of these goes below where nothing is left (our choices)."""

_FARTHEST = 2**32
"""Farther than any value, so that a line that hardly falls has an end."""


@dataclass(frozen=True, kw_only=True)
class VerlFit:
    """The verdict for one card, by the rule of a single GPU. Lengths are those of prompt and response together."""

    fit: Fit | Unanswered
    """With every row of the maximum length."""
    card: CardVerdict
    """The verdict by what is counted, likewise."""
    longest_row: int
    fits_up_to: int | None
    """Largest mean length of rows that fits; None if none does, or if padding is computed like tokens."""
    tight_up_to: int | None
    """Largest mean length of rows that fits or is tight; None likewise."""
    counted: Fit | None = None
    """The verdict for what is counted, where something has no formula; None otherwise."""
    reasons: tuple[str, ...] = ()
    """Why verl does not run the job, or what has no formula; empty for a verdict by memory."""

    @property
    def word(self) -> str:
        """The verdict in words."""
        return self.card.word if self.fit is self.card.fit else self.fit.value


def verl_card(found: VerlEstimate) -> CardVerdict:
    """Return whether each phase fits the card, with the context and most fragments; the pool of an engine has none."""
    no_engine = engine_text(found)
    with_cache = max(found.engine_peak_bytes, int(with_fragments(found.training_peak_bytes)))
    needed = Needed.within_bounds(found.peak_bytes, with_cache)
    return CardVerdict(
        gpu=found.gpu,
        fit=Fit.NO_ENGINE if no_engine else fit_of_memory(found.gpu, needed, gpus=found.job.n_gpus),
        peak_allocated_bytes=found.peak_bytes,
        peak_reserved_bytes=with_cache,
        needed=needed,
        context_bytes=cuda_context_bytes(found.gpu.compute_capability),
        nccl_bytes=nccl_bytes(found.gpu.compute_capability, found.job.n_gpus),
        missing=None,
        no_engine=no_engine,
        engine=found.job.engine.title,
    )


def verl_cards(job: VerlJob, architecture: Architecture, own: Gpu) -> tuple[CardVerdict, ...]:
    """Return the verdict by what is counted for each known card and the job's own, the smallest card first."""
    cards = sorted({**KNOWN_GPUS, own.name: own}.values(), key=lambda gpu: gpu.memory_bytes)
    return tuple(verl_card(verl_estimate(job, architecture, gpu)) for gpu in cards)


def verl_phases(found: VerlEstimate) -> tuple[ExplainedPhase, ...]:
    """Return the largest instant of each phase of any trial, in the order of a step."""
    return tuple(explained_phase(each) for each in largest_of_phases(found.instants.values()).values())


def verl_fit(
    job: VerlJob, job_at: Callable[[int], VerlJob], architecture: Architecture, gpu: Gpu, *, removes_padding: bool
) -> VerlFit:
    """Return the verdict for a job.

    Args:
        job: The job with every row of the maximum length.
        job_at: Returns the job whose rows have a mean length.
        architecture: Its model.
        gpu: The card.
        removes_padding: Whether the mean length counts.
    """
    longest = job.max_prompt_length + job.max_response_length

    def fit_at(tokens: int) -> Fit:
        return verl_card(verl_estimate(job_at(tokens), architecture, gpu)).fit

    def most(*fits: Fit) -> int | None:
        return _largest(lambda tokens: fit_at(tokens) in fits, longest) if removes_padding else None

    card = verl_card(verl_estimate(job, architecture, gpu))
    return VerlFit(
        fit=card.fit,
        card=card,
        longest_row=longest,
        fits_up_to=most(Fit.FITS),
        tight_up_to=most(Fit.FITS, Fit.TIGHT),
    )


def with_reasons(found: VerlFit, *, refused: Sequence[str], not_counted: Sequence[str]) -> VerlFit:
    """Return what is left of a verdict where verl refuses the job, for these reasons, or a term has no formula."""
    if not refused and not not_counted:
        return found
    return replace(
        found,
        fit=Unanswered.NOT_POSSIBLE if refused else Fit.UNDECIDED,
        fits_up_to=None,
        tight_up_to=None,
        counted=None if refused else found.card.fit,
        reasons=tuple(refused or not_counted),
    )


def _largest(is_enough: Callable[[int], bool], maximum: int) -> int | None:
    """Return the largest number up to `maximum` for which `is_enough`, which is false above some number."""
    if not is_enough(1):
        return None
    low, high = 1, maximum
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if is_enough(middle) else (low, middle - 1)
    return low
