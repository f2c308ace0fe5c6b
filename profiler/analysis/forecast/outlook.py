"""What a forecast says: whether the run survives, what kills it, what the allocator keeps; and leaks.

Sizes are bytes, steps count from 1.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median

from profiler.allocator.alloc_conf import parse_alloc_conf
from profiler.analysis.forecast.training_log import Z_95, LoggedLengths, LoggedStep, TrainingLog, Trend, trend
from profiler.domain.errors import UsageError
from profiler.domain.memory import MIB, Phase
from profiler.domain.runs.forecast import Death, ForecastRun
from profiler.domain.trials.trial import TrialSpec

# ---- surviving -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of the seeds, as an estimate of a probability."""

    count: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval (E. B. Wilson, JASA 22, 1927), which holds for few seeds and for none or all of them.

        By hand: 0 of 10 is 0 to z^2 / (10 + z^2) = 3.8415 / 13.8415 = 0.278.
        """
        square, part = Z_95**2, self.count / self.of
        middle = (part + square / (2 * self.of)) / (1 + square / self.of)
        half = Z_95 / (1 + square / self.of) * math.sqrt(part * (1 - part) / self.of + square / (4 * self.of**2))
        return max(0.0, middle - half), min(1.0, middle + half)


def died_by(runs: Sequence[ForecastRun], step: int) -> Share:
    """Return which part of the seeds is out of memory in or before a step."""
    return Share(count=sum(run.death is not None and run.death.step <= step for run in runs), of=len(runs))


@dataclass(frozen=True, kw_only=True)
class Band:
    """The peaks of one step over the seeds that reach it."""

    step: int
    allocated: tuple[int, int, int]
    """Least, median and most."""
    reserved: tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What the allocator holds between steps, over time: the median of the seeds at one of a few steps."""

    step: int
    allocated_bytes: int
    """Largest peak so far."""
    reserved_bytes: int
    """Largest peak so far."""
    reserved_after_bytes: int
    """At the end of the step."""
    inactive_split_bytes: int
    """Of them, what no empty_cache returns."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The forecast of one job with one setting of the allocator."""

    steps: int
    """That were asked for."""
    alloc_conf: str
    runs: tuple[ForecastRun, ...]
    """One per seed."""

    @property
    def deaths(self) -> tuple[Death, ...]:
        """Where seeds run out of memory, the earliest first."""
        return tuple(sorted((run.death for run in self.runs if run.death is not None), key=lambda each: each.step))

    @property
    def rank(self) -> tuple[int, int, int]:
        """What is smaller for a better setting: seeds that die, how early the first does, and the largest peak."""
        first = self.deaths[0].step if self.deaths else self.steps
        return self.died.count, -first, self.reserved_bytes

    @property
    def died(self) -> Share:
        """The part of the seeds that runs out of memory."""
        return died_by(self.runs, self.steps)

    @property
    def allocated_bytes(self) -> int:
        """The largest level of all seeds; what was asked for in vain is not in it."""
        return max((each.allocated_bytes for run in self.runs for each in run.lines), default=0)

    @property
    def trained_bytes(self) -> int | None:
        """The largest level of steps of training, where that of all is an evaluation's; None where it is not."""
        lines = [each for run in self.runs for each in run.lines]
        if not lines or max(lines, key=lambda each: each.allocated_bytes).phase is not Phase.EVALUATION:
            return None
        return max((each.allocated_bytes for each in lines if each.phase is not Phase.EVALUATION), default=0)

    @property
    def reserved_bytes(self) -> int:
        """The largest level of all seeds."""
        return max((each.reserved_bytes for run in self.runs for each in run.lines), default=0)

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """A few steps: the first, a tenth, the quarters and the end of the run, or of the seed that lasts longest."""
        last = max((run.death.step if run.death is not None else self.steps for run in self.runs), default=self.steps)
        parts = (1, last // 10, last // 4, last // 2, 3 * last // 4, last)
        return tuple(sorted({max(1, each) for each in parts}))

    def kept(self) -> tuple[Kept, ...]:
        """Return what the allocator holds at the checkpoints that a seed reaches."""
        return tuple(self._kept())

    def _kept(self) -> Iterator[Kept]:
        for step in self.checkpoints:
            own = [run.steps[:step] for run in self.runs if len(run.steps) >= step]
            if own:
                yield Kept(
                    step=step,
                    allocated_bytes=_middle([max(each.allocated_bytes for each in steps) for steps in own]),
                    reserved_bytes=_middle([max(each.reserved_bytes for each in steps) for steps in own]),
                    reserved_after_bytes=_middle([steps[-1].reserved_after_bytes for steps in own]),
                    inactive_split_bytes=_middle([steps[-1].inactive_split_bytes for steps in own]),
                )

    def bands(self) -> tuple[Band, ...]:
        """Return the peaks of every step that a seed reaches."""
        reached = max((len(run.steps) for run in self.runs), default=0)
        found = []
        for place in range(reached):
            own = [run.steps[place] for run in self.runs if len(run.steps) > place]
            found.append(
                Band(
                    step=own[0].step,
                    allocated=_three([each.allocated_bytes for each in own]),
                    reserved=_three([each.reserved_bytes for each in own]),
                )
            )
        return tuple(found)


def _middle(values: Sequence[int]) -> int:
    return round(median(values))


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    return min(values), _middle(values), max(values)


# ---- a run that is under way -----------------------------------------------------------------------------------------


def full_at(measured: Trend, limit_bytes: int) -> tuple[float, float | None, float | None] | None:
    """Return the step at which a trend of memory reaches a limit, and its interval; None if it never does.

    By hand: from 20 GiB at step 0, with 0.01 GiB per step, 24 GiB are full at step 400. The interval holds the level
    at step 0 fixed; an end of it is None where memory would not grow.
    """
    left = limit_bytes - measured.start
    if measured.slope <= 0 or left <= 0:
        return None
    early, late = (left / each if each > 0 else None for each in (measured.high, measured.low))
    return left / measured.slope, early, late


# ---- growth of memory ------------------------------------------------------------------------------------------------


STRICT = 3.290527
"""The two-sided 99.9 % point: of a run without a leak, one in 2,000 is called one by chance."""

UNEXPLAINED = 0.1
"""Part of the measured growth from which on it counts that no length explains it (our choice): the forecast itself may
be wrong by a few per cent of what lengths do."""

_LEAST_GROWTH_BYTES = 8 * MIB
"""Smaller growth over all steps is none (our choice): logs round to 0.001 GiB."""


class Cause(StrEnum):
    """Why memory grows."""

    NONE = "memory does not grow"
    LENGTHS = "longer rows"
    LEAK = "no length explains it"
    UNDECIDED = "undecided"


@dataclass(frozen=True, kw_only=True)
class MemoryGrowth:
    """The growth of measured memory over the steps of a log, against the forecast with the lengths of the log."""

    cause: Cause
    steps: int
    """That were compared."""
    span: int
    """From the first of them to the last."""
    measured: Trend
    """Bytes per step."""
    unexplained: Trend
    """Bytes per step of what was measured beyond the forecast, with its 99.9 % interval."""
    phase: Phase | None
    """In which most of what is unexplained is measured; None if the log has no phases."""

    @property
    def explained(self) -> tuple[float, float, float] | None:
        """The part of the growth that lengths explain, and its interval; None if memory does not grow."""
        if self.measured.slope <= 0:
            return None
        parts = [
            1 - each / self.measured.slope
            for each in (self.unexplained.slope, self.unexplained.high, self.unexplained.low)
        ]
        return parts[0], parts[1], parts[2]


def memory_growth(log: TrainingLog, forecast: Mapping[int, Sequence[int]], *, is_reserved: bool) -> MemoryGrowth | None:
    """Return whether lengths explain the growth of memory; None if fewer than ten steps have both.

    A growth is a leak if at 99.9 % more than `UNEXPLAINED` of it, over all steps, is in what was measured beyond the
    forecast; it is that of lengths if at 99.9 % less than half of it is.

    Args:
        log: With measured memory.
        forecast: Peak of allocated, or of reserved, memory by step, of every seed, with the lengths of the log.
        is_reserved: Which of the two is compared.
    """
    measured = {each.step: _measured(each, is_reserved=is_reserved) for each in log.steps}
    steps = [step for step, size in measured.items() if size is not None and step in forecast]
    if len(steps) < _LEAST_STEPS:
        return None
    expected = _expected(forecast, steps, running=log.is_running_maximum or is_reserved)
    own = trend([(step, measured[step] or 0) for step in steps], STRICT)
    rest = trend([(step, (measured[step] or 0) - expected[step]) for step in steps], STRICT)
    if own is None or rest is None:
        return None
    span = steps[-1] - steps[0]
    return MemoryGrowth(
        cause=_cause(own, rest, span),
        steps=len(steps),
        span=span,
        measured=own,
        unexplained=rest,
        phase=_phase_of([each for each in log.steps if each.step in expected], expected),
    )


_LEAST_STEPS = 10
"""Fewer have no trend worth a word (our choice)."""


def can_compare(log: TrainingLog) -> bool | None:
    """Return whether reserved memory is what can be compared; False for allocated memory, None for neither."""
    allocated, reserved = _measured_steps(log)
    if max(allocated, reserved) < _LEAST_STEPS:
        return None
    return allocated < _LEAST_STEPS


def _measured_steps(log: TrainingLog) -> tuple[int, int]:
    """Return in how many steps allocated memory was measured, and reserved memory."""
    allocated, reserved = (
        sum(_measured(each, is_reserved=is_reserved) is not None for each in log.steps) for is_reserved in (False, True)
    )
    return allocated, reserved


def why_not_compared(log: TrainingLog, completions: object) -> str:
    """Return why growth of the memory that a log measured cannot be compared with a forecast; empty if it can be.

    Args:
        log: The log.
        completions: Where the lengths of the forecast come from.
    """
    if not isinstance(completions, LoggedLengths):
        return "the lengths of the forecast are not those of the log"
    if can_compare(log) is None:
        steps = max(_measured_steps(log))
        return f"the log has measured memory in {steps} steps, and {_LEAST_STEPS} are needed (VramCallback logs it)"
    return ""


def measured_points(log: TrainingLog) -> tuple[tuple[int, int], ...]:
    """Return the step and the measured memory of each entry: allocated, or reserved if only that is logged often."""
    is_reserved = bool(can_compare(log))
    found = ((each.step, _measured(each, is_reserved=is_reserved)) for each in log.steps)
    return tuple((step, size) for step, size in found if size is not None)


def _measured(step: LoggedStep, *, is_reserved: bool) -> int | None:
    if is_reserved:
        return step.reserved_bytes
    return max(step.allocated_bytes.values(), default=step.peak_bytes)


def _expected(forecast: Mapping[int, Sequence[int]], steps: Sequence[int], *, running: bool) -> Mapping[int, float]:
    """Return the mean of the seeds at each logged step: the largest since the one before, or since the first."""
    found: dict[int, float] = {}
    wanted, peaks = set(steps), [0.0] * len(next(iter(forecast.values())))
    for step in sorted(forecast):
        peaks = [max(before, size) for before, size in zip(peaks, forecast[step], strict=False)]
        if step in wanted:
            found[step] = sum(peaks) / len(peaks)
            peaks = peaks if running else [0.0] * len(peaks)
    return found


def _cause(own: Trend, rest: Trend, span: int) -> Cause:
    least = max(UNEXPLAINED * max(0.0, own.slope), _LEAST_GROWTH_BYTES / max(1, span))
    if rest.low > least:
        return Cause.LEAK
    if own.low <= 0 or own.slope * span < _LEAST_GROWTH_BYTES:
        return Cause.NONE
    return Cause.LENGTHS if rest.high < 0.5 * own.slope else Cause.UNDECIDED


def _phase_of(steps: Sequence[LoggedStep], expected: Mapping[int, float]) -> Phase | None:
    """Return the phase whose peak grows most beyond what goes with the forecast; None if no phases are logged.

    By a regression of each phase's peak on the forecast and the step, of which the coefficient of the step counts.
    """
    phases = {phase for each in steps for phase in each.allocated_bytes if phase is not Phase.LOAD}
    found = {}
    for phase in phases:
        own = [each for each in steps if phase in each.allocated_bytes]
        if len(own) >= _LEAST_STEPS:
            forecast = [expected[each.step] for each in own]
            steps_left = _without(forecast, [float(each.step) for each in own])
            memory_left = _without(forecast, [float(each.allocated_bytes[phase]) for each in own])
            square = sum(each * each for each in steps_left)
            found[phase] = sum(a * b for a, b in zip(steps_left, memory_left, strict=True)) / square if square else 0.0
    return max(sorted(found), key=lambda phase: found[phase], default=None)


def _without(known: Sequence[float], values: Sequence[float]) -> list[float]:
    """Return what is left of `values` after a straight line in `known` (Frisch and Waugh, Econometrica 1, 1933)."""
    middle, mean = sum(known) / len(known), sum(values) / len(values)
    square = sum((each - middle) ** 2 for each in known)
    slope = (
        sum((each - middle) * (value - mean) for each, value in zip(known, values, strict=True)) / square
        if square
        else 0.0
    )
    return [value - mean - slope * (each - middle) for each, value in zip(known, values, strict=True)]


def growth_against(log: TrainingLog | None, completions: object, outlook: Outlook) -> MemoryGrowth | None:
    """Return the growth of the memory that a log measured against a forecast; None if it cannot be compared."""
    if log is None or why_not_compared(log, completions):
        return None
    is_reserved = bool(can_compare(log))
    sizes = {
        steps[0].step: [each.reserved_bytes if is_reserved else each.allocated_bytes for each in steps]
        for steps in zip(*(run.steps for run in outlook.runs), strict=False)
    }
    return memory_growth(log, sizes, is_reserved=is_reserved) if sizes else None


# ---- levers ----------------------------------------------------------------------------------------------------------

_SETTINGS = ("expandable_segments:True", "garbage_collection_threshold:0.8", "max_split_size_mb:512")
"""Settings of the allocator that people try, with values of PyTorch's notes and of public reports."""


def settings_levers(spec: TrialSpec) -> tuple[str, ...]:
    """Return the settings of the trial with one more each, as far as they differ from it and torch allows them."""
    found = []
    for each in _SETTINGS:
        if each.partition(":")[0] in spec.alloc_conf:
            continue
        text = ",".join(filter(None, (spec.alloc_conf, each)))
        try:
            parse_alloc_conf(text)
        except UsageError:
            continue
        found.append(text)
    return tuple(found)
