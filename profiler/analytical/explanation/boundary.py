"""The largest value of a key with which a trial fits a card, by bisection.

Whether a job of verl fits a card, and how long its rows can be on average where padding is removed.
"""

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
from profiler.analytical.formulas.sizes.rounding import with_fragments
from profiler.analytical.timeline.recipes.verl import VerlEstimate, verl_estimate
from profiler.domain.architectures.architecture import Architecture
from profiler.domain.cards.card import cuda_context_bytes, nccl_bytes
from profiler.domain.cards.gpu import KNOWN_GPUS, Gpu
from profiler.domain.verl import VerlJob

Answer = TypeVar("Answer")

GAP = 4096
"""Most values in a row that rules may refuse: a batch size that must be a multiple of 4,096 is still found."""

_FIRST_STEP = 64
"""A guess is first left by this part of it (our choice): the estimate is mostly within some percent."""

_MOST_STEPS = 8
"""How many steps at once a line may be followed beyond what was asked (our choice)."""


@dataclass(frozen=True, kw_only=True)
class Boundary(Generic[Answer]):
    """The boundary between values that fit and values that do not."""

    largest: int | None
    """The largest value that fits; None if none does."""
    at_largest: Answer | None
    beyond: int | None
    """The next allowed value, which does not fit; None if every allowed value fits."""
    at_beyond: Answer | None


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
    search = _Search(answer, fits, gap)
    low = search.next_allowed(minimum, min(minimum + gap, maximum))
    if low is None:
        return Boundary(largest=None, at_largest=None, beyond=None, at_beyond=None)
    if not search.fits_at(low):
        return Boundary(largest=None, at_largest=None, beyond=low, at_beyond=search.at(low))
    low, high = search.upwards(low, maximum, lambda last, _: 2 * last)
    if high is None:
        return Boundary(largest=low, at_largest=search.at(low), beyond=None, at_beyond=None)
    low, high = search.halved(low, high)
    return Boundary(largest=low, at_largest=search.at(low), beyond=high, at_beyond=search.at(high))


def boundary_near(
    answer: Callable[[int], Answer | None],
    fits: Callable[[Answer], bool],
    guess: tuple[int | None, int | None],
    *,
    minimum: int,
    maximum: int,
    gap: int = GAP,
    precision: float = 0.0,
    left: Callable[[Answer], float] | None = None,
    ahead: Callable[[Sequence[Answer]], object] | None = None,
) -> Boundary[Answer]:
    """Return the boundary, searched from a guess in steps that double, for answers that are dear.

    By hand, a guess of 100 and 101 where 90 is the largest that fits: 100, 99, 97, 93 and 85 are asked, then those
    between 85 and 93. The first step is a 64th of the value. With `left`, the line through two answers says where to
    ask next: 100, 99, 90 and 91.

    Args:
        answer: Returns what `fits` judges; None if rules refuse the value. It is cheap.
        fits: Whether an answer is one that fits; it may be asked again about the same answer.
        guess: A value that should fit, and the next allowed one, which should not; either may be None.
        minimum: The smallest allowed value.
        maximum: The largest value to try.
        gap: Most values in a row that rules refuse below the largest that they allow.
        precision: Part of a value by which `beyond` may be larger than the next allowed value.
        left: How much an answer leaves free, in any unit; negative if it needs more than there is.
        ahead: Gets what is asked next, and what is probably asked after it, to judge both at the same time.
    """
    search = _Search(answer, fits, gap, precision=precision, left=left, ahead=ahead)
    low, high = guess
    if low is not None and not search.fits_at(low):
        low, high = search.stepped_down(low, minimum)
    elif high is not None and search.fits_at(high):
        low, high = search.stepped_up(high, maximum)
    if low is not None and high is not None:
        low, high = search.halved(low, high)
    return Boundary(
        largest=low,
        at_largest=search.at(low) if low is not None else None,
        beyond=high,
        at_beyond=search.at(high) if high is not None else None,
    )


class _Search(Generic[Answer]):
    """Answers that were asked for already, and allowed values near a value."""

    def __init__(
        self,
        answer: Callable[[int], Answer | None],
        fits: Callable[[Answer], bool],
        gap: int,
        *,
        precision: float = 0.0,
        left: Callable[[Answer], float] | None = None,
        ahead: Callable[[Sequence[Answer]], object] | None = None,
    ) -> None:
        self._answer, self._fits, self._gap = answer, fits, gap
        self._precision, self._left_of, self._ahead = precision, left, ahead
        self._known: dict[int, Answer | None] = {}
        self._left: dict[int, float] = {}
        self._judged: set[int] = set()  # together with another one

    def at(self, value: int) -> Answer | None:
        if value not in self._known:
            self._known[value] = self._answer(value)
        return self._known[value]

    def fits_at(self, value: int) -> bool:
        found = self.at(value)
        if found is None:
            return False
        does = self._fits(found)
        if self._left_of is not None:
            self._left[value] = self._left_of(found)
        return does

    def _asked_with(self, value: int, low: int, high: int, *, first: int) -> bool:
        """Return whether a value fits, near the boundary asked with its neighbour in direction `first` or the other."""
        if self._ahead is None or value in self._judged:
            return self.fits_at(value)
        width = max(1, int(self._precision * value))
        end = self._nothing_left(*((low, high) if {low, high} <= set(self._left) else self._outermost))
        if end is not None and abs(end - value) <= 2 * width:
            near = self.next_allowed(value + width, high - 1), self.previous_allowed(value - width, low + 1)
            values = [value, *[each for each in near[::first] if each is not None][:1]]
            self._ahead([found for each in values if (found := self.at(each)) is not None])
            self._judged.update(values)
        return self.fits_at(value)

    def _judged_in(self, low: int, high: int) -> int | None:
        """Return a value between two others that was judged together with another one."""
        return next((value for value in self._judged if low < value < high), None)

    @property
    def _outermost(self) -> tuple[int, int]:
        """The smallest and the largest value that were asked for."""
        return min(self._left, default=0), max(self._left, default=0)

    def _nothing_left(self, low: int, high: int) -> int | None:
        """Return the largest value that leaves something, on the line through two values; None without such a line."""
        first, last = self._left.get(low), self._left.get(high)
        if first is None or last is None or first <= last:
            return None
        return int(low + (high - low) * first / (first - last))

    def _next(self, last: int, step: int) -> int:
        """Return the value to ask after `last`: a step away, or where nothing is left if that is not much farther.

        A negative step is one downwards. The line goes through the outermost values.
        """
        smallest, largest = self._outermost
        # The values of a guess are next to each other, and say nothing of a line of thousands.
        found = self._nothing_left(smallest, largest) if largest - smallest >= abs(step) / 2 else None
        if found is None or not 0 < (found - last) / step <= _MOST_STEPS:
            return last + step
        return found - int(self._precision * found / 2) if step < 0 else found + 1 + int(self._precision * found / 2)

    def next_allowed(self, first: int, last: int) -> int | None:
        return next(
            (value for value in range(first, min(first + self._gap, last) + 1) if self.at(value) is not None), None
        )

    def previous_allowed(self, first: int, last: int) -> int | None:
        values = range(first, max(first - self._gap, last) - 1, -1)
        return next((value for value in values if self.at(value) is not None), None)

    def stepped_up(self, low: int, maximum: int) -> tuple[int, int | None]:
        """As `upwards`, in steps that double."""
        first = max(1, low // _FIRST_STEP)
        return self.upwards(low, maximum, lambda last, turn: self._next(last, first * 2**turn))

    def upwards(self, low: int, ceiling: int, after: Callable[[int, int], int]) -> tuple[int, int | None]:
        """Return a value that fits, and a larger allowed one that does not; None for the latter if there is none.

        `after` returns the value to ask after one that fits, in a turn from 0.
        """
        turn = 0
        while low < ceiling:
            target = min(self._judged_in(low, ceiling + 1) or max(after(low, turn), low + 1), ceiling)
            candidate = self.next_allowed(target, ceiling)
            if candidate is None:
                # Rules refuse everything from here on, as beyond a model's context.
                ceiling = target - 1
                candidate = self._last_allowed(low, ceiling)
            if candidate is None:
                return low, None
            if not self._asked_with(candidate, low, ceiling + 1, first=-1):
                return low, candidate
            low, turn = candidate, turn + 1
        return low, None

    def _between(self, low: int, high: int, turn: int) -> int:
        """Return the value to ask next: where nothing is left, so that one more closes the gap; each third the middle.

        By hand, 40 leaves 57 and 50 lacks 43: 45, then 46.
        """
        found = self._nothing_left(low, high)
        if found is None or turn % 3 == 2:
            return (low + high) // 2
        width = max(1, int(self._precision * low))
        if found - low < width:
            return low + width
        return high - width if high - found <= width else found - width // 2

    def halved(self, low: int, high: int) -> tuple[int, int]:
        """Return allowed values that fit and do not, next to each other or as near as `precision` says."""
        turn = 0
        while high - low > max(1, self._precision * low):
            middle = self._judged_in(low, high) or min(max(self._between(low, high, turn), low + 1), high - 1)
            turn += 1
            candidate = self.next_allowed(middle, high - 1) or self.previous_allowed(middle, low + 1)
            if candidate is None:
                break
            does = self._asked_with(candidate, low, high, first=1)
            low, high = (candidate, high) if does else (low, candidate)
        return low, high

    def stepped_down(self, high: int, minimum: int) -> tuple[int | None, int]:
        """Return a value that fits, and one above it that does not; None for the former if there is none."""
        step = max(1, high // _FIRST_STEP)
        while high > minimum:
            asked = self._judged_in(minimum - 1, high) or max(minimum, self._next(high, -step))
            candidate = self.previous_allowed(asked, minimum)
            if candidate is None:
                return None, high
            if self._asked_with(candidate, minimum - 1, high, first=1):
                return candidate, high
            high, step = candidate, 2 * step
        return None, high

    def _last_allowed(self, low: int, ceiling: int) -> int | None:
        """Return the largest allowed value above `low` up to `ceiling`, where allowed values end somewhere between."""
        found, refused = None, ceiling + 1
        bottom = low
        while refused - bottom > 1:
            middle = (bottom + refused) // 2
            allowed = self.next_allowed(middle, refused - 1)
            if allowed is None:
                refused = middle
            else:
                found = bottom = allowed
        return found


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


def verl_card(found: VerlEstimate) -> CardVerdict:
    """Return whether the memory of each phase fits the card, with the largest share of fragments and the context.

    The pool of an engine is one block, so its phases have no fragments.
    """
    no_engine = engine_text(found)
    with_cache = max(found.engine_peak_bytes, int(with_fragments(found.training_peak_bytes)))
    return CardVerdict(
        gpu=found.gpu,
        fit=Fit.NO_ENGINE
        if no_engine
        else fit_of_memory(
            found.gpu, gpus=found.job.n_gpus, allocated_bytes=found.peak_bytes, reserved_bytes=with_cache
        ),
        peak_allocated_bytes=found.peak_bytes,
        peak_reserved_bytes=with_cache,
        context_bytes=cuda_context_bytes(found.gpu.compute_capability),
        nccl_bytes=nccl_bytes(found.gpu.compute_capability, found.job.n_gpus),
        missing=None,
        no_engine=no_engine,
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
    """Return the verdict that is left where verl refuses a job, or where something has no formula.

    Args:
        found: The verdict for what is counted.
        refused: Why verl does not run the job.
        not_counted: What changes memory and has no formula.
    """
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
